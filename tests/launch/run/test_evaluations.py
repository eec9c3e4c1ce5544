"""Which evaluations are asked for, taken in and said, by hand: no session, no learner, no Ray."""

import json

import numpy as np
import pytest

from launch.run.stopping import (
    EvaluationRequest,
    Evaluations,
    EvaluationSchedule,
    ReturnTarget,
    TrainingPoint,
    evaluation_entry,
    evaluation_line,
)
from shared.config import EvaluationConfig
from shared.types import EpisodeStats, EvaluationPolicy, EvaluationResult, WeightSnapshot


def at(episodes: int, mean: float | None, update: int | None = None) -> TrainingPoint:
    """A moment after so many episodes: one of ten agent steps in each update."""
    return TrainingPoint(update or episodes, episodes, 10 * episodes, 40 * episodes, episodes / 2, mean)


def result(update: int, mean: float, policy: str = "sampled") -> EvaluationResult:
    returns = np.full(4, mean)
    return EvaluationResult(update, np.zeros(2, np.float32), EpisodeStats(returns, np.ones(4, np.int64)), policy=policy)


def test_an_evaluator_that_dies_is_asked_again_about_the_same_weights() -> None:
    evaluations = EvaluationSchedule(EvaluationConfig(), 0)
    snapshot, asked = WeightSnapshot(7, np.ones(2, np.float32)), EvaluationRequest(at(170, 18.0, 7), "sampled")
    evaluations.requested_confirmation(asked, snapshot)
    for now, wait in ((100.0, 1.0), (200.0, 2.0), (300.0, 4.0)):
        assert evaluations.to_repeat(now) is None
        evaluations.lost(now, backoff_seconds=1.0)
        assert evaluations.to_repeat(now + wait - 0.1) is None
        assert evaluations.to_repeat(now + wait) == (asked, snapshot)
        evaluations.requested_confirmation(asked, snapshot)
    assert evaluations.received(result(7, 19.0)) == asked
    evaluations.lost(400.0, backoff_seconds=1.0)
    assert evaluations.to_repeat(1e9) is None, "it was answered"


def test_regular_evaluations_come_every_so_many_frames_one_at_a_time() -> None:
    evaluations = EvaluationSchedule(EvaluationConfig(every_frames=100), 50)
    assert [frames for frames in (100, 149, 150, 151) if evaluations.is_due(frames)] == [150, 151]
    regular = EvaluationRequest(TrainingPoint(1, 0, 40, 160, 1.0, None), "greedy")
    evaluations.requested(regular)
    assert not evaluations.is_due(1_000)
    assert evaluations.received(result(1, 3.0, "greedy")) == regular
    assert not evaluations.is_due(259)
    assert evaluations.is_due(260)
    evaluations.requested(regular)
    evaluations.lost(1.0, backoff_seconds=1.0)
    assert evaluations.to_repeat(1e9) is None
    assert evaluations.is_due(260), "a regular one that was lost comes with the next"


def test_evaluations_under_way_go_on_from_an_exact_checkpoint() -> None:
    evaluations, restored = (EvaluationSchedule(EvaluationConfig(every_frames=100), 0) for _ in range(2))
    asked = EvaluationRequest(TrainingPoint(1, 0, 40, 160, 1.0, None), "greedy")
    evaluations.requested(asked)
    state = json.loads(json.dumps(evaluations.state(exact=True)))
    restored.restore(state, 200, exact=True)
    assert not restored.is_due(1_000)
    assert restored.received(result(1, 3.0, "greedy")) == asked
    assert [frames for frames in (259, 260) if restored.is_due(frames)] == [260]


def test_evaluations_under_way_are_lost_where_the_calls_are() -> None:
    evaluations, restored, older = (EvaluationSchedule(EvaluationConfig(every_frames=100), 0) for _ in range(3))
    evaluations.requested(EvaluationRequest(TrainingPoint(1, 0, 40, 160, 1.0, None), "greedy"))
    restored.restore(json.loads(json.dumps(evaluations.state(exact=False))), 200, exact=False)
    assert [frames for frames in (259, 260) if restored.is_due(frames)] == [260]
    # Of version 0.1.0.
    older.restore({}, 200, exact=False)
    assert [frames for frames in (299, 300) if older.is_due(frames)] == [300]


def test_an_evaluation_in_numbers_and_in_words() -> None:
    returns = EpisodeStats(np.array([18.0, 20.0, 20.0, -20.0]), np.ones(4, np.int64))
    entry = evaluation_entry(result(3, 0.0)._replace(episodes=returns, games=np.array([0, 1, 1, 2])), -20.0)
    assert (entry["episodes"], entry["distinct_games"], entry["collapsed_episodes"]) == (4, 3, 1)
    assert evaluation_line(entry) == "mean return 9.50 over 4 episodes, 3 distinct games (median 19.00, 1 collapsed)"
    # Three games, of which one weighs twice: as `tributary evaluate` has it.
    deviations = np.array([18.0 - 9.5, 2 * (20.0 - 9.5), -20.0 - 9.5]) / 4
    assert entry["standard_error"] == pytest.approx(np.sqrt(3 / 2 * np.sum(deviations**2)))
    unseen = evaluation_entry(result(3, 5.0), None)
    assert (unseen["distinct_games"], unseen["collapsed_episodes"]) == (None, None)
    for entry in (unseen, unseen | {"distinct_games": 4}):
        assert evaluation_line(entry) == "mean return 5.00 over 4 episodes (median 5.00)"


class Recorded:
    """Stands in for `Coordinator.evaluate`, with weights whose version is that of the last moment."""

    def __init__(self) -> None:
        self.calls: list[tuple[EvaluationPolicy, int | None]] = []
        self.newest = 0

    def __call__(self, policy: EvaluationPolicy, snapshot: WeightSnapshot | None) -> WeightSnapshot:
        self.calls.append((policy, None if snapshot is None else snapshot.version))
        return snapshot or WeightSnapshot(self.newest, np.ones(2, np.float32))


def ask(evaluations: Evaluations, evaluate: Recorded, moment: TrainingPoint, *, window_counts: bool = True) -> None:
    evaluate.newest = moment.update
    evaluations.request_if_due(moment, evaluate, window_counts=window_counts)


def test_weights_that_cross_the_mark_come_before_a_regular_evaluation() -> None:
    said: list[str] = []
    config = EvaluationConfig(every_frames=100, policy="greedy")
    evaluations, evaluate = Evaluations(config, 1.0, ReturnTarget(18.0, "training"), said.append), Recorded()
    ask(evaluations, evaluate, at(170, 18.0), window_counts=False)
    assert evaluate.calls == [("greedy", None)]
    assert not evaluations.receive(result(170, 30.0, "greedy"), episodes=171, untrained=None).confirmed
    ask(evaluations, evaluate, at(180, 18.0))
    assert evaluate.calls[1:] == [("sampled", None)]
    taken = evaluations.receive(result(180, 19.0), episodes=190, untrained=-20.0)
    assert taken.confirmed
    assert taken.entry == evaluations.last == evaluation_entry(result(180, 19.0), -20.0)
    assert [line.partition(":")[0] for line in said] == [
        "evaluation of update 170",
        "the mean return of the last 100 training episodes is 18.00, and the target is 18",
        "evaluation of update 180",
    ]


def test_what_an_evaluator_took_along_is_asked_again_with_the_same_weights() -> None:
    evaluations = Evaluations(EvaluationConfig(), 2.0, ReturnTarget(18.0, "training"), lambda _message: None)
    evaluate = Recorded()
    ask(evaluations, evaluate, at(170, 18.0))
    evaluations.evaluator_died(at(171, 18.0).seconds)
    ask(evaluations, evaluate, at(174, 18.0))
    assert evaluate.calls == [("sampled", None)], "its wait of two seconds is not over"
    ask(evaluations, evaluate, at(175, 18.0))
    assert evaluate.calls == [("sampled", None), ("sampled", 170)]
    assert evaluations.receive(result(170, 18.0), episodes=180, untrained=None).confirmed
