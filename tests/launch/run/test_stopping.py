"""Evaluations of a run and the rules by which it stops."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from launch.loop.evaluation import EvaluationLost, EvaluationResult, GoesOn, evaluation_entry, evaluation_line
from launch.run.returns import TrainingReturns
from launch.run.stopping import (
    Evaluations,
    TrainingPoint,
    confirmed_mean,
    expected_maximum,
    predicted_verdict,
    reason_to_stop,
)
from shared.config import EvaluationConfig, RunConfig
from shared.types import EpisodeStats, WeightSnapshot


def at(episodes: int, mean: float | None = 19.0, recent: float | None = None) -> TrainingPoint:
    """A training point after `episodes` episodes of ten agent steps and half a second, one in each update."""
    return TrainingPoint(episodes, episodes, 10 * episodes, 40 * episodes, episodes / 2, mean, recent_return=recent)


def evaluations_of(
    target: float | None = 18.0, measure: Any = "training", every_frames: int = 0, log: Any = lambda _: None
) -> Evaluations:
    """The mean of the last training episodes counts, and that of untrained play is -20."""
    returns, evaluation = TrainingReturns(1), EvaluationConfig(every_frames=every_frames, policy="greedy")
    returns.is_representative, returns.untrained = True, -20.0
    return Evaluations(RunConfig(stop_at_return=target, stop_measure=measure, evaluation=evaluation), returns, log)


def restored(evaluations: Evaluations, **options: Any) -> Evaluations:
    """Evaluations that go on from the checkpoint of others."""
    found = evaluations_of(**options)
    found.returns.untrained = None
    found.restore(json.loads(json.dumps(evaluations.state())))
    return found


def requested(
    evaluations: Evaluations, *points: TrainingPoint, begins: bool = True
) -> list[tuple[int, str, GoesOn | None]]:
    """The update, the policy and the rule of an early end of each evaluation that is requested at these points."""
    found = list[tuple[int, str, GoesOn | None]]()
    for point in points:

        def evaluate(policy: str, _: EvaluationConfig, goes_on: GoesOn | None, point: TrainingPoint = point) -> bool:
            found.append((point.update, policy, goes_on))
            return begins

        evaluations.request_if_due(point, evaluate)
    return found


def updates(evaluations: Evaluations, *points: TrainingPoint) -> list[int]:
    """The updates at which an evaluation is requested."""
    return [update for update, _, _ in requested(evaluations, *points)]


def result(update: int, mean: float, agent_steps: int = 40) -> EvaluationResult:
    episodes = EpisodeStats(np.full(4, mean), np.ones(4, np.int64))
    snapshot = WeightSnapshot(update, np.zeros(2, np.float32))
    return EvaluationResult(snapshot, episodes, "sampled", np.arange(4), agent_steps)


def confirmed(evaluations: Evaluations, mean: float, now: TrainingPoint, agent_steps: int = 40) -> bool:
    return evaluations.receive(result(now.update, mean, agent_steps), now)[1]


def test_a_crossing_is_confirmed_by_its_evaluation_and_not_before() -> None:
    evaluations = evaluations_of()
    assert updates(evaluations, at(150, 17.9), at(160, 12.0, recent=17.9)) == []
    evaluations.returns.is_representative = False
    assert updates(evaluations, at(165, 18.5)) == [], "an environment is in its first episode"
    evaluations.returns.is_representative = True
    assert updates(evaluations, at(170, 18.0), at(180)) == [170], "one at a time"
    assert (evaluations.first, evaluations.confirmed) == (at(170, 18.0), None)
    assert confirmed(evaluations, 18.0, at(190))
    assert evaluations.confirmed == evaluations.first == at(170, 18.0)._replace(evaluation_mean_return=18.0)
    assert updates(evaluations, at(400)) == [], "there is nothing more to confirm"
    assert updates(evaluations_of(), at(160, 12.5, recent=18.1)) == [160], "the latest rewards cross first"


def test_after_a_failed_confirmation_the_next_one_waits() -> None:
    """Also after a resume. Ten agent steps an episode."""
    evaluations = evaluations_of()
    assert updates(evaluations, at(170)) == [170]
    # It takes 1,600 agent steps: 800 new ones are half as many.
    assert not confirmed(evaluations, 14.92, at(170), 1_600)
    assert evaluations.first == at(170)._replace(evaluation_mean_return=14.92)
    evaluations = restored(evaluations)
    assert updates(evaluations, at(249), at(250)) == [250]
    # With 2,400 more it is 4,000: as many as of training, and half as many for the latest rewards.
    assert not confirmed(evaluations, 17.0, at(250), 2_400)
    evaluations = restored(evaluations)
    assert updates(evaluations, at(399), at(410, 17.0, recent=20.0), at(799, 17.0, recent=20.0), at(400)) == [400]
    # The third try, of four episodes.
    assert confirmed(evaluations, 60.0, at(400))
    assert (evaluations.first.update, evaluations.confirmed.update) == (170, 400)
    assert evaluations.confirmed.evaluation_mean_return == 60.0
    for other in ({"target": 19.0}, {"measure": "evaluation", "every_frames": 400}):
        assert restored(evaluations, **other).first is None, "another target was not crossed"


def test_measured_by_evaluations_the_first_that_reaches_it_is_both() -> None:
    evaluations = evaluations_of(measure="evaluation", every_frames=400)
    assert updates(evaluations, at(200)) == [200]
    assert not confirmed(evaluations, 17.0, at(205))
    assert evaluations.first is None
    assert updates(evaluations, at(210, None)) == [210]
    assert confirmed(evaluations, 18.0, at(215))
    assert evaluations.first == evaluations.confirmed == at(210, None)._replace(evaluation_mean_return=18.0)


@pytest.mark.parametrize("mean", [None, float("nan"), float("inf"), float("-inf")])
def test_a_return_that_is_not_finite_reaches_no_target(mean: float | None) -> None:
    evaluations = evaluations_of()
    assert updates(evaluations, at(170, mean), at(180)) == [180]
    assert not confirmed(evaluations, np.nan if mean is None else mean, at(190))


def test_each_rule_stops_a_run_with_its_status(cartpole: RunConfig) -> None:
    config = replace(cartpole, total_frames=1_000, stop_after_seconds=60.0)
    assert reason_to_stop(config, 999, 59.9, confirmed=False) is None
    assert reason_to_stop(config, 999, 60.0, confirmed=False) == "time_reached"
    assert reason_to_stop(config, 1_000, 60.0, confirmed=False) == "frames_reached"
    assert reason_to_stop(config, 1_000, 60.0, confirmed=True) == "return_reached"


def test_a_confirmation_that_is_lost_counts_as_a_failed_one() -> None:
    evaluations = evaluations_of()
    requested(evaluations, at(169), begins=False)
    assert updates(evaluations, at(170), at(180)) == [170], "none could begin before"
    evaluations.lose(EvaluationLost("actor 1 ended", 300), at(190))
    assert updates(evaluations, at(191), at(204), at(205), at(400)) == [205]
    assert confirmed(evaluations, 19.0, at(211))
    # From 85 to 95 seconds, and three more.
    assert (evaluations.seconds, evaluations.agent_steps) == (13.0, 340)


def test_regular_evaluations_come_every_so_many_frames_one_at_a_time() -> None:
    evaluations = evaluations_of(None, every_frames=400)
    assert updates(evaluations, at(9), at(10), at(11), at(100)) == [10]
    point, _ = evaluations.receive(result(10, 3.0), at(28))
    assert (point["frames"], point["seconds"], point["confirms"]) == (400, 9.0, False)
    assert updates(evaluations, at(19), at(20), at(100)) == [20]
    # The one under way is lost with its process.
    evaluations = restored(evaluations, target=None, every_frames=400)
    assert (evaluations.seconds, evaluations.agent_steps, evaluations.returns.untrained) == (9.0, 40, -20.0)
    assert updates(evaluations, at(29), at(30)) == [30]
    evaluations.lose(EvaluationLost("actor 1 ended", 0), at(35))
    assert updates(evaluations, at(39), at(40)) == [40], "one that was lost comes with the next"
    evaluations.lose(EvaluationLost("it does not end", 0, endless=True), at(45))
    assert updates(evaluations, at(1_000)) == [], "another one would not end either"


def test_a_confirmation_moves_no_regular_evaluation() -> None:
    evaluations = evaluations_of(every_frames=400)
    assert updates(evaluations, at(170, 17.0)) == [170]
    assert not confirmed(evaluations, 17.0, at(171))
    assert updates(evaluations, at(175, 18.0)) == [175]
    assert not confirmed(evaluations, 10.0, at(176), 10_000)
    assert updates(evaluations, at(179), at(180)) == [180]


# The seed of Pong that crossed 18 and evaluated at 14.92: eight games lost outright. Midway is -0.75.
CROSSED = [19.0] * 90 + [-21.0] * 6 + [-0.5, -0.8] + [5.0] * 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("returns", "games", "untrained", "line"),
    [
        ([18.0, 20, 20, -20], [0, 1, 1, 2], -20, "9.50 over 4 episodes, 3 distinct games (median 19.00, 1 collapsed)"),
        ([5.0] * 4, range(4), None, "5.00 over 4 episodes (median 5.00)"),
        (CROSSED, range(100), -20.5, "15.93 over 100 episodes (median 19.00, 7 collapsed)"),
        (CROSSED, range(100), 19.0, "15.93 over 100 episodes (median 19.00)"),
        ([18.0, np.nan, 20.0, -np.nan], range(4), -20.0, None),
        ([18.0, np.inf, 20.0, -np.inf], range(4), -20.0, None),
    ],
)  # fmt: skip
def test_an_evaluation_in_numbers_and_in_words(returns: list, games: Any, untrained: Any, line: str | None) -> None:
    episodes = EpisodeStats(np.array(returns), np.ones(len(returns), np.int64))
    greedy = result(3, 0.0)._replace(episodes=episodes, games=np.array(games) << 32, policy="greedy")
    entry = evaluation_entry(greedy, untrained)
    # Where actions are drawn, equal games are further draws.
    sampled = evaluation_entry(greedy._replace(policy="sampled"), untrained)
    if line is not None:
        assert sampled["standard_error"] == pytest.approx(np.std(returns, ddof=1) / np.sqrt(len(returns)))
    if line is None:
        figures = ("mean_return", "median_return", "collapsed_episodes", "standard_error")
        assert [entry[name] for name in figures] == [None] * 4
        line = "no mean return over 4 episodes: not all returns are finite"
    assert evaluation_line(entry).removeprefix("mean return ") == line


def test_a_crossing_comes_before_a_regular_evaluation() -> None:
    logged = list[str]()
    evaluations = evaluations_of(every_frames=400, log=logged.append)
    assert [policy for _, policy, _ in requested(evaluations, at(170, 17.0))] == ["greedy"]
    assert not confirmed(evaluations, 30.0, at(170)), "a regular one confirms no training return"
    assert [policy for _, policy, _ in requested(evaluations, at(180, 18.0))] == ["sampled"]
    point, confirms = evaluations.receive(result(180, 19.0), at(190))
    assert confirms
    assert evaluations.last == evaluation_entry(result(180, 19.0), -20.0) | {"confirms": True, "seconds": 5.0}
    assert point == evaluations.last | {"frames": 7200, "agent_steps": 1800, "elapsed_seconds": 90.0}
    assert [line.partition(":")[0] for line in logged] == [
        "evaluation of update 170",
        "the mean return of training is 18.00, and the target is 18",
        "confirming evaluation of update 180",
    ]


@pytest.mark.parametrize(
    ("measure", "mean", "goes_on"),
    [
        *(("training", 21.0, False), ("training", 10.0, False), ("training", 18.0, True)),
        *(("evaluation", 21.0, True), ("evaluation", 10.0, False), (None, 10.0, True)),
    ],
)
def test_which_evaluations_end_early(measure: Any, mean: float, goes_on: bool) -> None:
    """A confirmation ends with its verdict, and a regular evaluation only if it misses a target that it measures."""
    target = {"target": None} if measure is None else {"measure": measure}
    evaluations = evaluations_of(**target, every_frames=400)
    ((_, _, look),) = requested(evaluations, at(170, 18.0))
    returns = mean + np.array([-0.5, 0.5] * 20)
    assert (look is None or look(returns)) is goes_on


def lost_games(generator: np.random.Generator, share: float) -> np.ndarray:
    """Returns of 100 games of Pong, of which some are lost outright, with a mean of 18."""
    lost = generator.random(100) < share
    return np.where(lost, -21.0, (18.0 + 21.0 * share) / (1.0 - share) + generator.normal(0.0, 1.0, 100))


@pytest.mark.parametrize("share", [None, 0.02, 0.06, 0.15])
def test_an_early_verdict_has_the_documented_error_rates(share: float | None) -> None:
    """Where they are largest: the mean is at the target."""
    generator, runs = np.random.default_rng(1), 4_000
    early, wrongly_reached, wrongly_missed = 0, 0, 0
    for _ in range(runs):
        returns = generator.normal(18.0, 3.0, 100) if share is None else lost_games(generator, share)
        looks = (predicted_verdict(returns[:count], 100, 18.0, -20.5) for count in (20, 40, 60, 80))
        verdict = next((look for look in looks if look is not None), None)
        reached = returns.mean() >= 18.0
        early += verdict is not None
        wrongly_reached += verdict is True and not reached
        wrongly_missed += verdict is False and reached
    assert wrongly_reached <= 0.005 * runs
    assert wrongly_missed <= 0.06 * runs
    assert early > 0.15 * runs


def tries_to_a_verdict(generator: np.random.Generator, mean: float, share: float, most: int) -> int:
    """The number of the confirmation that a policy of Pong passes, which loses a share of its games; 0 for none."""
    for tries in range(1, most + 1):
        returns = lost_games(generator, share) + mean - 18.0
        looks = {n: predicted_verdict(returns[:n], 100, 18.0, -20.5, tries) for n in (20, 40, 60, 80)}
        played = returns[: next((n for n, verdict in looks.items() if verdict is not None), 100)]
        least = confirmed_mean(played, tries, -20.5)
        if (played.mean() if least is None else least) >= 18.0:
            return tries
    return 0


def test_repeated_tries_are_hard_to_pass_by_luck_and_easy_by_skill() -> None:
    """If each compared its mean, 99 of 100 plateaus at 17 would be confirmed."""
    generator = np.random.default_rng(3)
    plateau = [tries_to_a_verdict(generator, 17.0, 0.05, 40) for _ in range(100)]
    assert np.mean([tries == 1 for tries in plateau]) == pytest.approx(0.12, abs=0.08)
    assert np.mean([tries > 0 for tries in plateau]) <= 0.35
    skilled = [tries_to_a_verdict(generator, 19.0, 0.03, 10) for _ in range(100)]
    assert min(skilled) == 1
    assert np.mean(skilled) <= 1.5


def test_a_later_try_takes_off_what_luck_gives() -> None:
    # The expected maximum of k standard normal numbers.
    assert [expected_maximum(k) for k in range(1, 6)] == pytest.approx([0.0, 0.564, 0.846, 1.029, 1.163], abs=0.03)
    returns = np.array([17.0, 19.0, 21.0, 19.0])
    # With the further game: a mean of 11, and a sum of squares of 36 + 64 + 100 + 64 + 1,024.
    expected = 11.0 - expected_maximum(3) * np.sqrt(1288 / 4) / np.sqrt(5)
    assert confirmed_mean(returns, 3, -21.0) == pytest.approx(expected)
    # Without the further game, which is unknown, as in the prediction of the verdict: a sum of squares of 8.
    expected = 19.0 - expected_maximum(3) * np.sqrt(8 / 3) / np.sqrt(4)
    assert confirmed_mean(returns, 3, None) == pytest.approx(expected)
    assert confirmed_mean(returns, 3, 60.0) == pytest.approx(expected), "a better further game would raise the mean"
    assert confirmed_mean(returns, 1, -21.0) is None
    assert confirmed_mean(np.array([1.0, np.nan]), 3, -21.0) is None
    logged = list[str]()
    evaluations = evaluations_of(log=logged.append)
    for update, tries in ((170, 1), (180, 2)):
        assert updates(evaluations, at(update)) == [update]
        # The first is below; at the second 18.4, less the further game, is too little.
        assert not confirmed(evaluations, 17.9 if tries == 1 else 18.4, at(update))
        assert evaluations.tries == tries
    assert logged[-1] == "the best of 2 confirmations may reach 18.40 by chance: it counts as 6.19, below the target 18"
    assert restored(evaluations).tries == 2


def test_a_verdict_comes_early_where_the_mean_is_far_from_the_target() -> None:
    generator = np.random.default_rng(2)
    assert predicted_verdict(generator.normal(15.0, 4.0, 40), 100, 18.0, -20.5) is False
    assert predicted_verdict(np.full(40, 21.0), 100, 18.0, -20.5) is True
    assert predicted_verdict(np.full(40, 18.0), 100, 18.0, -20.5) is None, "no deviation is not certain"
    assert predicted_verdict(np.full(40, 21.0), 100, 18.0, None) is None
    # What even perfect play to the end would count as.
    assert confirmed_mean(np.full(100, 500.0), 2, 20.0) == pytest.approx(492.45, abs=0.01)
    for target, verdict in ((492.4, None), (492.5, False)):
        assert predicted_verdict(np.full(20, 500.0), 100, target, 20.0, 2) is verdict
    assert predicted_verdict(np.full(40, float("nan")), 100, 18.0, -20.5) is None
    assert predicted_verdict(np.full(100, 21.0), 100, 18.0, -20.5) is None, "there is nothing to predict"
    # Of 20 games of 100, with a mean of 18: the bound is 1.28 · √(80 / (100 · 20)) · √(20 / 19) = 0.2627 above it.
    for target, verdict in ((18.262, None), (18.263, False)):
        assert predicted_verdict(np.tile([17.0, 19.0], 10), 100, target, -20.5) is verdict
