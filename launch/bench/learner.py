"""The learner alone: its seconds per gradient, from a process that sends one constant gradient as fast as it is taken.

The sender needs neither TensorFlow nor an environment. Everything from its message to the applied update is that of a
training run: processes, transport, admission, accumulation, optimizer.
"""

import time
from dataclasses import replace

import numpy as np

from actors.environments import EnvironmentSpec
from launch.on_ray.actor_process import ActorProcess
from launch.tensorflow_setup import prepare_tensorflow
from shared.config import RunConfig
from shared.layout import ParameterLayout
from shared.types import EpisodeStats, GradientReport, StageSeconds, WeightSnapshot

# By then every page of shared memory has been used once.
_WARM_UP_GRADIENTS = 400
# An actor-critic reports about as many statistics with each gradient.
_STATISTICS = {f"statistic {number}": 0.5 for number in range(8)}


def measure_learner(config: RunConfig, spec: EnvironmentSpec, seconds: float) -> tuple[float, int]:
    """CPU seconds of the learner's process per gradient of an actor on its machine, and the number of parameters.

    The learner wakes up for each message, as it does for those of actors that take longer to compute.
    """
    import ray

    from launch.on_ray.cluster import connect
    from launch.on_ray.executor import PROCESS_OPTIONS

    # Without what a sender has not: observations, evaluations, and a limit on the age of gradients.
    config = replace(
        config,
        actors=1,
        executor="ray",
        address="local",
        aggregation="none",
        lockstep=False,
        record_arrivals=None,
        replay_arrivals=None,
        stop_measure="training",
        network=replace(config.network, centre_observations=False, observation_scaling="none"),
        learner=replace(config.learner, max_policy_lag=None),
        actor=replace(config.actor, fresh_gradients=False),
        evaluation=replace(config.evaluation, every_frames=0),
    )
    try:
        connect(config, 1)
        process = ray.remote(num_cpus=0, **PROCESS_OPTIONS)(_LearnerProcess)
        seconds_per_gradient, parameters = ray.get(process.remote().measure.remote(config, spec, seconds))
        return seconds_per_gradient, parameters
    finally:
        ray.shutdown()


class _LearnerProcess:
    """A learner with the coordinator's loop over a sender, in a Ray actor."""

    def measure(self, config: RunConfig, spec: EnvironmentSpec, seconds: float) -> tuple[float, int]:
        """See `measure_learner`."""
        prepare_tensorflow(gpu=False)
        from actors.policy import Policy
        from launch.loop.coordinator import Coordinator
        from launch.on_ray.executor import RayExecutor
        from learner.learner import Learner, Outcome

        initial = Policy(config, spec).initial_parameters()
        learner = Learner(config, _layout(initial.size), initial)
        executor = RayExecutor(config, spec, 1, actor_process=_SenderProcess)
        try:
            coordinator = Coordinator(learner, executor, config.supervision)
            gradients = (event for event in coordinator.run() if isinstance(event, Outcome))
            for _ in range(_WARM_UP_GRADIENTS):
                next(gradients)
            ends, cpu, count = time.perf_counter() + seconds, time.process_time(), 0
            while time.perf_counter() < ends or not count:
                next(gradients)
                count += 1
            return (time.process_time() - cpu) / count, int(initial.size)
        finally:
            executor.close()


def _layout(parameters: int) -> ParameterLayout:
    """A layout of one tensor: sender and learner need no network to agree on it."""
    return ParameterLayout(("parameters",), ((parameters,),))


class _SenderProcess(ActorProcess):
    """An actor's process without TensorFlow and environments."""

    def make_runner(self, config: RunConfig, spec: EnvironmentSpec, actor_id: int) -> "_ConstantActor":  # noqa: ARG002
        return _ConstantActor(config.actor.environments * config.actor.unroll_length, actor_id)


class _ConstantActor:
    """Replaces `Actor` in the sender: `run` returns the same gradient at once."""

    def __init__(self, agent_steps: int, actor_id: int) -> None:
        self._agent_steps, self._id, self._sequence = agent_steps, actor_id, 0
        self._gradient = np.empty(0, np.float32)

    def run(self, snapshot: WeightSnapshot, target: WeightSnapshot | None) -> GradientReport:  # noqa: ARG002
        # An actor reads all weights; where they lie in shared memory, that is what their transport costs.
        snapshot.parameters.sum()
        if not self._sequence:
            drawn = np.random.default_rng(self._id).normal(0.0, 1e-3, snapshot.parameters.size)
            self._gradient = drawn.astype(np.float32)
        self._sequence += 1
        return GradientReport(
            actor_id=self._id,
            sequence=self._sequence,
            version=snapshot.version,
            layout_fingerprint=_layout(self._gradient.size).fingerprint,
            gradient=self._gradient,
            agent_steps=self._agent_steps,
            samples=self._agent_steps,
            episodes=EpisodeStats(np.empty(0, np.float64), np.empty(0, np.int64)),
            stage_seconds=StageSeconds(0.0, 0.0, 0.0, 0.0, 0.0),
            statistics=_STATISTICS,
        )
