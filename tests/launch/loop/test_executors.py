"""The gradient aggregator of a node, driven by hand; and the inline executor in simulated time."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hand_driven import HandDrivenExecutor, part
from learners import gradient_report

from actors.environments import environment_spec
from actors.policy import Policy
from launch.loop.aggregator import GradientAggregator
from launch.loop.executor import ChildEvent, Failed, Replaced
from launch.loop.inline import InlineExecutor
from shared.config import EvaluationConfig, MethodConfig, RunConfig, SupervisionConfig
from shared.types import AggregatedReport, EvaluationPart, EvaluationShare, GradientReport, Heartbeat, WeightSnapshot

NAN = float("nan")


def report(actor_id: int, sequence: int, *gradient: float) -> GradientReport:
    """A report as actors make it, which names a gradient that is not finite."""
    made = gradient_report(actor_id, sequence, gradient=np.array(gradient, np.float32))
    return made._replace(non_finite="" if np.isfinite(gradient).all() else "gradient")


class Node:
    """An aggregator over actors with ids from 1."""

    def __init__(self, actors: int, k: int, **settings: Any) -> None:
        self.actors = HandDrivenExecutor(actors, 1)
        self._aggregator = GradientAggregator(
            self.actors, k, SupervisionConfig(**settings), EvaluationConfig(environments=6), self.actors.clock
        )  # type: ignore[arg-type]

    def collect(
        self, *completions: Any, version: int = 7, target: int | None = None, share: EvaluationShare | None = None
    ) -> Any:
        self.actors.completions += completions
        self.actors.tape.clear()
        parameters = np.zeros(2, np.float32)
        return self._aggregator.collect(
            WeightSnapshot(version, parameters), None if target is None else WeightSnapshot(target, parameters), share
        )


def test_a_sum_is_of_the_first_k() -> None:
    node = Node(actors=3, k=2)
    summed = node.collect(report(2, 1, 1.0, 2.0), report(1, 1, 10.0, 20.0), target=3)
    assert isinstance(summed, AggregatedReport)
    np.testing.assert_array_equal(summed.gradient, [11.0, 22.0])
    assert [r.actor_id for r in summed.reports] == [2, 1]
    start = ["publish 7", "publish target 3", "dispatch 1", "dispatch 2", "dispatch 3"]
    assert node.actors.tape == [*start, "dispatch 2"]
    node.collect(report(3, 1, 1.0, 2.0), report(2, 2, 1.0, 2.0))
    assert node.actors.tape == ["dispatch 1", "dispatch 3"], "each version is published once"
    node.collect(report(1, 2, 1.0, 2.0), report(3, 2, 1.0, 2.0), version=8)
    assert node.actors.tape == ["publish 8", "dispatch 2", "dispatch 1"]


def test_a_sum_is_that_of_numpy_to_the_bit() -> None:
    gradients = np.random.default_rng(0).normal(size=(6, 100)).astype(np.float32)
    reports = [gradient_report(1 + n % 3, 1 + n // 3, gradient=gradient.copy()) for n, gradient in enumerate(gradients)]
    node = Node(actors=3, k=6)
    total = functools.reduce(np.add, gradients)
    for sequence in (0, 2):
        again = [one._replace(sequence=one.sequence + sequence) for one in reports]
        summed = node.collect(*again, version=sequence)
        assert summed.gradient.dtype == np.float32
        np.testing.assert_array_equal(summed.gradient, total)
        np.testing.assert_array_equal([one.gradient for one in reports], gradients)


def test_a_dead_actor_is_replaced_and_the_sum_so_far_is_kept() -> None:
    # The limit on replacements is the run's.
    node = Node(actors=3, k=3, max_restarts=0)
    assert node.collect(report(1, 1, 1.0, 0.0), Failed(2, "gone")) == ChildEvent(0, Failed(2, "gone"), 1, None)
    assert node.actors.tape[-4:] == ["dispatch 1", "remove 2", "add 4", "dispatch 4"]
    assert node.collect() == ChildEvent(0, Replaced(Failed(2, "gone"), 4))
    summed = node.collect(report(3, 1, 2.0, 0.0), report(4, 1, 4.0, 0.0))
    assert node.actors.actor_ids == [1, 3, 4]
    assert node.actors.tape == ["dispatch 3"]
    # The first gradient came before the death.
    np.testing.assert_array_equal(summed.gradient, [7.0, 0.0])
    assert [r.actor_id for r in summed.reports] == [1, 3, 4]


def test_a_slow_sum_is_kept_and_a_heartbeat_comes_instead() -> None:
    node = Node(actors=2, k=2, start_seconds=60.0, hang_seconds=20.0)
    assert node.collect(report(1, 1, 1.0, 1.0), 4.0, 1.0) == Heartbeat(0, new_steps_follow=True)
    assert node.collect(5.0, version=8) == Heartbeat(0, new_steps_follow=True)
    assert node.actors.tape == ["publish 8"]
    summed = node.collect(4.0, report(2, 1, 2.0, 2.0))
    assert isinstance(summed, AggregatedReport)
    assert [r.actor_id for r in summed.reports] == [1, 2]


@pytest.mark.parametrize("actors", [2, 0])
def test_heartbeats_come_within_the_silence_that_is_allowed_before_the_first_sum(actors: int) -> None:
    node = Node(actors, k=2, start_seconds=60.0, hang_seconds=1000.0)
    assert node.collect(16.0) == Heartbeat(0, new_steps_follow=actors > 0)


def test_the_actors_of_a_node_play_its_share_and_train_on() -> None:
    node, share = Node(actors=2, k=1), EvaluationShare(5, "sampled", 2, 4, 1)
    node.collect(report(1, 1, 1.0, 1.0))
    # Actor 1 waits for this call, and actor 2 still plays a rollout.
    node.collect(report(2, 1, 1.0, 1.0), version=6, share=share)
    assert node.actors.tape == ["publish evaluated 6", "evaluate 1"], "older weights are none to train with"
    first = part(node.actors, 1, 3.0, 4.0)
    assert node.collect(first, version=9, share=share) is first
    assert node.actors.shares == {1: share._replace(size=2), 2: share._replace(first=4, size=2)}
    assert node.actors.tape == ["publish 9", "evaluate 2", "dispatch 1"], "it has played its share"
    # No share: the learner's process waits for other nodes. Then comes the next wave.
    node.collect(part(node.actors, 2), version=9)
    assert node.actors.tape == ["dispatch 2"]
    share = share._replace(episodes=2)
    node.collect(report(1, 2, 1.0, 1.0), version=9, share=share)
    node.collect(part(node.actors, 1), version=9, share=share)
    assert node.actors.tape == ["evaluate 1", "evaluate 1"]


def test_actors_without_a_share_wait_while_the_run_stops() -> None:
    node, share = Node(actors=2, k=2, hang_seconds=20.0), EvaluationShare(5, "sampled", 0, 1, 1, alone=True)
    node.collect(report(2, 1, 1.0, 1.0), report(1, 1, 1.0, 1.0))
    # Actor 2 has the share, and ends the rollout that was under way first. Before that no sum has begun.
    assert node.collect(6.0, share=share) == Heartbeat(0, new_steps_follow=False)
    assert node.collect(report(2, 2, 1.0, 1.0), 6.0, share=share) == Heartbeat(0, new_steps_follow=True)
    assert node.actors.tape == ["evaluate 2"]
    # Then the sum is completed.
    node.collect(part(node.actors, 2, 3.0), share=share)
    assert isinstance(node.collect(report(1, 2, 1.0, 1.0)), AggregatedReport)
    assert sorted(node.actors.tape) == ["dispatch 1", "dispatch 2"]


def test_a_part_of_an_evaluation_before_is_not_passed_on() -> None:
    node, share = Node(actors=1, k=1, hang_seconds=20.0), EvaluationShare(5, "sampled", 0, 2, 1)
    node.collect(report(1, 1, 1.0, 1.0))
    node.collect(6.0, share=share)
    late = part(node.actors, 1, 3.0, 4.0)
    node.collect(late, 6.0, version=8, share=share._replace(number=6))
    assert node.actors.tape == ["publish 8", "publish evaluated 8", "evaluate 1"]
    again = part(node.actors, 1, 5.0, 6.0)
    assert node.collect(again, share=share._replace(number=6)) is again


def test_a_non_finite_gradient_is_in_no_sum_and_counted() -> None:
    node = Node(actors=2, k=2)
    summed = node.collect(
        report(1, 1, NAN, 1.0), report(2, 1, 1.0, 2.0), report(1, 2, 1.0, NAN), report(1, 3, 3.0, 4.0)
    )
    assert [not r.non_finite for r in summed.reports] == [False, True, False, True]
    assert [r.actor_id for r in summed.reports] == [1, 2, 1, 1]
    np.testing.assert_array_equal(summed.gradient, [4.0, 6.0])


def test_too_many_non_finite_gradients_in_a_row_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launch.loop.aggregator.MAX_NON_FINITE_IN_A_ROW", 2)
    node = Node(actors=1, k=3)
    bad = [report(1, n, NAN, 0.0) for n in (1, 2, 4, 5, 6)]
    summed = node.collect(*bad[:2], report(1, 3, 1.0, 1.0), *bad[2:])
    # Two, then one that is finite, then three in a row: the learner stops the run at the third.
    assert [not r.non_finite for r in summed.reports] == [False, False, True, False, False, False]
    np.testing.assert_array_equal(summed.gradient, [1.0, 1.0])


def fresh_executor(config: RunConfig, actors: int, **settings: Any) -> tuple[InlineExecutor, Callable[[int], None]]:
    """An executor whose actors take fresh gradients, each with a call in flight; and a function that publishes."""
    config = replace(config, executor="inline", actor=replace(config.actor, fresh_gradients=True, **settings))
    spec = environment_spec(config.environment)
    executor, parameters = InlineExecutor(config, spec, actors), Policy(config, spec).initial_parameters()

    def publish(version: int) -> None:
        executor.publish(WeightSnapshot(version, parameters))
        executor.publish_evaluation_weights(WeightSnapshot(version, parameters))

    publish(0)
    for actor_id in executor.actor_ids:
        executor.dispatch(actor_id)
    return executor, publish


def test_a_call_has_the_target_network_of_its_dispatch(cartpole: RunConfig) -> None:
    config = replace(cartpole, method=MethodConfig(name="q_learning"))
    spec, gradients = environment_spec(config.environment), []
    weights = Policy(config, spec).initial_parameters()
    for target, later in ((1, 2), (1, 3), (2, 3)):
        executor = InlineExecutor(config, spec, 1)
        executor.publish(WeightSnapshot(0, weights))
        executor.publish_target(WeightSnapshot(target, target * weights))
        executor.dispatch(0)
        executor.publish_target(WeightSnapshot(later, later * weights))
        gradients.append(executor.next_completion().gradient)
    np.testing.assert_array_equal(gradients[0], gradients[1])
    assert not np.allclose(gradients[0], gradients[2])


def test_actors_play_ahead_one_rollout_a_call(cartpole: RunConfig) -> None:
    """So that a run of many actors that is stopped meanwhile ends after one rollout of each."""
    executor, _ = fresh_executor(cartpole, 6)
    turns = []
    while not (completion := executor.next_completion()).new_steps_follow:
        turns.append(completion.actor_id)
        executor.dispatch(completion.actor_id)
    rollouts = 1024 // (cartpole.actor.environments * cartpole.actor.unroll_length)
    assert 6 < len(turns) <= 6 * rollouts
    assert turns[:6] == list(range(6))
    others = [executor.next_completion() for _ in range(5)]
    assert all(isinstance(other, Heartbeat) and other.new_steps_follow for other in others), "nobody plays ahead"


@pytest.mark.parametrize("minibatches", [1, 5])
@pytest.mark.usefixtures("no_warm_up")
def test_few_fresh_gradients_meet(minibatches: int, cartpole: RunConfig) -> None:
    """A gradient takes a fifth of an actor's cycle, so that two of 10 actors compute theirs at the same time.

    Each of five over a fifth of a rollout takes a fifth of that. Their order changes, as that of processes does.
    """
    executor, publish = fresh_executor(cartpole, 10, minibatches=minibatches)
    lags, order = [], []
    while len(order) < 40:
        completion = executor.next_completion()
        if isinstance(completion, GradientReport):
            lags.append(len(order) - completion.version)
            order.append(completion.actor_id)
            publish(len(order))
        executor.dispatch(completion.actor_id)
    assert 1.0 < np.mean(lags[10:]) < 2.5
    assert order[10:20] != order[20:30] != order[30:40]


@pytest.mark.usefixtures("no_warm_up")
def test_an_evaluation_takes_no_simulated_time(cartpole: RunConfig) -> None:
    orders: list[list[int]] = []
    for share in (None, EvaluationShare(1, "sampled", 0, 2, 9)):
        executor, _ = fresh_executor(cartpole, 4)
        order: list[int] = []
        while len(order) < 20:
            completion = executor.next_completion()
            evaluated = isinstance(completion, EvaluationPart)
            order += [] if evaluated else [completion.actor_id]
            executor.dispatch(completion.actor_id, None if evaluated else share)
        orders.append(order)
    assert orders[0] == orders[1]


def test_an_actor_that_dies_names_the_evaluation_of_its_share() -> None:
    node, share = Node(actors=2, k=1), EvaluationShare(5, "sampled", 0, 1, 1)
    node.collect(report(1, 1, 1.0, 1.0))
    # The only environment is actor 2's.
    for actor_id, number in ((1, None), (2, 5)):
        event = node.collect(Failed(actor_id, "gone"), share=share)
        assert (event.change, event.evaluation) == (Failed(actor_id, "gone"), number)
        assert isinstance(node.collect(share=share).change, Replaced)
