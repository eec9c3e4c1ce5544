"""The learner's seconds per gradient, measured with a process that sends one constant gradient as fast as it is taken.

The sender needs neither TensorFlow nor an environment. Everything from its message to the applied update is that of a
training run: processes, transport, aggregation, admission, accumulation, optimizer.
"""

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from actors.environments import EnvironmentSpec
from launch.on_ray.actor_process import ActorProcess
from launch.tensorflow_setup import prepare_tensorflow
from shared.config import RunConfig
from shared.layout import ParameterLayout
from shared.types import AggregatedReport, EpisodeStats, GradientReport, StageSeconds, WeightSnapshot

# By then every page of the object store and of shared memory has been used once.
_WARM_UP_GRADIENTS = 400
# An actor-critic reports about as many statistics with each gradient.
_STATISTICS = {f"statistic {number}": 0.5 for number in range(8)}


def measure_learner(config: RunConfig, spec: EnvironmentSpec, seconds: float) -> dict[str, Any]:
    """CPU seconds of the learner's process per gradient, by the way that gradients travel, and the `parameters`.

    `shared_memory`: from actors of the learner's machine; `objects`: from other machines, through Ray. With K of 2 or
    more, also as sums of K, added on their node: `sums` from other machines, `shared_memory_sums` on the learner's; and
    `aggregator`, those of the process that adds them.
    One sender has one call in flight: the learner wakes up for each message, as it does for those of many actors that
    take longer to compute.
    """
    import ray

    from launch.on_ray.cluster import connect
    from launch.on_ray.executor import PROCESS_OPTIONS

    config = _bench_config(config)
    measured: dict[str, Any] = {}
    try:
        connect(config, 1)
        process = ray.remote(num_cpus=0, **PROCESS_OPTIONS)(LearnerBenchProcess)
        learner = process.remote(config, spec)
        measured["parameters"] = ray.get(learner.parameters.remote())
        sums = ("sums", "shared_memory_sums") if config.learner.gradients_per_update > 1 else ()
        for way in ("shared_memory", "objects", *sums):
            sent = replace(config, aggregation="node" if way in sums else "none")
            measured[way] = ray.get(learner.measure.remote(sent, seconds, way.startswith("shared_memory")))
        if sums:
            measured["aggregator"] = ray.get(learner.measure_aggregator.remote(config, seconds))
    finally:
        ray.shutdown()
    return measured


def _bench_config(config: RunConfig) -> RunConfig:
    """The settings without what a sender has not: observations, evaluations, and a limit on the age of gradients."""
    return replace(
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


def _layout(parameters: int) -> ParameterLayout:
    """A layout of one tensor: sender and learner need no network to agree on it."""
    return ParameterLayout(("parameters",), ((parameters,),))


class _ConstantActor:
    """Replaces `Actor` in the sender: `run` returns the same gradient at once."""

    def __init__(self, config: RunConfig, actor_id: int) -> None:
        self._agent_steps = config.actor.environments * config.actor.unroll_length
        self._id = actor_id
        self._report: GradientReport | None = None

    def run(self, snapshot: WeightSnapshot, target: WeightSnapshot | None) -> GradientReport:  # noqa: ARG002
        # An actor reads all weights; where they lie in shared memory, that is what their transport costs.
        snapshot.parameters.sum()
        parameters = snapshot.parameters.size
        report = self._report or GradientReport(
            actor_id=self._id,
            sequence=0,
            version=0,
            layout_fingerprint=_layout(parameters).fingerprint,
            gradient=np.random.default_rng(self._id).normal(0.0, 1e-3, parameters).astype(np.float32),
            agent_steps=self._agent_steps,
            samples=self._agent_steps,
            episodes=EpisodeStats(np.empty(0, np.float64), np.empty(0, np.int64)),
            stage_seconds=StageSeconds(0.0, 0.0, 0.0, 0.0, 0.0),
            statistics=_STATISTICS,
        )
        self._report = report._replace(sequence=report.sequence + 1, version=snapshot.version)
        return self._report


class SenderProcess(ActorProcess):
    """An actor's process without TensorFlow and environments."""

    def make_runner(self, config: RunConfig, spec: EnvironmentSpec, actor_id: int) -> _ConstantActor:  # noqa: ARG002
        return _ConstantActor(config, actor_id)


class LearnerBenchProcess:
    """A learner with the coordinator's loop over a sender, in a Ray actor."""

    def __init__(self, config: RunConfig, spec: EnvironmentSpec) -> None:
        prepare_tensorflow(gpu=False)
        from actors.policy import Policy

        self._spec = spec
        self._initial = Policy(config, spec).initial_parameters()

    def parameters(self) -> int:
        """Number of parameters of the network."""
        return int(self._initial.size)

    def measure(self, config: RunConfig, seconds: float, shared_memory: bool) -> float:
        """CPU seconds of this process per gradient, over the gradients of `seconds` after a warm-up."""
        from launch.loop.coordinator import Coordinator
        from launch.on_ray.executor import RayExecutor
        from launch.on_ray.node_aggregator import NodesExecutor
        from learner.learner import Learner, Outcome

        learner = Learner(config, _layout(self._initial.size), self._initial)
        executor: RayExecutor
        if config.aggregation == "node":
            count = config.learner.gradients_per_update
            executor = NodesExecutor(
                config, self._spec, 1, 0, None, SenderProcess, gradients=count, shared_memory=shared_memory
            )
        else:
            executor = RayExecutor(config, self._spec, 1, actor_process=SenderProcess, shared_memory=shared_memory)
        try:
            coordinator = Coordinator(learner, executor, calls_per_actor=1, supervision=config.supervision)
            return _cpu_seconds((1 for event in coordinator.run() if isinstance(event, Outcome)), seconds)
        finally:
            executor.close()

    def measure_aggregator(self, config: RunConfig, seconds: float) -> float:
        """The same of a process that adds the gradients of its node, without sending the sums."""
        from launch.loop.aggregator import GradientAggregator
        from launch.on_ray.executor import RayExecutor

        executor = RayExecutor(config, self._spec, 1, actor_process=SenderProcess)
        try:
            gradients = config.learner.gradients_per_update
            aggregator = GradientAggregator(executor, gradients, config.supervision, config.evaluation)
            answers = (aggregator.collect(WeightSnapshot(n, self._initial), None) for n in itertools.count())
            sums = (answer for answer in answers if isinstance(answer, AggregatedReport))
            return _cpu_seconds((len(one.reports) for one in sums), seconds)
        finally:
            executor.close()


def _cpu_seconds(gradients: Iterator[int], seconds: float) -> float:
    """CPU seconds of this process per gradient, over those of `seconds` after a warm-up."""
    warm_up = 0
    while warm_up < _WARM_UP_GRADIENTS:
        warm_up += next(gradients)
    began, cpu, count = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - began < seconds or not count:
        count += next(gradients)
    return (time.process_time() - cpu) / count
