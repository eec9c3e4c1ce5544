"""Which processes the executor of groups starts where, and what it tells them; no process is started."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from actors.environments import environment_spec
from launch.loop.executor import AtWork, ChangedWithin, Failed
from launch.on_ray import aggregation, members
from launch.on_ray.cluster import ClusterView
from launch.on_ray.groups import GroupAggregator, GroupsExecutor
from launch.on_ray.placement import Node
from shared.config import LearnerConfig, RunConfig
from shared.types import AggregatedReport, WeightSnapshot

LEARNER = Node("learner", "10.0.0.9", 1.0, 2**36)
# Actors of a node, gradients of its sum, gradients of an update.
ACTORS, NODE, K = 4, 2, 8


class Cluster(ClusterView):
    """A view of the nodes that the test says."""

    def __init__(self, config: RunConfig, *workers: str) -> None:
        super().__init__(config, LEARNER)
        self.there = [LEARNER, *(Node(name, f"10.0.0.{name}", float(ACTORS), 2**36) for name in workers)]

    def nodes(self, *, fresh: bool = False) -> list[Node]:  # noqa: ARG002
        return self.there

    def drain(self, name: str) -> None:
        self.there = [replace(node, draining=node.draining or node.id == name) for node in self.there]

    def lose(self, name: str) -> None:
        self.there = [node for node in self.there if node.id != name]

    def has_lost(self, node_id: str) -> bool:
        return node_id not in [node.id for node in self.there]


class Started:
    """In the place of a process: keeps what it was started with and told. Calls give its name."""

    def __init__(self, node: str, *arguments: Any) -> None:
        self.node = node
        self.places, self.first_actor_id, self.node_gradients = arguments[3:6]
        self.collect = SimpleNamespace(remote=lambda *_: self)
        self.told: list[dict[str, int]] = []
        self.follow = SimpleNamespace(remote=self.told.append)


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def remote(*, node: str, **_: Any) -> Any:
        def start(process: type) -> Any:
            assert process is GroupAggregator
            return SimpleNamespace(remote=lambda *arguments: Started(node, *arguments))

        return start

    monkeypatch.setattr(aggregation, "on_node", lambda node: {"node": node})

    for module in (aggregation, members):
        fake = SimpleNamespace(remote=remote, put=lambda value: value, kill=lambda *_, **__: None)
        monkeypatch.setattr(module, "ray", fake)


def executor_over(config: RunConfig, *workers: str, **settings: Any) -> tuple[GroupsExecutor, Cluster]:
    learner = LearnerConfig(gradients_per_update=K)
    config = replace(config, address="auto", aggregation="group", learner=learner, **{"actors": "auto", **settings})
    config = replace(config, evaluation=replace(config.evaluation, every_frames=0))
    cluster = Cluster(config, *workers)
    executor = GroupsExecutor(config, environment_spec(config.environment), 5, cluster, NODE)
    executor.publish(WeightSnapshot(0, np.zeros(2, np.float32)))
    return executor, cluster


def started(executor: GroupsExecutor) -> list[dict[str, int]]:
    return [member.handle.places for member in executor._members.values()]


def test_groups_start_on_their_first_nodes_and_the_learners_is_nobodys_first(cartpole: RunConfig) -> None:
    executor, _ = executor_over(cartpole, "1", "2", "3")
    assert started(executor) == [{"1": 4, "2": 4}, {"3": 4, "learner": 1}]
    assert [member.handle.node for member in executor._members.values()] == ["1", "3"]
    assert executor.actor_ids == [5, 1_000_000_005]
    assert [member.handle.first_actor_id for member in executor._members.values()] == [6, 1_000_000_006]
    assert executor.actors == 13
    assert executor.room() == 0


def test_the_most_actors_hold_over_all_groups(cartpole: RunConfig) -> None:
    executor, cluster = executor_over(cartpole, "1", "2", "3", actors="1:6", nodes_per_group=2)
    assert sum(sum(places.values()) for places in started(executor)) == 6
    cluster.there.append(Node("4", "10.0.0.4", 4.0, 2**36))
    assert executor.room() == 0


def test_a_new_node_is_told_to_the_group_that_has_room_before_its_next_call(cartpole: RunConfig) -> None:
    executor, cluster = executor_over(cartpole, "1", "2", "3", "4")
    assert started(executor) == [{"1": 4, "2": 4}, {"3": 4, "4": 4, "learner": 1}]
    first, second = executor._members.values()
    cluster.there.append(Node("5", "10.0.0.5", 4.0, 2**36))
    assert executor.room() == 0
    for actor_id in executor.actor_ids:
        executor.dispatch(actor_id)
        executor.dispatch(actor_id)
    assert first.handle.told == [{"1": 4, "2": 4, "5": 4}]
    assert second.handle.told == []
    assert executor.actors == 21
    cluster.lose("5")
    executor.dispatch(5)
    assert first.handle.told[1:] == [{"1": 4, "2": 4}]


def test_a_group_whose_head_is_lost_is_made_again_of_the_nodes_that_are_left(cartpole: RunConfig) -> None:
    executor, cluster = executor_over(cartpole, "1", "2", "3")
    cluster.lose("1")
    # Until its call fails it has what is left of it, and gets nothing more.
    assert executor.room() == 0
    executor.remove(5)
    assert executor.room() == 1
    assert executor.add() == 2_000_000_005
    assert started(executor)[-1] == {"2": 4}


def test_a_group_whose_head_drains_is_named_and_gets_no_new_nodes(cartpole: RunConfig) -> None:
    executor, cluster = executor_over(cartpole, "1", "2", "3")
    cluster.drain("1")
    assert executor.draining() == [5]
    assert executor.room() == 0
    cluster.there.append(Node("4", "10.0.0.4", 4.0, 2**36))
    for _ in range(2):
        executor.dispatch(5)
    assert executor._members[5].handle.told == [{"2": 4}]


@pytest.mark.parametrize(
    "told",
    [ChangedWithin(0, Failed(7, "gone"), 1), AtWork(0, expects_one=True)],
    ids=["something_changed", "nothing_came"],
)
def test_what_a_group_can_lose_is_its_rollouts_and_all_that_waits_in_sums(
    cartpole: RunConfig, told: ChangedWithin | AtWork
) -> None:
    executor, _ = executor_over(cartpole, "1", "2", "3")
    # Each node's actors, and of each node a sum but for its last gradient; less those of the node that waits.
    nodes = 2 * (ACTORS + NODE - 1)
    assert executor.rollouts_under_way(5) == nodes - NODE
    executor.dispatch(5)
    # All nodes have calls, and the group's sum all but its last part.
    assert executor.rollouts_under_way(5) == nodes + K - NODE
    (call,) = executor._calls.values()
    executor._calls.clear()
    assert executor._completion(call, told) == told._replace(actor_id=5)
    assert executor.rollouts_under_way(5) == nodes + K - NODE
    # The next sum is whole, and whoever completed it waits.
    executor._completion(call, AggregatedReport(0, np.zeros(2, np.float32), (), ()))
    assert executor.rollouts_under_way(5) == nodes - NODE
