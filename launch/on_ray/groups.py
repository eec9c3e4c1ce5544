"""The second level: groups of nodes add the sums of their nodes, and the learner takes the sums of groups.

The aggregator of a group is on one of its nodes. If that node dies, its process and those of all actors of the group
end with it; the nodes that are left are taken into other groups, or form a new one.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from actors.environments import EnvironmentSpec
from launch.on_ray.actor_process import ActorProcess
from launch.on_ray.aggregation import AggregatingExecutor, Aggregator, NodesExecutor, without_evaluator
from launch.on_ray.cluster import ClusterView
from launch.on_ray.placement import Node
from launch.on_ray.tree import groups, within
from shared.config import RunConfig

# Blocks of ids of its nodes, each with that of its actors.
_IDS_PER_GROUP = 1_000_000_000


class _GroupView(ClusterView):
    """The nodes of one group.

    Args:
        config: of the run.
        learner: the node of the learner.
        places: how many actors each node of the group takes, by its id.
    """

    def __init__(self, config: RunConfig, learner: Node, places: dict[str, int]) -> None:
        super().__init__(config, learner)
        self.given = places

    def places(self) -> dict[str, int]:
        """Those given, where the node is there and stays."""
        there = super().places()
        return {node: count for node, count in self.given.items() if node in there}


class GroupAggregator(Aggregator):
    """The aggregator of a group. It starts those of its nodes, on which the actors are.

    Args:
        config: of the run.
        spec: of its environment.
        learner: the node of the learner.
        places: how many actors each node of the group takes, by its id.
        first_actor_id: ids count up from here.
        node_gradients: of a node's sum. That of the group is of all gradients of an update.
        actor_process: the class that is started in each actor's process.
    """

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        learner: Node,
        places: dict[str, int],
        first_actor_id: int,
        node_gradients: int,
        actor_process: type[ActorProcess],
    ) -> None:
        config = without_evaluator(config)
        self._view = _GroupView(config, learner, places)
        executor = NodesExecutor(config, spec, 0, first_actor_id, self._view, node_gradients, actor_process)
        super().__init__(config, executor, config.learner.gradients_per_update)

    def follow(self, places: dict[str, int]) -> None:
        """Have these nodes in the group, and these numbers of actors on those that join it."""
        self._view.given = places


@dataclass
class _Group:
    """The aggregator of a group, its node, and the actors of each of the group's nodes: as it is, and as it was told.

    `node_gradients` are those of a node's sum: but for the last of them they may wait there, beside the rollouts.
    """

    handle: Any
    node: str
    places: dict[str, int]
    told: dict[str, int]
    node_gradients: int

    @property
    def actors(self) -> int:
        return sum(self.places.values())

    @property
    def load(self) -> int:
        return sum(actors + self.node_gradients - 1 for actors in self.told.values())


class GroupsExecutor(AggregatingExecutor[_Group]):
    """An `Executor` with an aggregator for each group of nodes.

    Args:
        config: of the run.
        spec: of its environment.
        first_actor_id: ids count up from here, and are never used again.
        cluster: where there are places for actors.
        node_gradients: of a node's sum.
        actor_process: the class that is started in each actor's process.
    """

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        first_actor_id: int,
        cluster: ClusterView,
        node_gradients: int,
        actor_process: type[ActorProcess] = ActorProcess,
    ) -> None:
        super().__init__(config, spec, cluster, config.learner.gradients_per_update, node_gradients)
        self._nodes, self._actor_process = cluster, actor_process
        self._ids = itertools.count(first_actor_id, _IDS_PER_GROUP)
        for places in self._regroup():
            self._add(places)
        self._start_evaluator()

    def dispatch(self, actor_id: int) -> None:
        self._regroup()
        group = self._members[actor_id]
        if group.places != group.told:
            group.handle.follow.remote(group.places)
            group.told = group.places
        super().dispatch(actor_id)

    def add(self) -> int | None:
        free = self._regroup()
        return self._add(free[0]) if free else None

    def room(self) -> int:
        return len(self._regroup())

    def _add(self, places: dict[str, int]) -> int:
        """Start a group with so many actors on these nodes."""
        group_id, head = next(self._ids), next(iter(places))
        arguments = (self._nodes.learner, places, group_id + 1, self._part, self._actor_process)
        handle = self._start(GroupAggregator, head, *arguments)
        self._members[group_id] = _Group(handle, head, places, places, self._part)
        return group_id

    def _regroup(self) -> Sequence[dict[str, int]]:
        """Bring the groups up to date with the nodes that are there; the places of those that are yet to be started."""
        there, running = self._nodes.places(), list(self._members.values())
        taken = {node: count for group in running for node, count in group.places.items() if node in there}
        _, most = self._config.actor_range
        left = None if most is None else most - sum(taken.values())
        places = taken | within({node: count for node, count in there.items() if node not in taken}, left)
        # Neighbours together. The learner's node has enough to do without the aggregator of a group.
        nodes = sorted(self._nodes.nodes(), key=lambda node: (node.id == self._nodes.learner.id, node.address, node.id))
        arranged = groups(
            [node.id for node in nodes if node.id in places],
            [[group.node, *(node for node in group.places if node != group.node)] for group in running],
            self._config.nodes_per_group,
        )
        given = [{node: places[node] for node in group} for group in arranged]
        for group, now in zip(running, given[: len(running)], strict=True):
            group.places = now
        return given[len(running) :]
