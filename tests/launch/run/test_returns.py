"""The mean returns of training, beside their simulations."""

from collections import deque
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
from learners import gradient_report

from launch.run.returns import RecentReturn, TrainingReturns
from shared.types import EpisodeStats

ENVIRONMENTS = 64


def ended_in(environments: npt.NDArray[np.int64], returns: npt.NDArray[np.float64]) -> EpisodeStats:
    return EpisodeStats(returns, np.ones(len(returns), np.int64), {}, environments)


def count(returns: TrainingReturns, *reports: tuple[int, int], episodes: int = 100, actors: int = 2) -> bool:
    """Whether the last episodes count after reports of actors by their ids: and in how many of their environments no
    episode has ended yet."""
    for actor_id, unfinished in reports:
        which = np.arange(unfinished, ENVIRONMENTS)
        returns.add(actor_id, ended_in(which, np.ones(len(which))))
    returns.update(episodes, actors)
    return returns.is_representative


def test_the_last_100_count_after_the_first_episode_of_each_environment() -> None:
    returns = TrainingReturns(ENVIRONMENTS)
    assert not count(returns, (0, 0)), "one actor has not reported"
    assert not count(returns, (1, 3))
    assert not count(returns, (1, 1))
    assert not count(returns, (1, 0), episodes=99)
    assert count(returns)
    # Actor 2 replaces actor 0, and actor 3 replaces actor 2. Then a place is gone for good.
    assert not count(returns, (2, 4))
    assert count(returns, (1, 0), (3, 0))
    assert count(returns, actors=1)
    assert not count(returns, actors=0)


def test_few_environments_have_several_episodes_each() -> None:
    returns = TrainingReturns(4)
    for count_of_each in range(1, 31):
        returns.add(0, ended_in(np.arange(4), np.full(4, float(count_of_each))))
        assert count(returns, actors=1)
        assert (returns.mean is not None) == (count_of_each >= 25)
    # Means of the first and of the last 25 returns of each environment.
    assert (returns.untrained, returns.mean) == (13.0, 18.0)


def test_an_actor_that_is_gone_is_in_no_mean() -> None:
    returns = TrainingReturns(ENVIRONMENTS)
    for actor_id, value in enumerate((1.0, 3.0)):
        returns.add(actor_id, ended_in(np.arange(ENVIRONMENTS), np.full(ENVIRONMENTS, value)))
    assert count(returns)
    assert returns.mean == 2.0
    assert count(returns, actors=1)
    assert returns.mean == 3.0


def test_the_first_returns_of_a_trained_policy_are_none_of_untrained_play() -> None:
    returns = TrainingReturns(ENVIRONMENTS)
    returns.begins_untrained = False
    returns.add(0, ended_in(np.arange(ENVIRONMENTS), np.full(ENVIRONMENTS, 9.0)))
    assert count(returns, actors=1)
    assert (returns.untrained, returns.mean) == (None, 9.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_returns_that_are_not_finite_are_in_no_mean(bad: float) -> None:
    returns = TrainingReturns(ENVIRONMENTS)
    returns.add(0, ended_in(np.arange(64), np.full(64, bad)))
    assert count(returns, actors=1)
    assert (returns.untrained, returns.mean) == (None, None)
    returns.add(0, ended_in(np.array([5]), np.array([2.0])))
    assert count(returns, actors=1)
    assert (returns.untrained, returns.mean) == (2.0, 2.0)


LENGTHS = {
    "1 or 1,000": (500.5, lambda random, n: np.where(random.random(n) < 0.5, 1, 1_000)),
    "exponential": (300.0, lambda random, n: random.geometric(1 / 300, n)),
    "a tenth are long": (309.0, lambda random, n: np.where(random.random(n) < 0.9, 10, 3_000)),
}


@pytest.mark.parametrize("environments", [64, 256])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_the_mean_return_is_of_all_episodes_not_of_the_first_to_end(lengths: str, environments: int) -> None:
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


def recent(*reports: tuple[int, float, int, int]) -> float | None:
    """The estimate after reports of agent steps, rewards, and episodes of a length."""
    estimate = RecentReturn()
    for agent_steps, rewards, episodes, length in reports:
        stats = EpisodeStats(np.zeros(episodes), np.full(episodes, length))
        estimate.add(gradient_report(0, 1, agent_steps=agent_steps)._replace(rewards=rewards, episodes=stats))
    return estimate.value


def test_the_rewards_of_a_rollout_of_several_reports_count_with_all_of_its_steps() -> None:
    estimate, seen = RecentReturn(), set()
    for _ in range(20):
        # All rewards of the 512 agent steps, and all episodes, come with the first report. Two actors take turns.
        for part, actor_id in product(range(4), (0, 1)):
            episodes = (
                EpisodeStats(np.zeros(17), np.full(17, 30)) if part == 0 else EpisodeStats(np.empty(0), np.empty(0))
            )
            report = gradient_report(actor_id, 1, agent_steps=128)
            report = report._replace(rewards=0.0 if part else 512.0, episodes=episodes)
            estimate.add(report._replace(new_steps_follow=part < 3))
            seen.add(estimate.value)
    assert seen == {None, 30.0}


def test_the_present_return_follows_from_the_latest_rewards() -> None:
    assert recent((1_000, 5.0, 19, 50)) is None, "20 episodes are needed"
    assert recent((999, 5.0, 20, 50)) is None, "and their agent steps"
    assert recent((500, 5.0, 20, 50), (500, 5.0, 0, 0)) == pytest.approx(0.01 * 50)
    # Older rewards are forgotten, and episodes need not end.
    assert recent((1_000, -40.0, 20, 50), *[(100, 30.0, 0, 0)] * 10) == pytest.approx(0.3 * 50)
    # Longer episodes at the same rate.
    assert recent((1_000, 10.0, 20, 50), (2_000, 20.0, 20, 100)) == pytest.approx(0.01 * 100)
