"""Evaluations of a run and the rules by which it stops."""

import json
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from learners import gradient_report

from launch.loop.evaluation import EvaluationLost, GoesOn
from launch.run.stopping import (
    Evaluations,
    RecentReturn,
    ReturnTarget,
    StoppingRules,
    TrainingPoint,
    TrainingReturns,
    collapsed_episodes,
    evaluation_entry,
    evaluation_line,
    predicted_verdict,
)
from shared.config import EvaluationConfig, RunConfig
from shared.types import EpisodeStats, EvaluationResult

ENVIRONMENTS = 64


def ended_in(environments: npt.NDArray[np.int64], returns: npt.NDArray[np.float64]) -> EpisodeStats:
    return EpisodeStats(returns, returns.astype(np.int64), {}, environments)


def reported(returns: TrainingReturns, *reports: tuple[int, int]) -> None:
    """Reports of actors by their ids: of how many environments no episode is among those that have ended."""
    for actor_id, unfinished in reports:
        which = np.arange(unfinished, ENVIRONMENTS)
        returns.add(actor_id, ended_in(which, np.ones(len(which))))


def count(returns: TrainingReturns, episodes: int, actors: int) -> bool:
    returns.update(episodes, actors)
    return returns.last_count


def gone_on(returns: TrainingReturns) -> TrainingReturns:
    restored = TrainingReturns(ENVIRONMENTS)
    restored.restore(json.loads(json.dumps(returns.state())))
    return restored


def test_the_last_100_count_after_the_first_episode_of_each_environment() -> None:
    returns = TrainingReturns(ENVIRONMENTS)
    reported(returns, (0, 0))
    assert not count(returns, 100, actors=2), "one actor has not reported"
    reported(returns, (1, 3))
    assert not count(returns, 100, actors=2)
    reported(returns, (1, 1))
    assert not count(returns, 100, actors=2)
    reported(returns, (1, 0))
    assert not count(returns, 99, actors=2)
    assert count(returns, 100, actors=2)


def test_few_environments_have_several_episodes_each() -> None:
    returns = TrainingReturns(4)
    for count_of_each in range(1, 31):
        returns.add(0, ended_in(np.arange(4), np.full(4, float(count_of_each))))
        assert count(returns, 100, actors=1)
        assert (returns.mean is not None) == (count_of_each >= 25)
    # Means of the first and of the last 25 returns of each environment.
    assert (returns.untrained, returns.mean) == (13.0, 18.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_returns_that_are_not_finite_are_in_no_mean(bad: float) -> None:
    returns = TrainingReturns(ENVIRONMENTS)
    returns.add(0, EpisodeStats(np.full(64, bad), np.ones(64, int), {}, np.arange(64)))
    assert count(returns, 100, actors=1)
    assert (returns.untrained, returns.mean) == (None, None)
    returns.add(0, ended_in(np.array([5]), np.array([2.0])))
    assert count(returns, 100, actors=1)
    assert (returns.untrained, returns.mean) == (2.0, 2.0)


def test_a_replaced_actor_starts_anew_and_a_dead_one_is_forgotten() -> None:
    returns = TrainingReturns(ENVIRONMENTS)
    # Actor 2 replaces actor 1, which never finished.
    reported(returns, (0, 0), (1, 5), (0, 0), (2, 4))
    assert not count(returns, 100, actors=2)
    reported(returns, (2, 0))
    assert count(returns, 100, actors=2)
    # Its place is gone for good.
    assert count(returns, 100, actors=1)
    assert not count(returns, 100, actors=0)


def test_after_a_resume_new_actors_end_first_episodes_again() -> None:
    returns = TrainingReturns(ENVIRONMENTS)
    reported(returns, (3, 0), (4, 0))
    assert count(returns, 100, actors=2)
    restored = gone_on(returns)
    reported(restored, (4, 0))
    assert not count(restored, 100, actors=2)


LENGTHS = {
    "1 or 1,000": (500.5, lambda random, n: np.where(random.random(n) < 0.5, 1, 1_000)),
    "exponential": (300.0, lambda random, n: random.geometric(1 / 300, n)),
    "a tenth are long": (309.0, lambda random, n: np.where(random.random(n) < 0.9, 10, 3_000)),
}


@pytest.mark.parametrize("environments", [64, 256])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_the_mean_return_of_training_is_of_all_episodes_not_of_the_first_to_end(
    lengths: str, environments: int
) -> None:
    """Environments that begin together and whose return is the length. Here each step of an ended one resets it."""
    true, draw = LENGTHS[lengths]
    random, returns, last = np.random.default_rng(0), TrainingReturns(environments), deque[float](maxlen=100)
    left, length = np.zeros((2, environments), int)
    which, ended_returns, means = [], [], []
    for step in range(1, 12_001):
        new = left == 0
        length[new] = left[new] = draw(random, new.sum())
        left -= 1
        over = np.flatnonzero(left == 0)
        which += over.tolist()
        ended_returns += length[over].tolist()
        if step % 100:
            continue
        last.extend(ended_returns)
        returns.add(0, ended_in(np.array(which, int), np.array(ended_returns, float)))
        which, ended_returns = [], []
        returns.update(len(last), 1)
        if step == 500 and lengths != "exponential":
            assert np.mean(last) < 0.1 * true
        if step % 1_000 == 500 and returns.mean is not None:
            means.append(returns.mean)
    deviation = true / np.sqrt(environments) * (3 if lengths == "a tenth are long" else 1)
    assert returns.untrained == pytest.approx(true, abs=3 * deviation)
    assert np.mean(means) == pytest.approx(true, abs=2 * deviation)


def test_the_return_of_untrained_play_stays() -> None:
    returns = TrainingReturns(ENVIRONMENTS)
    returns.add(0, ended_in(np.arange(64), np.arange(64.0)))
    assert count(returns, 100, actors=1)
    returns.add(0, ended_in(np.array([3]), np.array([1e6])))
    assert (returns.untrained, gone_on(returns).untrained) == (31.5, 31.5)


def at(episodes: int, mean: float | None, update: int | None = None) -> TrainingPoint:
    """A training point after `episodes` episodes of ten agent steps, one in each update."""
    return TrainingPoint(update or episodes, episodes, 10 * episodes, 40 * episodes, episodes / 2, mean)


def requested(target: ReturnTarget, point: TrainingPoint, counts: bool = True) -> bool:
    """Whether the target is crossed here. If it is, an evaluation begins."""
    crosses = target.crosses(point, counts=counts)
    if crosses:
        target.request(point)
    return crosses


def ended(target: ReturnTarget, mean: float | None, point: TrainingPoint, agent_steps: int = 0) -> bool:
    return target.evaluated(mean, point, agent_steps=agent_steps, trained=point.agent_steps)


def test_a_crossing_is_confirmed_by_its_evaluation_and_not_before() -> None:
    target = ReturnTarget(18.0, "training")
    assert not requested(target, at(150, 17.9))
    assert not requested(target, at(160, 18.5), counts=False), "an environment is in its first episode"
    assert requested(target, at(170, 18.0))
    assert not requested(target, at(180, 19.0)), "one question at a time"
    assert target.first == at(170, 18.0)
    assert target.confirmed is None
    assert ended(target, 18.0, at(170, 18.0))
    assert target.confirmed == target.first == at(170, 18.0)._replace(evaluation_mean_return=18.0)
    assert not requested(target, at(400, 20.0)), "there is nothing more to ask"


def test_the_latest_rewards_cross_before_the_last_100_episodes() -> None:
    target = ReturnTarget(18.0, "training")
    assert not requested(target, at(150, 12.0)._replace(recent_return=17.9))
    assert requested(target, at(160, 12.5)._replace(recent_return=18.1))
    assert target.first is not None
    assert (target.first.mean_return_100, target.first.recent_return) == (12.5, 18.1)


def test_after_a_failed_confirmation_the_next_one_waits() -> None:
    """Ten agent steps an episode. The first takes 300 after 1,700 of training: 150 new ones are half as many."""
    target = ReturnTarget(18.0, "training")
    assert requested(target, at(170, 18.2))
    assert not ended(target, 14.92, at(170, 18.2), 300)
    assert target.first == at(170, 18.2)._replace(evaluation_mean_return=14.92)
    assert not requested(target, at(184, 18.9))
    assert requested(target, at(185, 18.4))
    # With 900 more it is 1,200: half of 2,400, for the latest rewards.
    assert not ended(target, 17.0, at(185, 18.4), 900)
    assert not requested(target, at(229, 18.9))
    assert not requested(target, at(239, 17.0)._replace(recent_return=20.0))
    assert requested(target, at(230, 18.4))
    assert ended(target, 18.7, at(230, 18.4))
    assert (target.first.update, target.confirmed.update) == (170, 230)
    assert target.confirmed.evaluation_mean_return == 18.7


def test_failed_confirmations_take_at_most_the_agent_steps_of_training() -> None:
    target = ReturnTarget(18.0, "training")
    assert requested(target, at(170, 18.2))
    assert not ended(target, 14.92, at(170, 18.2), 600)
    assert requested(target, at(200, 18.2))
    assert not ended(target, 14.92, at(200, 18.2), 1_800)
    # Half of 1,800 are over after 2,900.
    assert not requested(target, at(289, 18.2))
    assert requested(target, at(290, 18.2))


def test_a_regular_evaluation_confirms_no_training_return() -> None:
    target = ReturnTarget(18.0, "training")
    assert not ended(target, 21.0, at(170, 18.0))
    requested(target, at(170, 18.0))
    assert not ended(target, 21.0, at(175, 18.0))
    assert ended(target, 18.0, at(170, 18.0))


def test_measured_by_evaluations_the_first_that_reaches_it_is_both() -> None:
    target = ReturnTarget(475.0, "evaluation")
    assert not requested(target, at(200, 480.0))
    assert not ended(target, 470.0, at(200, 480.0))
    assert target.first is None
    assert ended(target, 475.0, at(210, None))
    assert target.first == target.confirmed == at(210, None)._replace(evaluation_mean_return=475.0)


@pytest.mark.parametrize("mean", [None, float("nan"), float("inf"), float("-inf")])
def test_a_return_that_is_not_finite_reaches_no_target(mean: float | None) -> None:
    target = ReturnTarget(18.0, "training")
    assert not requested(target, at(170, mean))
    assert requested(target, at(180, 18.0))
    assert not ended(target, mean, at(180, 18.0))
    by_evaluations = ReturnTarget(18.0, "evaluation")
    assert not ended(by_evaluations, mean, at(180, 18.0))
    assert target.confirmed is by_evaluations.first is None


def test_a_mark_goes_on_from_a_checkpoint() -> None:
    target = ReturnTarget(18.0, "training")
    requested(target, at(170, 18.0))
    asked = json.loads(json.dumps(target.state()))
    ended(target, 10.0, at(170, 18.0), 300)
    failed = json.loads(json.dumps(target.state()))
    # The evaluation is gone with its process: the next crossing is asked about.
    lost = ReturnTarget(18.0, "training")
    lost.restore(asked)
    assert lost.first == at(170, 18.0)
    assert requested(lost, at(171, 18.0))
    waiting = ReturnTarget(18.0, "training")
    waiting.restore(failed)
    assert not requested(waiting, at(184, 18.0))
    assert requested(waiting, at(185, 18.0))
    assert not ended(waiting, 10.0, at(185, 18.0), 900)
    latest = at(239, 17.0)._replace(recent_return=18.0)
    assert not requested(waiting, latest), "it counts those of before"
    other = ReturnTarget(19.0, "training")
    other.restore(failed)
    assert other.first is None


def test_collapsed_episodes_are_near_untrained_play() -> None:
    # The seed of Pong that crossed 18 and evaluated at 14.92: eight games lost outright, the median 19.
    returns = np.array([19.0] * 90 + [-21.0] * 6 + [-0.5, -0.8] + [5.0] * 2)
    assert collapsed_episodes(returns, -20.5) == 7, "midway is -0.75"
    assert collapsed_episodes(returns, None) is None
    assert collapsed_episodes(returns, 19.0) is None


def rules_after(config: RunConfig, frames: int, seconds: float, target: ReturnTarget | None = None) -> str:
    rules = StoppingRules(config, target)
    assert rules.stops(frames, seconds) is not rules.running
    return rules.status


def test_each_rule_stops_a_run_with_its_status(cartpole: RunConfig) -> None:
    config = replace(cartpole, total_frames=1_000, stop_after_seconds=60.0)
    reached = ReturnTarget(18.0, "evaluation")
    assert ended(reached, 18.0, at(170, None))
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
    episodes = EpisodeStats(returns, np.ones(4, np.int64))
    return EvaluationResult(update, np.zeros(2, np.float32), episodes, policy=policy, agent_steps=40)


def begin(found: list[str], begins: bool = True) -> Callable[..., bool]:
    """Begins evaluations in a test, and lists their policies."""

    def evaluate(policy: str, config: EvaluationConfig, goes_on: GoesOn | None) -> bool:
        del config, goes_on
        found.append(policy)
        return begins

    return evaluate


def crossings(evaluations: Evaluations, *episodes: int) -> list[int]:
    """After which of these episodes an evaluation is requested. The mean return is above the target after each."""
    found = list[int]()
    for count in episodes:
        policies = list[str]()
        evaluations.request_if_due(at(count, 19.0), begin(policies), window_counts=True, untrained=None)
        found += [count] * len(policies)
    return found


def lose(evaluations: Evaluations, episodes: int, *, agent_steps: int = 0, endless: bool = False) -> None:
    lost = EvaluationLost("actor 1 ended", agent_steps, endless)
    evaluations.lose(lost, seconds=episodes / 2, trained=10 * episodes)


def receive(evaluations: Evaluations, update: int, mean: float, after: float = 0.0, policy: str = "sampled") -> Any:
    """Receive an evaluation `after` seconds of those of the point that was evaluated."""
    made = result(update, mean, policy)
    return evaluations.receive(made, seconds=update / 2 + after, trained=10 * update, untrained=-20.0)


def test_a_confirmation_that_is_lost_counts_as_a_failed_one() -> None:
    evaluations = Evaluations(EvaluationConfig(), ReturnTarget(18.0, "training"), lambda _message: None)
    assert crossings(evaluations, 170, 180) == [170]
    lose(evaluations, 190, agent_steps=300)
    assert crossings(evaluations, 191, 204, 205, 400) == [205]
    assert receive(evaluations, 205, 19.0, after=3.0)[1]
    assert crossings(evaluations, 1_000) == [], "it is confirmed"
    # From 85 to 95 seconds, and three more.
    assert (evaluations.seconds, evaluations.agent_steps) == (13.0, 340)


def test_an_evaluation_that_cannot_begin_is_requested_again() -> None:
    evaluations = Evaluations(EvaluationConfig(), ReturnTarget(18.0, "training"), lambda _message: None)
    evaluations.request_if_due(at(170, 19.0), begin([], begins=False), window_counts=True, untrained=None)
    assert crossings(evaluations, 171) == [171]


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
        policies = list[str]()
        point = TrainingPoint(count, 0, count // 4, count, count / 2, None)
        evaluations.request_if_due(point, begin(policies), window_counts=True, untrained=None)
        found += [count] * len(policies)
    return found


def test_regular_evaluations_come_every_so_many_frames_one_at_a_time() -> None:
    evaluations = regular(100, regular(100).state() | {"evaluated_frames": 50})
    assert due(evaluations, 100, 149, 150, 151, 1_000) == [150]
    point, _ = receive(evaluations, 150, 3.0, 9.0, "greedy")
    assert (point["frames"], point["seconds"], point["confirms"]) == (150, 9.0, False)
    assert due(evaluations, 249, 250, 1_000) == [250]
    lose(evaluations, 600)
    assert due(evaluations, 349, 350) == [350], "one that was lost comes with the next"
    lose(evaluations, 800, endless=True)
    assert due(evaluations, 1_000) == [], "another one would not end either"


def test_an_evaluation_under_way_is_lost_with_its_process() -> None:
    evaluations = regular(100)
    assert due(evaluations, 160) == [160]
    receive(evaluations, 160, 3.0, 9.0, "greedy")
    assert due(evaluations, 260) == [260]
    restored = regular(100, evaluations.state())
    assert (restored.seconds, restored.agent_steps) == (9.0, 40)
    assert due(restored, 359, 360) == [360]


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


def test_a_crossing_comes_before_a_regular_evaluation() -> None:
    said, requests = list[str](), list[str]()
    config = EvaluationConfig(every_frames=100, policy="greedy")
    evaluations = Evaluations(config, ReturnTarget(18.0, "training"), said.append)
    for point, counts in ((at(170, 18.0), False), (at(171, 18.0), True)):
        evaluations.request_if_due(point, begin(requests), window_counts=counts, untrained=-20.0)
    assert requests == ["greedy"]
    assert not receive(evaluations, 170, 30.0, policy="greedy")[1]
    evaluations.request_if_due(at(180, 18.0), begin(requests), window_counts=True, untrained=-20.0)
    assert requests[1:] == ["sampled"]
    point, confirmed = receive(evaluations, 180, 19.0, after=5.0)
    assert confirmed
    assert evaluations.last == evaluation_entry(result(180, 19.0), -20.0) | {"confirms": True, "seconds": 5.0}
    assert point == evaluations.last | {"frames": 7200, "agent_steps": 1800, "elapsed_seconds": 90.0}
    assert [line.partition(":")[0] for line in said] == [
        "evaluation of update 170",
        "the mean return of the last 100 training episodes is 18.00, and the target is 18",
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
    looks = list[GoesOn | None]()

    def evaluate(policy: str, config: EvaluationConfig, look: GoesOn | None) -> bool:
        del policy, config
        looks.append(look)
        return True

    target = None if measure is None else ReturnTarget(18.0, measure)
    evaluations = Evaluations(EvaluationConfig(every_frames=100), target, lambda _: None)
    evaluations.request_if_due(at(170, 18.0), evaluate, window_counts=True, untrained=-20.0)
    (look,) = looks
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


def test_a_verdict_comes_early_where_the_mean_is_far_from_the_target() -> None:
    generator = np.random.default_rng(2)
    assert predicted_verdict(generator.normal(15.0, 4.0, 40), 100, 18.0, -20.5) is False
    assert predicted_verdict(np.full(40, 21.0), 100, 18.0, -20.5) is True
    assert predicted_verdict(np.full(40, 18.0), 100, 18.0, -20.5) is None, "no deviation is not certain"
    assert predicted_verdict(np.full(40, 21.0), 100, 18.0, None) is None
    assert predicted_verdict(np.full(40, float("nan")), 100, 18.0, -20.5) is None
    assert predicted_verdict(np.full(100, 21.0), 100, 18.0, -20.5) is None, "there is nothing to predict"


def recent(*reports: tuple[int, float, int, int]) -> float | None:
    """The estimate after reports of agent steps, rewards, and episodes of a length."""
    estimate = RecentReturn()
    for agent_steps, rewards, episodes, length in reports:
        stats = EpisodeStats(np.zeros(episodes), np.full(episodes, length))
        estimate.add(gradient_report(0, 1, agent_steps=agent_steps)._replace(rewards=rewards, episodes=stats))
    return estimate.value


def test_the_present_return_follows_from_the_latest_rewards() -> None:
    assert recent((1_000, 5.0, 19, 50)) is None, "20 episodes are needed"
    assert recent((999, 5.0, 20, 50)) is None, "and their agent steps"
    assert recent((500, 5.0, 20, 50), (500, 5.0, 0, 0)) == pytest.approx(0.01 * 50)
    # Older rewards are forgotten, and episodes need not end.
    assert recent((1_000, -40.0, 20, 50), *[(100, 30.0, 0, 0)] * 10) == pytest.approx(0.3 * 50)
    # Longer episodes at the same rate.
    assert recent((1_000, 10.0, 20, 50), (2_000, 20.0, 20, 100)) == pytest.approx(0.01 * 100)
