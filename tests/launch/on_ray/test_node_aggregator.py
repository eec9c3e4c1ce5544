"""Which aggregators the executor of nodes starts where, and what it may lose; no process is started."""

from dataclasses import replace

import numpy as np
import pytest
from fake_ray import FakeRay

from actors.environments import environment_spec
from launch.loop.executor import ChildEvent, Failed, Heartbeat
from launch.on_ray import executor as ray_executor
from launch.on_ray.cluster import ClusterView
from launch.on_ray.node_aggregator import NodeAggregator, NodesExecutor
from launch.on_ray.placement import Node
from shared.config import LearnerConfig, RunConfig
from shared.types import AggregatedReport, WeightSnapshot

LEARNER = Node("learner", "10.0.0.9", 1.0, 2**36)
# Actors of a node, gradients of an update.
ACTORS, K = 4, 8


class Cluster(ClusterView):
    """A view of nodes that the test sets."""

    def __init__(self, *workers: str) -> None:
        super().__init__(LEARNER)
        self.there = [LEARNER, *(Node(name, f"10.0.0.{name}", float(ACTORS), 2**36) for name in workers)]

    def nodes(self, *, fresh: bool = False) -> list[Node]:  # noqa: ARG002
        return self.there


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr(ray_executor, "ray", fake)
    monkeypatch.setattr(ray_executor, "on_node", lambda node: {"node": node})
    return fake


def executor_over(config: RunConfig, *workers: str, actors: str = "auto") -> tuple[NodesExecutor, Cluster]:
    learner = LearnerConfig(gradients_per_update=K)
    evaluation = replace(config.evaluation, every_frames=0)
    config = replace(config, address="auto", aggregation="node", learner=learner, evaluation=evaluation, actors=actors)
    cluster = Cluster(*workers)
    executor = NodesExecutor(config, environment_spec(config.environment), 0, 5, cluster)
    executor.publish(WeightSnapshot(0, np.zeros(2, np.float32)))
    return executor, cluster


def started(ray: FakeRay) -> dict[str, tuple[int, int]]:
    """Number of actors and first actor id on each node."""
    assert {process.kind for process in ray.processes} == {NodeAggregator}
    return {process.options["node"]: process.arguments[2:4] for process in ray.processes}


def test_each_node_has_an_aggregator_with_ids_of_its_own(cartpole: RunConfig, ray: FakeRay) -> None:
    executor, cluster = executor_over(cartpole, "1", "2")
    assert started(ray) == {"1": (4, 6), "2": (4, 1_000_006), "learner": (1, 2_000_006)}
    assert executor.actor_ids == [5, 1_000_005, 2_000_005]
    assert (executor.actors, executor.free_slots()) == (9, 0)
    cluster.there.append(Node("3", "10.0.0.3", 4.0, 2**36))
    assert executor.free_slots() == 1
    assert executor.add() == 3_000_005
    assert executor.add() is None
    cluster.there = [replace(node, draining=node.id == "1") for node in cluster.there]
    assert executor.draining() == [5]
    executor.remove(5)
    assert executor.free_slots() == 0


def test_the_most_actors_hold_over_all_nodes(cartpole: RunConfig, ray: FakeRay) -> None:
    executor, cluster = executor_over(cartpole, "1", "2", "3", actors="1:6")
    assert sum(actors for actors, _ in started(ray).values()) == 6
    cluster.there.append(Node("4", "10.0.0.4", 4.0, 2**36))
    assert executor.free_slots() == 0


@pytest.mark.parametrize(
    "event",
    [ChildEvent(0, Failed(7, "gone"), 1), Heartbeat(0, expects_report=True)],
    ids=["an actor failed", "no sum yet"],
)
def test_a_node_can_lose_its_rollouts_and_the_gradients_of_an_incomplete_sum(
    event: ChildEvent | Heartbeat, cartpole: RunConfig, ray: FakeRay
) -> None:
    executor, _ = executor_over(cartpole, "1")
    # The actor that completed the last sum waits.
    assert executor.rollouts_under_way(5) == ACTORS - 1
    executor.dispatch(5)
    assert executor.rollouts_under_way(5) == ACTORS + K - 1
    ray.end(ray.calls[-1], event)
    assert executor.next_completion() == event._replace(actor_id=5)
    assert executor.rollouts_under_way(5) == ACTORS + K - 1
    executor.dispatch(5)
    ray.end(ray.calls[-1], AggregatedReport(0, np.ones(2, np.float32), (), ()))
    summed = executor.next_completion()
    assert isinstance(summed, AggregatedReport)
    assert summed.actor_id == 5
    assert executor.rollouts_under_way(5) == ACTORS - 1
