"""Evaluations of a run and the rules by which it stops."""

import json
from dataclasses import replace

import numpy as np
import pytest

from launch.run.stopping import (
    Evaluations,
    ReturnTarget,
    StoppingRules,
    TrainingPoint,
    TrainingReturns,
    collapsed_episodes,
    evaluation_entry,
    evaluation_line,
)
from shared.config import EvaluationConfig, RunConfig
from shared.types import EpisodeStats, EvaluationResult


def reported(returns: TrainingReturns, *reports: tuple[int, int]) -> None:
    """Reports of actors by their ids: how many environments of each have ended no episode yet."""
    for actor_id, unfinished in reports:
        returns.add(actor_id, [], unfinished)


def count(returns: TrainingReturns, episodes: int, actors: int) -> bool:
    returns.update(episodes, actors)
    return returns.last_count


def gone_on(returns: TrainingReturns) -> TrainingReturns:
    restored = TrainingReturns()
    restored.restore(json.loads(json.dumps(returns.state())))
    return restored


def test_the_last_100_count_once_every_environment_of_every_actor_has_ended_an_episode() -> None:
    returns = TrainingReturns()
    reported(returns, (0, 0))
    assert not count(returns, 100, actors=2), "one actor has not reported"
    reported(returns, (1, 3))
    assert not count(returns, 100, actors=2)
    reported(returns, (1, 1))
    assert not count(returns, 100, actors=2)
    reported(returns, (1, 0))
    assert not count(returns, 99, actors=2)
    assert count(returns, 100, actors=2)


def test_a_replaced_actor_starts_anew_and_a_dead_one_is_forgotten() -> None:
    returns = TrainingReturns()
    # Actor 2 replaces actor 1, which never finished.
    reported(returns, (0, 0), (1, 5), (0, 0), (2, 4))
    assert not count(returns, 100, actors=2)
    reported(returns, (2, 0))
    assert count(returns, 100, actors=2)
    # Its place is gone for good.
    assert count(returns, 100, actors=1)
    assert not count(returns, 100, actors=0)


def test_after_a_resume_each_of_the_new_actors_has_to_end_its_first_episodes() -> None:
    returns = TrainingReturns()
    reported(returns, (3, 0), (4, 0))
    assert count(returns, 100, actors=2)
    restored = gone_on(returns)
    reported(restored, (4, 0))
    assert not count(restored, 100, actors=2)


def test_untrained_play_is_that_of_the_first_100_episodes() -> None:
    returns = TrainingReturns()
    returns.add(0, [1.0] * 60, 0)
    assert returns.untrained is None
    restored = gone_on(returns)
    restored.add(0, [3.0] * 60, 0)
    restored.add(0, [1000.0], 0)
    assert restored.untrained == (60 * 1.0 + 40 * 3.0) / 100


def at(episodes: int, mean: float | None, update: int | None = None) -> TrainingPoint:
    """A training point after `episodes` episodes of ten agent steps, one in each update."""
    return TrainingPoint(update or episodes, episodes, 10 * episodes, 40 * episodes, episodes / 2, mean)


def test_a_crossing_is_confirmed_by_its_evaluation_and_not_before() -> None:
    mark = ReturnTarget(18.0, "training")
    assert not mark.crosses(at(150, 17.9), counts=True)
    assert not mark.crosses(at(160, 18.5), counts=False), "an environment is in its first episode"
    assert mark.crosses(at(170, 18.0), counts=True)
    assert not mark.crosses(at(180, 19.0), counts=True), "one question at a time"
    assert mark.first == at(170, 18.0)
    assert mark.confirmed is None
    assert mark.evaluated(18.0, at(170, 18.0), "sampled", episodes=190)
    assert mark.confirmed == mark.first == at(170, 18.0)._replace(evaluation_mean_return=18.0)
    assert not mark.crosses(at(400, 20.0), counts=True), "there is nothing more to ask"


def test_after_a_failed_evaluation_the_next_one_waits_for_100_new_episodes() -> None:
    mark = ReturnTarget(18.0, "training")
    assert mark.crosses(at(170, 18.2), counts=True)
    assert not mark.evaluated(14.92, at(170, 18.2), "sampled", episodes=200)
    assert mark.first == at(170, 18.2)._replace(evaluation_mean_return=14.92)
    assert not mark.crosses(at(299, 18.9), counts=True)
    assert mark.crosses(at(300, 18.4), counts=True)
    assert mark.evaluated(18.7, at(300, 18.4), "sampled", episodes=310)
    assert (mark.first.update, mark.confirmed.update) == (170, 300)
    assert mark.confirmed.evaluation_mean_return == 18.7


@pytest.mark.parametrize(("update", "policy"), [(171, "sampled"), (170, "greedy")])
def test_an_evaluation_of_other_weights_or_by_another_policy_confirms_nothing(update: int, policy: str) -> None:
    mark = ReturnTarget(18.0, "training")
    mark.crosses(at(170, 18.0), counts=True)
    assert not mark.evaluated(21.0, at(175, 18.0, update), policy, episodes=190)
    assert mark.evaluated(18.0, at(170, 18.0), "sampled", episodes=200)


def test_measured_by_evaluations_the_first_that_reaches_it_is_both() -> None:
    mark = ReturnTarget(475.0, "evaluation")
    assert not mark.crosses(at(200, 480.0), counts=True)
    assert not mark.evaluated(470.0, at(200, 480.0), "greedy", episodes=210)
    assert mark.first is None
    assert mark.evaluated(475.0, at(210, None), "greedy", episodes=220)
    assert mark.first == mark.confirmed == at(210, None)._replace(evaluation_mean_return=475.0)


@pytest.mark.parametrize("mean", [None, float("nan"), float("inf"), float("-inf")])
def test_a_return_that_is_not_finite_reaches_no_target(mean: float | None) -> None:
    mark = ReturnTarget(18.0, "training")
    assert not mark.crosses(at(170, mean), counts=True)
    assert mark.crosses(at(180, 18.0), counts=True)
    assert not mark.evaluated(mean, at(180, 18.0), "sampled", episodes=190)
    by_evaluations = ReturnTarget(18.0, "evaluation")
    assert not by_evaluations.evaluated(mean, at(180, 18.0), "greedy", episodes=190)
    assert mark.confirmed is by_evaluations.first is None


def test_a_mark_goes_on_from_a_checkpoint() -> None:
    mark = ReturnTarget(18.0, "training")
    mark.crosses(at(170, 18.0), counts=True)
    requested = json.loads(json.dumps(mark.state()))
    mark.evaluated(10.0, at(170, 18.0), "sampled", episodes=200)
    failed = json.loads(json.dumps(mark.state()))

    # The evaluation is lost with its process: the next crossing requests another one.
    lost = ReturnTarget(18.0, "training")
    lost.restore(requested)
    assert lost.first == at(170, 18.0)
    assert lost.crosses(at(171, 18.0), counts=True)
    waiting = ReturnTarget(18.0, "training")
    waiting.restore(failed)
    assert not waiting.crosses(at(299, 18.0), counts=True)
    assert waiting.crosses(at(300, 18.0), counts=True)
    other = ReturnTarget(19.0, "training")
    other.restore(failed)
    assert other.first is None


def test_collapsed_episodes_are_nearer_to_untrained_play_than_to_the_median() -> None:
    # The seed of Pong that crossed 18 and evaluated at 14.92: eight games lost outright, the median 19.
    returns = np.array([19.0] * 90 + [-21.0] * 6 + [-0.5, -0.8] + [5.0] * 2)
    assert collapsed_episodes(returns, -20.5) == 7, "midway is -0.75"
    assert collapsed_episodes(returns, None) is None
    assert collapsed_episodes(returns, 19.0) is None


def rules_after(config: RunConfig, frames: int, seconds: float, mark: ReturnTarget | None = None) -> str:
    rules = StoppingRules(config, mark)
    assert rules.stops(frames, seconds) is not rules.running
    return rules.status


def test_each_rule_stops_a_run_with_its_status(cartpole: RunConfig) -> None:
    config = replace(cartpole, total_frames=1_000, stop_after_seconds=60.0)
    reached = ReturnTarget(18.0, "evaluation")
    assert reached.evaluated(18.0, at(170, None), "sampled", episodes=180)
    assert rules_after(config, 999, 59.9, ReturnTarget(18.0, "evaluation")) == "running"
    assert rules_after(config, 999, 60.0) == "time_reached"
    assert rules_after(config, 1_000, 60.0) == "frames_reached"
    assert rules_after(config, 1_000, 60.0, reached) == "return_reached"
    # An interrupt comes before every limit, and the first status stays.
    rules = StoppingRules(config, None)
    rules.interrupted = True
    assert rules.stops(1_000, 1.0)
    assert not rules.stops(2_000, 2.0), "it is stopping already"
    assert rules.status == "interrupted"


def result(update: int, mean: float, policy: str = "sampled") -> EvaluationResult:
    returns = np.full(4, mean)
    return EvaluationResult(update, np.zeros(2, np.float32), EpisodeStats(returns, np.ones(4, np.int64)), policy=policy)


def crossings(evaluations: Evaluations, *episodes: int) -> list[int]:
    """After which of these episodes an evaluation is requested. The mean return is above the target after each."""
    found = list[int]()
    for count in episodes:
        evaluations.request_if_due(at(count, 19.0), lambda _, count=count: found.append(count), window_counts=True)
    return found


def test_a_confirmation_that_is_lost_with_the_evaluator_counts_as_a_failed_one() -> None:
    evaluations = Evaluations(EvaluationConfig(), ReturnTarget(18.0, "training"), lambda _message: None)
    evaluations.evaluator_died(160)
    assert crossings(evaluations, 170, 180) == [170], "none was under way"
    evaluations.evaluator_died(190)
    assert crossings(evaluations, 191, 289, 290, 400) == [290]
    assert evaluations.receive(result(290, 19.0), episodes=300, untrained=None)[1]
    evaluations.evaluator_died(310)
    assert crossings(evaluations, 1_000) == [], "it is confirmed"


def regular(every_frames: int, state: dict | None = None) -> Evaluations:
    """Evaluations without a target, restored from the state of a checkpoint that JSON has kept."""
    evaluations = Evaluations(EvaluationConfig(every_frames=every_frames, policy="greedy"), None, lambda _: None)
    if state is not None:
        evaluations.restore(json.loads(json.dumps(state)))
    return evaluations


def due(evaluations: Evaluations, *frames: int) -> list[int]:
    """At which of these frames an evaluation is requested. Each is of the weights of the update with its number."""
    found = list[int]()
    for count in frames:
        point = TrainingPoint(count, 0, count // 4, count, 1e6, None)
        evaluations.request_if_due(point, lambda _, count=count: found.append(count), window_counts=True)
    return found


def test_regular_evaluations_come_every_so_many_frames_one_at_a_time() -> None:
    evaluations = regular(100, regular(100).state() | {"evaluated_frames": 50})
    assert due(evaluations, 100, 149, 150, 151, 1_000) == [150]
    point, _ = evaluations.receive(result(150, 3.0, "greedy"), episodes=1, untrained=None)
    assert point["frames"] == 150
    assert due(evaluations, 249, 250, 1_000) == [250]
    evaluations.evaluator_died(1)
    assert due(evaluations, 349, 350) == [350], "one that was lost comes with the next"


def test_evaluations_under_way_are_lost_in_a_resume() -> None:
    evaluations = regular(100)
    assert due(evaluations, 160) == [160]
    restored = regular(100, evaluations.state())
    assert due(restored, 259, 260) == [260]


def test_an_evaluation_in_numbers_and_in_words() -> None:
    returns = EpisodeStats(np.array([18.0, 20.0, 20.0, -20.0]), np.ones(4, np.int64))
    entry = evaluation_entry(result(3, 0.0)._replace(episodes=returns, games=np.array([0, 1, 1, 2])), -20.0)
    assert (entry["episodes"], entry["distinct_games"], entry["collapsed_episodes"]) == (4, 3, 1)
    assert evaluation_line(entry) == "mean return 9.50 over 4 episodes, 3 distinct games (median 19.00, 1 collapsed)"
    unseen = evaluation_entry(result(3, 5.0), None)
    assert (unseen["distinct_games"], unseen["collapsed_episodes"]) == (None, None)
    for entry in (unseen, unseen | {"distinct_games": 4}):
        assert evaluation_line(entry) == "mean return 5.00 over 4 episodes (median 5.00)"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_evaluation_with_a_return_that_is_not_finite_has_no_mean(bad: float) -> None:
    returns = EpisodeStats(np.array([18.0, bad, 20.0, -bad]), np.ones(4, np.int64))
    entry = evaluation_entry(result(3, 0.0)._replace(episodes=returns), -20.0)
    figures = ("mean_return", "median_return", "collapsed_episodes", "standard_error")
    assert [entry[name] for name in figures] == [None] * 4
    assert evaluation_line(entry) == "no mean return over 4 episodes: not all returns are finite"


def test_weights_that_cross_the_mark_come_before_a_regular_evaluation() -> None:
    said, requested = list[str](), list[str]()
    config = EvaluationConfig(every_frames=100, policy="greedy")
    evaluations = Evaluations(config, ReturnTarget(18.0, "training"), said.append)
    evaluations.request_if_due(at(170, 18.0), requested.append, window_counts=False)
    assert requested == ["greedy"]
    assert not evaluations.receive(result(170, 30.0, "greedy"), episodes=171, untrained=None)[1]
    evaluations.request_if_due(at(180, 18.0), requested.append, window_counts=True)
    assert requested[1:] == ["sampled"]
    point, confirmed = evaluations.receive(result(180, 19.0), episodes=190, untrained=-20.0)
    assert confirmed
    assert evaluations.last == evaluation_entry(result(180, 19.0), -20.0)
    assert point == evaluations.last | {"frames": 7200, "agent_steps": 1800, "elapsed_seconds": 90.0}
    assert [line.partition(":")[0] for line in said] == [
        "evaluation of update 170",
        "the mean return of the last 100 training episodes is 18.00, and the target is 18",
        "evaluation of update 180",
    ]
