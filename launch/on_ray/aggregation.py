"""Adds gradients on their way to the learner, so that an update needs one message in place of K: on their nodes.

A node's aggregator runs its actors by an executor of its own, through that node's shared memory, and sends the sum of
their next gradients. The sum is to the bit the one that the learner would have made: ((g₁ + g₂) + g₃) …, in the order
of arrival. The learner still admits and counts each gradient by itself.
"""

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import ray

from actors.environments import EnvironmentSpec
from launch.loop.aggregator import GradientAggregator
from launch.loop.executor import ChildEvent, Completion, Heartbeat
from launch.on_ray.actor_process import ActorProcess, Weights
from launch.on_ray.cluster import ClusterView, on_node
from launch.on_ray.executor import RayExecutor
from launch.on_ray.members import PROCESS_OPTIONS, Call, RayMembers
from shared.config import RunConfig
from shared.types import AggregatedReport, WeightSnapshot
from shared.wire import decode, encode

# An aggregator and its actors take a block of ids, so that no id is ever used twice.
_IDS_PER_NODE = 1_000_000


class NodeAggregator:
    """The aggregator of a node, with its actors.

    Args:
        config: of the run.
        spec: of its environment.
        actors: how many to start.
        first_actor_id: ids count up from here.
        node: the id of its own node, for its actors too; empty: there is one machine only.
        gradients: of a sum.
        actor_process: the class that is started in each actor's process.
    """

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        actors: int,
        first_actor_id: int,
        node: str,
        gradients: int,
        actor_process: type[ActorProcess],
    ) -> None:
        # The evaluator is that of the learner's process.
        config = replace(config, evaluation=replace(config.evaluation, every_frames=0))
        executor = RayExecutor(config, spec, actors, first_actor_id, actor_process, node=node)
        self._precision = config.transfer.precision
        self._aggregator = GradientAggregator(executor, gradients, config.supervision)

    def collect(self, weights: Weights, target: Weights | None) -> AggregatedReport | ChildEvent | Heartbeat:
        """See `GradientAggregator.collect`; the gradient of the sum is encoded, as it travels."""
        result = self._aggregator.collect(_snapshot(weights), None if target is None else _snapshot(target))
        if not isinstance(result, AggregatedReport):
            return result
        return result._replace(gradient=encode(result.gradient, self._precision))  # type: ignore[arg-type]


def _snapshot(weights: Weights) -> WeightSnapshot:
    assert isinstance(weights.parameters, np.ndarray)
    return WeightSnapshot(weights.version, decode(weights.parameters), weights.frames, weights.reward_factor)


class _Node(NamedTuple):
    """A node's aggregator and its number of actors, each with one rollout under way."""

    handle: Any
    node: str
    actors: int


class NodesExecutor(RayMembers[_Node]):
    """An `Executor` with an aggregator on each node. An actor id of its interface is that of an aggregator.

    Args:
        config: of the run.
        spec: of its environment.
        actors: how many in all, where there is no cluster.
        first_actor_id: ids count up from here, and are never used again.
        cluster: where there are places for actors. None: all are on this machine.
        gradients: of a node's sum.
        actor_process: the class that is started in each actor's process.
    """

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        actors: int,
        first_actor_id: int,
        cluster: ClusterView | None,
        gradients: int,
        actor_process: type[ActorProcess] = ActorProcess,
    ) -> None:
        super().__init__(config, spec, cluster)
        self._actors, self._gradients, self._actor_process = actors, gradients, actor_process
        self._ids = itertools.count(first_actor_id, _IDS_PER_NODE)
        # Those whose last call ended without a sum: gradients that were added before it wait there.
        self._unfinished: set[int] = set()
        for _ in range(1 if cluster is None else self.free_slots()):
            self.add()
        self._start_evaluator()

    @property
    def actors(self) -> int:
        return sum(member.actors for member in self._members.values())

    def dispatch(self, actor_id: int) -> None:
        weights, target = self._published.weights(), self._published.new_target_object(actor_id)
        self._calls[self._members[actor_id].handle.collect.remote(weights, target)] = Call(actor_id)

    def _completion(self, call: Call, result: AggregatedReport | ChildEvent | Heartbeat) -> Completion:
        assert call.actor_id is not None
        result = result._replace(actor_id=call.actor_id)
        if not isinstance(result, AggregatedReport):
            self._unfinished.add(call.actor_id)
            return result
        self._unfinished.discard(call.actor_id)
        return result._replace(gradient=decode(result.gradient))

    def rollouts_under_way(self, actor_id: int) -> int:
        load = self._members[actor_id].actors - 1
        if actor_id in self._unfinished or any(call.actor_id == actor_id for call in self._calls.values()):
            # A sum is sent as soon as it is whole: then the actor that completed it waits.
            return load + self._gradients
        return load

    def remove(self, actor_id: int) -> None:
        super().remove(actor_id)
        self._unfinished.discard(actor_id)

    def add(self) -> int | None:
        node, actors = "", self._actors
        if self._cluster is not None:
            free = self._free_nodes()
            if not free:
                return None
            node, actors = max(free.items(), key=lambda item: item[1])
        node_id = next(self._ids)
        options = PROCESS_OPTIONS | (on_node(node) if node else {})
        remote = ray.remote(num_cpus=0, **options)(NodeAggregator).remote
        handle = remote(self._config, self._spec, actors, node_id + 1, node, self._gradients, self._actor_process)
        self._members[node_id] = _Node(handle, node, actors)
        return node_id

    def free_slots(self) -> int:
        return 0 if self._cluster is None else len(self._free_nodes())

    def _free_nodes(self) -> dict[str, int]:
        """How many actors each node without an aggregator gets, by node id."""
        assert self._cluster is not None
        _, most = self._config.actor_range
        left = None if most is None else most - self.actors
        taken = Counter(member.node for member in self._members.values())
        free = {node: count for node, count in self._cluster.slots_by_node().items() if not taken[node]}
        if left is not None:
            free = {node: min(count, left) for node, count in free.items() if left > 0}
        return free
