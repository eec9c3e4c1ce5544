"""Adds the gradients of a node's actors on their node, so that an update needs one message in place of K.

A node's aggregator runs its actors by an executor of its own, through that node's shared memory, and sends the sum of
the K gradients of one update. The sum is to the bit the one that the learner would have made: ((g₁ + g₂) + g₃) …, in
the order of arrival. The learner still admits and counts each gradient by itself.
"""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import ray
from ray.exceptions import RayActorError, RayError

from actors.environments import EnvironmentSpec
from launch.loop.executor import ChangedWithin, Completion, Failed, Replaced
from launch.loop.node_actors import NodeActors
from launch.on_ray.actor_process import Weights
from launch.on_ray.cluster import ClusterView, on_node
from launch.on_ray.evaluator import EvaluatorMember
from launch.on_ray.executor import RayExecutor
from launch.on_ray.failures import failure_reason
from launch.on_ray.members import PROCESS_OPTIONS, Published
from shared.config import RunConfig
from shared.types import AggregatedReport, EvaluationPolicy, EvaluationResult, WeightSnapshot
from shared.wire import decode, encode

_POLL_SECONDS = 0.5
# An aggregator and its actors take a block of ids, so that no id is ever used twice.
_IDS_PER_NODE = 1_000_000


class AggregatorProcess:
    """The process on a node that runs its actors and adds their gradients.

    Args:
        config: of the run.
        spec: of its environment.
        actors: how many to start.
        first_actor_id: ids count up from here.
        node: the id of its own node, for its actors too; empty: there is one machine only.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        actors: int,
        first_actor_id: int,
        node: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # The learner's process has the evaluator: this executor must not start one.
        self._config = replace(config, evaluation=replace(config.evaluation, every_frames=0))
        self._executor = RayExecutor(self._config, spec, actors, first_actor_id, node=node)
        self._actors = NodeActors(self._executor, config.learner.gradients_per_update, config.supervision, clock=clock)

    def collect(self, weights: Weights, target: WeightSnapshot | None) -> AggregatedReport | Failed | Replaced:
        """See `NodeActors.collect`; the gradient of the sum is encoded, as it travels."""
        assert isinstance(weights.parameters, np.ndarray)
        self._executor.publish(WeightSnapshot(weights.version, decode(weights.parameters), weights.frames))
        if target is not None:
            self._executor.publish_target(target)
        result = self._actors.collect()
        if not isinstance(result, AggregatedReport):
            return result
        return result._replace(gradient=encode(result.gradient, self._config.transfer.precision))  # type: ignore[arg-type]


class _Group(NamedTuple):
    """A node's aggregator and its number of actors."""

    handle: Any
    node: str
    actors: int


class AggregatingExecutor:
    """An `Executor` with one aggregator per node. An actor id of its interface is that of an aggregator.

    Args:
        config: of the run.
        spec: of its environment.
        actors: how many in all, where there is no cluster.
        first_actor_id: ids count up from here, and are never used again.
        cluster: where there are places for actors. None: all are on this machine.
    """

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        actors: int,
        first_actor_id: int = 0,
        cluster: ClusterView | None = None,
    ) -> None:
        self._config, self._spec, self._cluster, self._actors = config, spec, cluster, actors
        self._ids = itertools.count(first_actor_id, _IDS_PER_NODE)
        self._groups: dict[int, _Group] = {}
        self._calls: dict[ray.ObjectRef, int | None] = {}
        # Groups whose last call ended with a change within: gradients that were added before it wait in their sums.
        self._unfinished: set[int] = set()
        self._published = Published(config.transfer.precision)
        for _ in range(1 if cluster is None else self.room()):
            self.add()
        self._evaluator = EvaluatorMember(config, spec)

    @property
    def actor_ids(self) -> Sequence[int]:
        return list(self._groups)

    @property
    def actors(self) -> int:
        return sum(group.actors for group in self._groups.values())

    @property
    def calls_in_flight(self) -> int:
        return len(self._calls)

    def publish(self, snapshot: WeightSnapshot) -> None:
        self._published.publish(snapshot)

    def publish_target(self, snapshot: WeightSnapshot) -> None:
        self._published.publish_target(snapshot)

    def dispatch(self, actor_id: int) -> None:
        weights, target = self._published.weights(), self._published.new_target(actor_id)
        self._calls[self._groups[actor_id].handle.collect.remote(weights, target)] = actor_id

    def evaluate(self, snapshot: WeightSnapshot, policy: EvaluationPolicy) -> None:
        self._calls[self._evaluator.run(self._published.weights_of(snapshot), policy)] = None

    def next_completion(self) -> Completion | None:
        if not self._calls:
            time.sleep(_POLL_SECONDS)
            return None
        ready, _ = ray.wait(list(self._calls), num_returns=1, timeout=_POLL_SECONDS)
        if not ready:
            return None
        actor_id = self._calls.pop(ready[0])
        try:
            result = ray.get(ready[0])
        except RayError as error:
            lost = (
                self._cluster is not None
                and actor_id is not None
                and isinstance(error, RayActorError)
                and self._cluster.has_lost(self._groups[actor_id].node)
            )
            return Failed(actor_id, failure_reason(error), node_lost=lost)
        if actor_id is None:
            evaluation: EvaluationResult = result
            return evaluation
        if not isinstance(result, AggregatedReport):
            self._unfinished.add(actor_id)
            return ChangedWithin(actor_id, result)
        self._unfinished.discard(actor_id)
        return result._replace(actor_id=actor_id, gradient=decode(result.gradient))

    def has_completed(self, actor_id: int) -> bool:
        ref = next(ref for ref, group in self._calls.items() if group == actor_id)
        return bool(ray.wait([ref], timeout=0)[0])

    def rollouts_under_way(self, actor_id: int) -> int:
        # One of each actor but that whose report, or loss, ended the last call. Of a call under way it plays too.
        playing = self._groups[actor_id].actors - 1
        called = actor_id in self._calls.values()
        # A sum is sent as soon as it has K gradients.
        in_sum = self._config.learner.gradients_per_update - 1 if called or actor_id in self._unfinished else 0
        return playing + called + in_sum

    def remove(self, actor_id: int) -> None:
        self._calls = {ref: group for ref, group in self._calls.items() if group != actor_id}
        # Ray ends the actors that a process has started with it.
        ray.kill(self._groups.pop(actor_id).handle, no_restart=True)
        self._unfinished.discard(actor_id)

    def add(self) -> int | None:
        node, actors = "", self._actors
        if self._cluster is not None:
            free = self._free_nodes()
            if not free:
                return None
            node, actors = max(free.items(), key=lambda item: item[1])
        group_id = next(self._ids)
        options = PROCESS_OPTIONS | (on_node(node) if node else {})
        remote = ray.remote(num_cpus=0, **options)(AggregatorProcess)
        handle = remote.remote(self._config, self._spec, actors, group_id + 1, node)
        self._groups[group_id] = _Group(handle, node, actors)
        return group_id

    def room(self) -> int:
        return 0 if self._cluster is None else len(self._free_nodes())

    def draining(self) -> Sequence[int]:
        if self._cluster is None:
            return ()
        draining = {node.id for node in self._cluster.nodes() if node.draining}
        return [group_id for group_id, group in self._groups.items() if group.node in draining]

    def replace_evaluator(self) -> None:
        # The evaluator's further calls would each end with its death again.
        self._calls = {ref: group for ref, group in self._calls.items() if group is not None}
        self._evaluator.close()

    def state(self) -> None:
        return None

    def restore(self, state: dict[str, Any]) -> Sequence[int | None]:  # noqa: ARG002
        raise AssertionError("processes have no fixed order, and so no state for a bit-exact resume")

    def close(self) -> None:
        handles = [group.handle for group in self._groups.values()]
        for handle in handles:
            ray.kill(handle, no_restart=True)
        self._evaluator.close()
        self._groups, self._calls = {}, {}

    def _free_nodes(self) -> dict[str, int]:
        """How many actors each node without an aggregator gets, by node id."""
        assert self._cluster is not None
        _, most = self._config.actor_range
        left = None if most is None else most - self.actors
        taken = Counter(group.node for group in self._groups.values())
        free = {node: count for node, count in self._cluster.places().items() if not taken[node]}
        if left is not None:
            free = {node: min(count, left) for node, count in free.items() if left > 0}
        return free
