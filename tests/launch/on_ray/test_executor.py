"""The executors of actors and of nodes over Ray, with processes that a test completes by hand."""

import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from fake_ray import FakeCall, FakeRay
from hand_driven import Clock, HandDrivenExecutor, report
from ray.exceptions import ActorUnschedulableError, ObjectLostError, OutOfMemoryError, RayActorError

from actors.environments import environment_spec
from launch.loop.executor import ChildEvent, Failed
from launch.on_ray import executor as ray_executor
from launch.on_ray import node_aggregator
from launch.on_ray.actor_process import ActorProcess
from launch.on_ray.cluster import ClusterSlots, disconnecting
from launch.on_ray.executor import RayExecutor, failure_reason
from launch.on_ray.node_aggregator import AggregatingExecutor, NodeAggregator
from launch.on_ray.placement import Node, Slots
from launch.on_ray.transport import Call, LocalConnection, open_channel, pickled
from shared.config import LearnerConfig, RunConfig
from shared.errors import TrainingFailedError
from shared.types import (
    AggregatedReport,
    EpisodeStats,
    EvaluationPart,
    EvaluationShare,
    GradientReport,
    Heartbeat,
    WeightSnapshot,
)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr(ray_executor, "ray", fake)
    monkeypatch.setattr(ray_executor, "on_node", lambda node: {"node": node} if node else {})
    monkeypatch.setattr(ray_executor.LocalTransport, "offer", lambda _: None)
    return fake


def made(config: RunConfig, actors: int) -> RayExecutor:
    executor = RayExecutor(replace(config, actors=actors), environment_spec(config.environment), Slots(actors))
    executor.publish(snapshot(1))
    return executor


def snapshot(version: int) -> WeightSnapshot:
    return WeightSnapshot(version, np.full(2, version, np.float32), 0)


def end(ray: FakeRay, call: FakeCall, actor_id: int, sequence: int) -> GradientReport:
    reported = report(actor_id, sequence, 1)
    ray.end(call, (reported, False))
    return reported


def completed(executor: RayExecutor) -> tuple[int, int] | None:
    completion = executor.next_completion()
    if completion is None:
        return None
    assert isinstance(completion, GradientReport)
    return completion.actor_id, completion.sequence


def test_calls_are_completed_in_the_order_of_dispatch(cartpole: RunConfig, ray: FakeRay) -> None:
    executor = made(cartpole, 3)
    assert executor.add() is None, "no slot is free"
    for actor_id in (2, 0, 1):
        executor.dispatch(actor_id)
    first, other, last = ray.calls
    end(ray, last, 1, 1)
    assert executor.has_completed(1)
    assert not executor.has_completed(0)
    assert completed(executor) == (1, 1)
    assert completed(executor) is None
    end(ray, other, 0, 1)
    end(ray, first, 2, 1)
    assert [completed(executor), completed(executor)] == [(2, 1), (0, 1)]
    assert executor.calls_in_flight == 0


def test_the_first_call_of_an_evaluation_brings_its_weights(cartpole: RunConfig, ray: FakeRay) -> None:
    executor = made(cartpole, 1)
    evaluated, share = snapshot(7), EvaluationShare(3, "greedy", 0, 4, 2)
    executor.publish_evaluation_weights(evaluated)
    part = EvaluationPart(0, 3, EpisodeStats(np.ones(0), np.ones(0, np.int64)), *(np.ones(0, np.int64),) * 3, 10)
    for version, now in enumerate((share, share, None, share._replace(number=4)), 1):
        executor.publish(snapshot(version))
        executor.dispatch(0, now)
        ray.end(ray.calls[-1], (part, False))
        assert executor.next_completion() is part
    weights, shares = zip(*((call.arguments[0].version, call.arguments[2]) for call in ray.calls), strict=True)
    assert weights == (7, 2, 3, 7), "afterwards the newest, and again those of another evaluation"
    assert shares == (share, share, None, share._replace(number=4))


UNSCHEDULABLE = ActorUnschedulableError("The actor is not schedulable: its node is gone.")


@pytest.mark.parametrize(
    ("lost", "error"),
    [(False, RayActorError()), (True, RayActorError()), (True, UNSCHEDULABLE), (True, ObjectLostError("1", "2", "3"))],
)
def test_a_node_may_end_moments_after_its_actors(
    lost: bool, error: Exception, cartpole: RunConfig, ray: FakeRay, monkeypatch
) -> None:
    config = replace(cartpole, address="auto", actors=2)
    cluster, clock, asked = Cluster(config, "1"), Clock(), list[str]()
    cluster.has_lost = lambda node: asked.append(node) or (lost and clock() >= 1.0)
    monkeypatch.setattr(ray_executor, "time", SimpleNamespace(monotonic=clock, sleep=time.sleep))
    executor = RayExecutor(config, environment_spec(config.environment), cluster)
    executor.publish(snapshot(1))
    for actor_id in (0, 1):
        executor.dispatch(actor_id)
    ray.end(ray.calls[0], error)
    end(ray, ray.calls[1], 1, 1)
    assert executor.next_completion() is None
    assert completed(executor) == (1, 1), "another actor does not wait"
    clock.now = 1.9
    executor.dispatch(1)
    assert executor.next_completion() is None
    clock.now = 2.0
    failed = executor.next_completion()
    assert isinstance(failed, Failed)
    assert (failed.actor_id, failed.node_lost) == (0, lost)
    assert asked == ["1", "1"]
    executor.remove(0)
    assert executor.next_completion() is None
    assert executor.calls_in_flight == 1


def test_actors_have_five_seconds_to_close_their_environments(cartpole: RunConfig, ray: FakeRay, monkeypatch) -> None:
    clock = Clock()
    monkeypatch.setattr(ray_executor, "time", SimpleNamespace(monotonic=clock, sleep=time.sleep))
    executor, (closed, hung) = made(cartpole, 2), ray.processes
    for actor_id in (0, 1):
        executor.remove(actor_id)
    assert [(call.process, call.method) for call in ray.calls] == [(closed, "close"), (hung, "close")]
    ray.end(ray.calls[0], None)
    for now, killed in ((0.0, [closed]), (4.9, [closed]), (5.0, [closed, hung])):
        clock.now = now
        executor.next_completion()
        assert ray.killed == killed


LEARNER = Node("learner", "10.0.0.9", 1.0, 2**36)
# Actors of a node, gradients of an update.
ACTORS, K = 4, 8


class Cluster(ClusterSlots):
    """A view of nodes that the test sets."""

    def __init__(self, config: RunConfig, *workers: str) -> None:
        super().__init__(config, LEARNER)
        self.there = [LEARNER, *(Node(name, f"10.0.0.{name}", float(ACTORS), 2**36) for name in workers)]

    def nodes(self, *, fresh: bool = False) -> list[Node]:  # noqa: ARG002
        return self.there


def executor_over(config: RunConfig, *workers: str, actors: str = "auto") -> tuple[AggregatingExecutor, Cluster]:
    learner = LearnerConfig(gradients_per_update=K)
    config = replace(config, address="auto", aggregation="node", learner=learner, actors=actors)
    cluster = Cluster(config, *workers)
    executor = AggregatingExecutor(config, environment_spec(config.environment), cluster, 5)
    executor.publish(WeightSnapshot(0, np.zeros(2, np.float32)))
    return executor, cluster


def started(ray: FakeRay) -> dict[str, tuple[int, int]]:
    """Number of actors and first actor id on each node."""
    assert {process.kind for process in ray.processes} == {NodeAggregator}
    return {
        node: (actors, process.arguments[4])
        for process in ray.processes
        for node, actors in process.arguments[2].slots_by_node().items()
    }


def test_each_node_has_an_aggregator_with_ids_of_its_own(cartpole: RunConfig, ray: FakeRay) -> None:
    executor, cluster = executor_over(cartpole, "1", "2")
    assert started(ray) == {"1": (4, 6), "2": (4, 1_000_006), "learner": (1, 2_000_006)}
    assert [process.arguments[3] for process in ray.processes] == [4, 4, 1], "what the actors give at a time"
    assert executor.actor_ids == [5, 1_000_005, 2_000_005]
    assert (executor.actors, executor.free_slots()) == (9, 0)
    cluster.there.append(Node("3", "10.0.0.3", 4.0, 2**36))
    assert executor.free_slots() == 1
    assert executor.add() == 3_000_005
    assert executor.add() is None
    executor.remove(5)
    assert executor.free_slots() == 1


def test_the_most_actors_hold_over_all_nodes(cartpole: RunConfig, ray: FakeRay) -> None:
    executor, cluster = executor_over(cartpole, "1", "2", "3", actors="1:6")
    # As in the plan of the placement.
    assert {node: actors for node, (actors, _) in started(ray).items()} == {"1": 2, "2": 2, "3": 2}
    cluster.there.append(Node("4", "10.0.0.4", 4.0, 2**36))
    assert executor.free_slots() == 0


@pytest.mark.parametrize(
    "event",
    [ChildEvent(0, Failed(7, "gone"), 1), Heartbeat(0, new_steps_follow=True)],
    ids=["an actor failed", "no sum yet"],
)
def test_a_node_can_lose_an_incomplete_sum(event: ChildEvent | Heartbeat, cartpole: RunConfig, ray: FakeRay) -> None:
    executor, _ = executor_over(cartpole, "1")
    # The actor that completed the last sum waits.
    assert executor.rollouts_under_way(5) == ACTORS - 1
    executor.dispatch(5)
    assert executor.rollouts_under_way(5) == ACTORS + K - 1
    ray.end(ray.calls[-1], (event, False))
    assert executor.next_completion() == event._replace(actor_id=5)
    assert executor.rollouts_under_way(5) == ACTORS + K - 1
    executor.dispatch(5)
    ray.end(ray.calls[-1], (AggregatedReport(0, np.ones(2, np.float32), ()), False))
    summed = executor.next_completion()
    assert isinstance(summed, AggregatedReport)
    assert summed.actor_id == 5
    assert executor.rollouts_under_way(5) == ACTORS - 1


def test_actors_that_start_between_two_calls_get_the_weights_of_the_first(cartpole: RunConfig, monkeypatch) -> None:
    """The memory that the weights came in has the next ones by then."""
    actors, published = HandDrivenExecutor(1, 1), list[WeightSnapshot]()
    actors.publish = actors.publish_target = published.append
    monkeypatch.setattr(node_aggregator, "RayExecutor", lambda *_: actors)
    node = NodeAggregator(cartpole, environment_spec(cartpole.environment), Slots(1), 1, 1, ActorProcess)
    weights, target = snapshot(1), snapshot(1)
    actors.completions.append(report(1, 1, 1))
    node.handle(Call(weights, target, None))
    for memory in (weights, target):
        memory.parameters.fill(2.0)
    assert [one.parameters.tolist() for one in published] == [[1.0, 1.0]] * 2
    # An evaluation comes with its weights, which may be older.
    actors.publish_evaluation_weights = published.append
    actors.completions.append(report(1, 2, 1))
    node.handle(Call(snapshot(0), None, EvaluationShare(1, "sampled", 0, 1, 1)))
    assert published[-1].version == 0


def test_the_reason_of_a_full_memory_is_no_pointer_to_rays_pages() -> None:
    error = OutOfMemoryError("Task was killed due to the node running low on memory.\nRefer to the documentation on …")
    assert "memory of its machine was nearly full: start fewer --actors" in failure_reason(error)
    # The learner's process.
    with pytest.raises(TrainingFailedError, match="start fewer --actors"), disconnecting():
        raise error


def test_a_target_network_is_sent_to_each_actor_once_and_when_it_is_new(cartpole: RunConfig, ray: FakeRay) -> None:
    executor, sent = made(cartpole, 2), list[int | None]()
    for sequence, (version, actor_id) in enumerate([(1, 0), (1, 0), (1, 1), (2, 0), (2, 0)], 1):
        executor.publish_target(snapshot(version))
        executor.dispatch(actor_id)
        target = ray.calls[-1].arguments[1]
        sent.append(None if target is None else target.version)
        end(ray, ray.calls[-1], actor_id, sequence)
        assert completed(executor) == (actor_id, sequence)
    assert sent == [1, None, 1, 2, None]


def test_a_report_of_this_machine_is_seen_before_it_is_taken(cartpole: RunConfig, ray: FakeRay, monkeypatch) -> None:
    monkeypatch.setattr(ray_executor.LocalTransport, "offer", lambda _: LocalConnection())
    executor = made(cartpole, 1)
    executor.dispatch(0)
    actor = open_channel(ray.calls[-1].arguments[3])
    ray.end(ray.calls[-1], (report(0, 1, 1), True))
    assert completed(executor) == (0, 1)
    executor.dispatch(0)
    assert not executor.has_completed(0), "an actor that hangs"
    actor.send(pickled(report(0, 2, 1)))
    assert executor.has_completed(0)
    assert completed(executor) == (0, 2)
    executor.remove(0)
    actor.close()
