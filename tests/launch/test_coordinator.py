"""The asynchronous loop, driven by hand: a tape of exact call order, and no barrier."""

from collections import deque

import numpy as np
import pytest

from launch.coordinator import ActorsLostError, Coordinator, Failed, Replaced
from learner.learner import Learner, Outcome
from shared.config import RunConfig
from shared.layout import ParameterLayout
from shared.types import EpisodeStats, EvaluationResult, GradientReport, StageSeconds

LAYOUT = ParameterLayout(("w",), ((2,),))


def report(actor_id: int, sequence: int, version: int) -> GradientReport:
    return GradientReport(
        actor_id,
        sequence,
        version,
        LAYOUT.fingerprint,
        np.ones(2, np.float32),
        1,
        EpisodeStats(np.empty(0), np.empty(0, np.int64)),
        StageSeconds(0, 0, 0, 0, 0),
        {},
    )


class HandDrivenExecutor:
    """Completes what the test says, in the test's order, and keeps a tape."""

    def __init__(self, actors: int) -> None:
        self.tape: list[str] = []
        self.completions: deque = deque()
        self._alive = list(range(actors))
        self._next_id = actors
        self.calls_in_flight = 0

    @property
    def actor_ids(self):
        return list(self._alive)

    def publish(self, snapshot) -> None:
        self.tape.append(f"publish {snapshot.version}")

    def publish_target(self, snapshot) -> None:
        self.tape.append(f"publish target {snapshot.version}")

    def dispatch(self, actor_id: int) -> None:
        self.tape.append(f"dispatch {actor_id}")
        self.calls_in_flight += 1

    def evaluate(self) -> None:
        self.tape.append("evaluate")
        self.calls_in_flight += 1

    def next_completion(self):
        self.calls_in_flight -= 1
        return self.completions.popleft()

    def replace(self, actor_id: int) -> int:
        self.tape.append(f"replace {actor_id}")
        self._alive.remove(actor_id)
        self._alive.append(self._next_id)
        self._next_id += 1
        return self._alive[-1]

    def close(self) -> None:
        self.tape.append("close")


def make(config: RunConfig, actors: int, calls: int = 1, max_restarts: int = 1):
    executor = HandDrivenExecutor(actors)
    learner = Learner(config, LAYOUT, np.zeros(2, np.float32))
    return executor, learner, Coordinator(learner, executor, calls_per_actor=calls, max_restarts=max_restarts)


def test_the_actor_that_reported_leaves_at_once_with_the_newest_weights(cartpole: RunConfig) -> None:
    executor, learner, coordinator = make(cartpole, actors=3)
    executor.completions += [report(2, 1, 0), report(2, 2, 1), report(0, 1, 0)]
    events = coordinator.run()
    outcomes = [next(events) for _ in range(3)]
    assert executor.tape == [
        *("publish 0", "dispatch 0", "dispatch 1", "dispatch 2"),
        *("publish 1", "dispatch 2", "publish 2", "dispatch 2", "publish 3", "dispatch 0"),
    ]
    assert [outcome.policy_lag for outcome in outcomes] == [0, 0, 2]
    assert learner.version == 3


def test_a_second_call_is_queued_per_actor(cartpole: RunConfig) -> None:
    executor, _, coordinator = make(cartpole, actors=2, calls=2)
    executor.completions += [report(0, 1, 0)]
    next(coordinator.run())
    assert executor.tape[:5] == ["publish 0", "dispatch 0", "dispatch 1", "dispatch 0", "dispatch 1"]


def test_after_stop_what_is_in_flight_is_taken_in_and_nothing_is_sent(cartpole: RunConfig) -> None:
    executor, learner, coordinator = make(cartpole, actors=2)
    executor.completions += [report(0, 1, 0), report(1, 1, 0), report(0, 2, 1)]
    events = coordinator.run()
    next(events)
    coordinator.stop()
    sent = len(executor.tape)
    assert all(isinstance(event, Outcome) for event in events)
    assert len(executor.tape) == sent
    assert learner.ledger.sampled == 3


def test_a_dead_actor_is_replaced_until_the_limit(cartpole: RunConfig) -> None:
    executor, _, coordinator = make(cartpole, actors=2)
    executor.completions += [Failed(1, "gone"), Failed(2, "gone too")]
    events = coordinator.run()
    assert next(events) == Replaced(Failed(1, "gone"), 2)
    assert executor.tape[-2:] == ["replace 1", "dispatch 2"]
    with pytest.raises(ActorsLostError, match="gone too"):
        next(events)


def test_evaluation_runs_beside_training_with_the_current_weights(cartpole: RunConfig) -> None:
    executor, _, coordinator = make(cartpole, actors=1)
    result = EvaluationResult(1, np.zeros(2, np.float32), EpisodeStats(np.ones(1), np.ones(1, np.int64)))
    executor.completions += [report(0, 1, 0), report(0, 2, 1), result]
    events = coordinator.run()
    next(events)
    coordinator.evaluate()
    assert coordinator.evaluating
    assert isinstance(next(events), Outcome)
    assert next(events) is result
    assert not coordinator.evaluating
    assert executor.tape.count("evaluate") == 1
