"""The asynchronous loop, driven by hand: a tape of exact call order, and no barrier."""

import numpy as np
from hand_driven import make, report

from learner.learner import Outcome
from shared.config import RunConfig
from shared.types import EpisodeStats, EvaluationResult


def test_the_actor_that_reported_leaves_at_once_with_the_newest_weights(cartpole: RunConfig) -> None:
    executor, events, _, learner = make(cartpole, actors=3)
    executor.completions += [report(2, 1, 0), report(2, 2, 1), report(0, 1, 0)]
    outcomes = [next(events) for _ in range(3)]
    assert executor.tape == [
        *("publish 0", "dispatch 0", "dispatch 1", "dispatch 2"),
        *("publish 1", "dispatch 2", "publish 2", "dispatch 2", "publish 3", "dispatch 0"),
    ]
    assert [outcome.policy_lag for outcome in outcomes] == [0, 0, 2]
    assert learner.version == 3


def test_a_second_call_is_queued_per_actor(cartpole: RunConfig) -> None:
    executor, events, *_ = make(cartpole, actors=2, calls=2)
    executor.completions += [report(0, 1, 0)]
    next(events)
    assert executor.tape[:5] == ["publish 0", "dispatch 0", "dispatch 1", "dispatch 0", "dispatch 1"]


def test_after_stop_what_is_in_flight_is_taken_in_and_nothing_is_sent(cartpole: RunConfig) -> None:
    executor, events, coordinator, learner = make(cartpole, actors=2)
    executor.completions += [report(0, 1, 0), report(1, 1, 0), report(0, 2, 1)]
    next(events)
    coordinator.stop()
    sent = len(executor.tape)
    assert all(isinstance(event, Outcome) for event in events)
    assert len(executor.tape) == sent
    assert learner.account.ledger.sampled == 3


def test_rollouts_that_a_clean_stop_does_not_wait_for_are_counted(cartpole: RunConfig) -> None:
    executor, events, coordinator, _ = make(cartpole, actors=2)
    executor.completions += [report(0, 1, 0), report(1, 1, 0), report(0, 2, 1)]
    next(events)
    coordinator.stop()
    # Actor 1 stands for three, of which two play on after the call has ended.
    executor.under_way[1] += 2
    assert len(list(events)) == 2
    assert coordinator.rollouts_lost == 2


def test_a_stop_waits_for_evaluations_until_they_are_given_up(cartpole: RunConfig) -> None:
    executor, events, coordinator, _ = make(cartpole, actors=1)
    executor.completions += [report(0, 1, 0), None, report(0, 2, 1), None]
    next(events)
    coordinator.evaluate("sampled")
    coordinator.stop()
    # The rollout under way is taken in, and then it waits.
    assert [type(next(events)) for _ in range(3)] == [type(None), Outcome, type(None)]
    assert coordinator.evaluations_under_way == 1
    coordinator.give_up_evaluations()
    assert list(events) == []


def test_evaluation_runs_beside_training_with_the_current_weights(cartpole: RunConfig) -> None:
    executor, events, coordinator, _ = make(cartpole, actors=1)
    result = EvaluationResult(1, np.zeros(2, np.float32), EpisodeStats(np.ones(1), np.ones(1, np.int64)))
    executor.completions += [report(0, 1, 0), report(0, 2, 1), result]
    next(events)
    coordinator.evaluate("sampled")
    assert isinstance(next(events), Outcome)
    assert next(events) is result
    assert executor.tape.count("evaluate 1 sampled") == 1
