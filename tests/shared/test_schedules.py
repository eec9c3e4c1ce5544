"""Schedules: their arithmetic, a user's own, and where they are applied."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.account import Account
from shared.config import OptimizerConfig, RunConfig
from shared.registry import SCHEDULES, register_schedule
from shared.schedules import linear_anneal, scheduled_value


@settings(deadline=None)
@given(frames=st.integers(0, 300), rate=st.floats(1e-6, 1.0))
def test_linear_is_the_anneal_to_0_to_the_bit(frames: int, rate: float) -> None:
    assert scheduled_value(rate, "linear", frames, 200) == linear_anneal(rate, 0.0, frames, 200)


def test_cosine_and_constant() -> None:
    found = [scheduled_value(8.0, "cosine", frames, 100) for frames in (0, 25, 50, 100, 200)]
    np.testing.assert_allclose(found, [8.0, 4.0 + 4.0 * np.sqrt(0.5), 4.0, 0.0, 0.0], atol=1e-12)
    assert scheduled_value(8.0, "constant", 70, 100) == 8.0


def half(progress: float) -> float:
    return 0.5 + 0.0 * progress


@pytest.fixture
def own() -> Iterator[None]:
    register_schedule("half", half)
    yield
    del SCHEDULES["half"]


@pytest.mark.parametrize(("schedule", "expected"), [("cosine", 0.1), ("half", 0.1), ("linear", 0.1), ("constant", 0.2)])
@pytest.mark.usefixtures("own")
def test_the_learning_rate_follows_it(schedule: str, expected: float) -> None:
    optimizer = OptimizerConfig(learning_rate=0.2, schedule=schedule)
    account = Account(RunConfig(total_frames=1_000, optimizer=optimizer))
    assert account.learning_rate_at(500) == pytest.approx(expected)


def test_a_function_that_other_processes_cannot_find_is_refused() -> None:
    with pytest.raises(ValueError, match="name a function at the top level"):
        register_schedule("nameless", lambda progress: progress)
    with pytest.raises(ValueError, match="there is a schedule linear already"):
        register_schedule("linear", half)
