"""The account by itself: no tensor, and no learner."""

from dataclasses import replace

import numpy as np
import pytest
from reports import gradient_report

from learner.account import Account
from shared.config import RunConfig
from shared.types import GradientReport


def report(agent_steps: int = 10, returns: tuple[float, ...] = ()) -> GradientReport:
    return gradient_report(agent_steps=agent_steps, returns=returns)


def test_returns_are_those_of_the_last_100_episodes(cartpole: RunConfig) -> None:
    account = Account(cartpole)
    assert account.mean_return is None
    account.record(report(returns=tuple(range(60))), None, 0)
    account.record(report(returns=tuple(range(60, 120))), None, 0)
    assert account.mean_return == np.mean(range(20, 120))
    assert account.episodes == 120


@pytest.mark.parametrize(("frames", "expected"), [(0, 1e-3), (10, 7.5e-4), (40, 0.0), (50, 0.0)])
def test_learning_rate_falls_with_frames(frames: int, expected: float, cartpole: RunConfig) -> None:
    account = Account(replace(cartpole, total_frames=40))
    assert account.learning_rate_at(frames) == pytest.approx(expected)
    account.record(report(frames), None, 0)
    assert account.learning_rate == account.learning_rate_at(account.frames)


def test_frames_that_were_counted_stay_and_new_ones_are_of_the_present_frame_skip(cartpole: RunConfig) -> None:
    account = Account(cartpole)
    account.record(report(60), None, 0)
    skipping = replace(cartpole, environment=replace(cartpole.environment, frame_skip=4))
    resumed, older = Account(skipping), Account(skipping)
    resumed.restore(account.state())
    assert resumed.frames == 60
    resumed.record(report(10), "non_finite", 0)
    assert resumed.frames == resumed.frames_of(70) == 100
    again = Account(skipping)
    again.restore(resumed.state())
    assert (again.frames, again.learning_rate) == (100, resumed.learning_rate)
    # Checkpoints of version 0.1 have no frames.
    older.restore({name: value for name, value in account.state().items() if name != "frames"})
    assert older.frames == 240
