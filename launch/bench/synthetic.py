"""The processes of `tributary bench learner`: actors that send ready-made gradients, and who takes them in."""

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from actors.environments import EnvironmentSpec
from launch.machine.tensorflow_process import prepare_tensorflow
from launch.on_ray.actor_process import ActorProcess
from shared.config import RunConfig
from shared.types import EpisodeStats, GradientReport, StageSeconds, WeightSnapshot
from shared.wire import wire_dtype

if TYPE_CHECKING:
    from launch.loop.coordinator import Coordinator
    from learner.learner import Learner

# Until every page of the object store and of shared memory has been used once.
_WARM_UP_GRADIENTS = 400


class SyntheticActor:
    """In an actor's place: takes weights, and returns the same gradient at once."""

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, actor_id: int) -> None:
        from actors.policy import Policy

        layout = Policy(config, spec).layout
        self._report = GradientReport(
            actor_id=actor_id,
            sequence=0,
            version=0,
            layout_fingerprint=layout.fingerprint,
            gradient=np.random.default_rng(actor_id).normal(0.0, 1e-3, layout.size).astype(np.float32),
            agent_steps=config.actor.environments * config.actor.unroll_length,
            samples=config.actor.environments * config.actor.unroll_length,
            episodes=EpisodeStats(np.empty(0, np.float64), np.empty(0, np.int64)),
            stage_seconds=StageSeconds(0.0, 0.0, 0.0, 0.0, 0.0),
            statistics={},
        )

    def run(self, snapshot: WeightSnapshot, target: WeightSnapshot | None) -> GradientReport:  # noqa: ARG002
        """See `Actor.run`."""
        # The weights are read, as an actor reads them.
        snapshot.parameters.sum()
        self._report = self._report._replace(sequence=self._report.sequence + 1, version=snapshot.version)
        return self._report


class SyntheticActorProcess(ActorProcess):
    """A `SyntheticActor` in a process of its own."""

    def make_runner(self, config: RunConfig, spec: EnvironmentSpec, actor_id: int) -> SyntheticActor:
        """See `ActorProcess.make_runner`."""
        return SyntheticActor(config, spec, actor_id)


class BenchLearnerProcess:
    """A learner and the coordinator's loop, over synthetic actors."""

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, threads: int) -> None:
        prepare_tensorflow(threads, gpu=False)
        from actors.policy import Policy

        self._config, self._spec, self._policy = config, spec, Policy(config, spec)

    def run(self, actors: int, seconds: float) -> dict[str, Any]:
        """Take gradients from so many senders for so long, after a warm-up: what it did, and what that cost it."""
        from launch.loop.coordinator import Coordinator
        from launch.on_ray.executor import RayExecutor
        from learner.learner import Learner

        learner = Learner(self._config, self._policy.layout, self._policy.initial_parameters())
        executor = RayExecutor(self._config, self._spec, actors, actor_process=SyntheticActorProcess)
        coordinator = Coordinator(
            learner, executor, calls_per_actor=self._config.actor.calls_in_flight, supervision=self._config.supervision
        )
        try:
            return self._measure(learner, coordinator, seconds)
        finally:
            executor.close()

    def _measure(self, learner: "Learner", coordinator: "Coordinator", seconds: float) -> dict[str, Any]:
        gradients = updates = 0
        wall = cpu = 0.0
        for event in coordinator.run():
            if event is None:
                continue
            gradients += 1
            if gradients == _WARM_UP_GRADIENTS:
                wall, cpu, updates = time.perf_counter(), time.process_time(), learner.version
            elif gradients > _WARM_UP_GRADIENTS and time.perf_counter() - wall >= seconds:
                break
        elapsed = time.perf_counter() - wall
        taken = gradients - _WARM_UP_GRADIENTS
        element_bytes = np.dtype(wire_dtype(self._config.transfer.precision)).itemsize
        return {
            "gradients_per_second": taken / elapsed,
            "updates_per_second": (learner.version - updates) / elapsed,
            "bytes_per_second": taken * element_bytes * self._policy.layout.size / elapsed,
            "cpu_seconds_per_gradient": (time.process_time() - cpu) / taken,
            "busy_fraction": (time.process_time() - cpu) / elapsed,
            "parameters": self._policy.layout.size,
        }
