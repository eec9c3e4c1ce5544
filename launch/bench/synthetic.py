"""Processes that send ready-made gradients, as actors and their aggregators do, and the learner that takes them in.

None of the senders needs TensorFlow or an environment: there is room for many of them on one machine.
"""

import pickle
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from actors.environments import EnvironmentSpec
from launch.bench.process_cpu import cpu_seconds
from launch.loop.executor import Executor
from launch.machine.tensorflow_process import prepare_tensorflow
from launch.on_ray.actor_process import ActorProcess, Weights
from launch.on_ray.aggregation import AggregatingExecutor, Aggregator, without_evaluator
from launch.on_ray.cluster import ClusterView
from launch.on_ray.executor import RayExecutor
from launch.on_ray.executors import make_executor
from launch.on_ray.placement import Node
from launch.on_ray.sliced_executor import SlicedExecutor
from launch.on_ray.slices import SliceProcesses
from launch.on_ray.tree import Aggregation
from shared.blocks import block_size
from shared.config import RunConfig
from shared.layout import ParameterLayout
from shared.types import AggregatedReport, EpisodeStats, Float32Array, GradientReport, StageSeconds, WeightSnapshot
from shared.wire import encode, wire_dtype

if TYPE_CHECKING:
    from launch.loop.coordinator import Coordinator
    from learner.learner import Learner

# Until every page of the object store and of shared memory has been used once.
_WARM_UP_GRADIENTS = 400
# So many as an actor-critic reports of a rollout that is differentiated again.
_STATISTICS = {f"statistic {number}": 0.5 for number in range(8)}
# A sum's reports have none of their own.
_NO_GRADIENT = np.empty(0, np.float32)
# Rollouts do not all take the same time: a part of it, either way.
_JITTER = 0.1


def one_tensor(parameters: int) -> ParameterLayout:
    """The layout that senders and learner agree on without a network: all parameters in one tensor."""
    return ParameterLayout(("parameters",), ((parameters,),))


def _ready_made(config: RunConfig, actor_id: int, gradient: Float32Array) -> GradientReport:
    actor = config.actor
    agent_steps = actor.environments * actor.unroll_length // actor.gradients_per_rollout
    return GradientReport(
        actor_id=actor_id,
        sequence=0,
        version=0,
        layout_fingerprint=one_tensor(gradient.size).fingerprint,
        gradient=gradient,
        agent_steps=agent_steps,
        samples=agent_steps,
        episodes=EpisodeStats(np.empty(0, np.float64), np.empty(0, np.int64)),
        stage_seconds=StageSeconds(0.0, 0.0, 0.0, 0.0, 0.0),
        statistics=_STATISTICS,
    )


def _gradient(seed: int, parameters: int) -> Float32Array:
    return np.random.default_rng(seed).normal(0.0, 1e-3, parameters).astype(np.float32)


class SyntheticActor:
    """In an actor's place: takes weights, and returns the same gradient so many seconds later."""

    def __init__(self, config: RunConfig, actor_id: int, seconds: float) -> None:
        self._config, self._id, self._seconds = config, actor_id, seconds
        self._random = np.random.default_rng(actor_id)
        self._report: GradientReport | None = None

    def run(self, snapshot: WeightSnapshot, target: WeightSnapshot | None) -> GradientReport:  # noqa: ARG002
        """See `Actor.run`."""
        over = time.monotonic() + self._seconds * self._random.uniform(1.0 - _JITTER, 1.0 + _JITTER)
        # The weights are read, as an actor reads them.
        snapshot.parameters.sum()
        if self._report is None:
            self._report = _ready_made(self._config, self._id, _gradient(self._id, snapshot.parameters.size))
        self._report = self._report._replace(sequence=self._report.sequence + 1, version=snapshot.version)
        time.sleep(max(0.0, over - time.monotonic()))
        return self._report


def synthetic_actors(seconds: float) -> type[ActorProcess]:
    """The class of processes with a `SyntheticActor` of so many seconds a gradient."""

    class SyntheticActorProcess(ActorProcess):
        def make_runner(self, config: RunConfig, spec: EnvironmentSpec, actor_id: int) -> SyntheticActor:  # noqa: ARG002
            return SyntheticActor(config, actor_id, seconds)

        def block_norms(self, gradient: Float32Array) -> Float32Array:
            borders = range(0, gradient.size, block_size(gradient.size))
            return np.sqrt(np.add.reduceat(gradient * gradient, borders))

    return SyntheticActorProcess


class SyntheticAggregator:
    """In an aggregator's place: takes weights, and returns the same sum of `gradients` gradients at once."""

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, first_actor_id: int, gradients: int) -> None:  # noqa: ARG002
        self._config, self._first_actor_id, self._gradients = config, first_actor_id, gradients
        self._sum: Any = None
        self._reports: list[GradientReport] = []

    def collect(self, weights: Weights, target: Weights | None) -> AggregatedReport:  # noqa: ARG002
        """See `Aggregator.collect`."""
        assert isinstance(weights.parameters, np.ndarray)
        if not self._reports:
            self._sum = encode(_gradient(0, weights.parameters.size), self._config.transfer.precision)
            ids = range(self._first_actor_id, self._first_actor_id + self._gradients)
            whole = _ready_made(self._config, 0, np.empty(weights.parameters.size, np.float32))
            # As from actors, of which each has sent its own: what reports share would be sent once for all.
            own = [pickle.loads(pickle.dumps(whole._replace(actor_id=n, gradient=_NO_GRADIENT))) for n in ids]
            self._reports = [report._replace(gradient=_NO_GRADIENT) for report in own]
        self._reports = [r._replace(sequence=r.sequence + 1, version=weights.version) for r in self._reports]
        return AggregatedReport(0, self._sum, tuple(self._reports), (True,) * self._gradients)


class _Sender(NamedTuple):
    handle: Any
    node: str
    actors: int
    load: int


class SumSenders(AggregatingExecutor[_Sender]):
    """An executor of `SyntheticAggregator`s on this machine, whose messages go through Ray's objects."""

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, senders: int, gradients: int) -> None:
        super().__init__(without_evaluator(config), spec, None, gradients, part=1)
        for sender_id in range(0, senders * gradients, gradients):
            handle = self._start(SyntheticAggregator, "", sender_id, gradients)
            self._members[sender_id] = _Sender(handle, "", gradients, gradients)
        self._start_evaluator()

    def add(self) -> int | None:
        return None

    def room(self) -> int:
        return 0


# How an executor is made for a learner in these slices, or in one piece.
MakeExecutor = Callable[[SliceProcesses | None], Executor]


def senders(
    config: RunConfig, spec: EnvironmentSpec, count: int, gradients: int, slices: SliceProcesses | None
) -> Executor:
    """Senders of gradients, or of sums of so many, on this machine; each sends as fast as it is asked."""
    if gradients > 1:
        return SumSenders(config, spec, count, gradients)
    if slices is not None:
        return SlicedExecutor(config, spec, count, 0, synthetic_actors(0.0), None, slices)
    return RayExecutor(config, spec, count, actor_process=synthetic_actors(0.0))


def executor_on_nodes(
    config: RunConfig,
    spec: EnvironmentSpec,
    aggregation: Aggregation,
    learner: Node,
    seconds: float,
    slices: SliceProcesses | None,
) -> Executor:
    """The executor of a run on a cluster, over synthetic actors of so many seconds a gradient."""
    actors, _ = config.actor_range
    cluster = ClusterView(config, learner)
    return make_executor(config, spec, aggregation, actors, 0, cluster, synthetic_actors(seconds), slices)


class SyntheticHead(Aggregator):
    """The aggregator of a group of two nodes, which send sums of so many gradients as fast as it takes them."""

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, node_gradients: int) -> None:
        super().__init__(config, SumSenders(config, spec, 2, node_gradients), config.learner.gradients_per_update)

    def cpu_seconds(self) -> float:
        """Of this process so far."""
        return time.process_time()


class BenchLearnerProcess:
    """A learner and the coordinator's loop, over synthetic actors."""

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, threads: int) -> None:
        prepare_tensorflow(threads, gpu=False)
        from actors.policy import Policy

        policy = Policy(config, spec)
        self._config, self._initial = config, policy.initial_parameters()

    def run(self, make_executor: MakeExecutor, seconds: float, root: int) -> dict[str, Any]:
        """Take gradients from such an executor for so long, after a warm-up: what it did, and what that cost it.

        The CPU seconds of other processes are of those below the process `root`.
        """
        from launch.loop.coordinator import Coordinator
        from learner.learner import Learner

        slices = SliceProcesses(self._config, None) if self._config.learner.shards > 1 else None
        parts = None if slices is None else slices.start(self._initial)
        learner = Learner(self._config, one_tensor(self._initial.size), self._initial, parts)
        executor = make_executor(slices)
        coordinator = Coordinator(
            learner, executor, calls_per_actor=self._config.actor.calls_in_flight, supervision=self._config.supervision
        )
        try:
            return self._measure(learner, executor, coordinator, seconds, root)
        finally:
            executor.close()
            if slices is not None:
                slices.close()

    def idle(self, make_executor: MakeExecutor, seconds: float) -> float:
        """CPU seconds per second of this process while its actors are under way and nothing comes."""
        from launch.loop.coordinator import Coordinator
        from learner.learner import Learner

        learner = Learner(self._config, one_tensor(self._initial.size), self._initial)
        executor = make_executor(None)
        events = Coordinator(learner, executor, calls_per_actor=1, supervision=self._config.supervision).run()
        try:
            next(events)
            wall, cpu = time.perf_counter(), time.process_time()
            while time.perf_counter() - wall < seconds:
                next(events)
            return (time.process_time() - cpu) / (time.perf_counter() - wall)
        finally:
            executor.close()

    def _measure(
        self, learner: "Learner", executor: Executor, coordinator: "Coordinator", seconds: float, root: int
    ) -> dict[str, Any]:
        from learner.learner import Outcome

        events = (event for event in coordinator.run() if isinstance(event, Outcome))
        heard: set[int] = set()
        warm_up = 0
        while warm_up < _WARM_UP_GRADIENTS or len(heard) < executor.actors:
            heard.add(next(events).report.actor_id)
            warm_up += 1
        wall, cpu, others = time.perf_counter(), time.process_time(), cpu_seconds(root)
        updates, messages = learner.version, coordinator.messages
        lags: list[int] = []
        while not lags or time.perf_counter() - wall < seconds:
            lags.append(next(events).policy_lag)
        elapsed, taken = time.perf_counter() - wall, len(lags)
        cpu = time.process_time() - cpu
        used = {kind: total - others.get(kind, 0.0) for kind, total in cpu_seconds(root).items()}
        element_bytes = np.dtype(wire_dtype(self._config.transfer.precision)).itemsize
        return {
            "gradients_per_second": taken / elapsed,
            "updates_per_second": (learner.version - updates) / elapsed,
            "bytes_per_second": (coordinator.messages - messages) * element_bytes * self._initial.size / elapsed,
            "cpu_seconds_per_gradient": cpu / taken,
            "busy_fraction": cpu / elapsed,
            "policy_lag_mean": float(np.mean(lags)),
            "policy_lag_max": max(lags),
            "process_cpu_seconds_per_gradient": {kind: total / taken for kind, total in sorted(used.items())},
            "parameters": self._initial.size,
        }
