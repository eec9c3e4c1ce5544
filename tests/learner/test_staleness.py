"""Old gradients: each weight and correction against its equation in NumPy."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_learner import KINDS, RATE, RMSPROP, SGD, START, Naive, P

from learner.accumulator import GradientAccumulator
from learner.staleness import VersionRing, adaptive_compensation, compensated, gap_weight, inverse_weight
from shared.config import LearnerConfig, OptimizerConfig

# Without numbers whose square is no normal float32.
_FINITE = st.one_of(st.just(0.0), st.floats(1e-6, 100.0), st.floats(-100.0, -1e-6))
_VECTOR = st.lists(_FINITE, min_size=P, max_size=P).map(lambda values: np.array(values, np.float32))


@settings(deadline=None)
@given(lag=st.integers(0, 10_000), gap=st.floats(0, 1e6), step=st.floats(1e-6, 1e6))
def test_weights_are_one_over_the_lag_or_over_the_gap_in_average_updates(lag: int, gap: float, step: float) -> None:
    assert float(inverse_weight(tf.constant(float(lag)))) == pytest.approx(1 / max(1, lag), rel=1e-6)
    weight = float(gap_weight(tf.constant(gap, tf.float32), tf.constant(step, tf.float32)))
    assert weight == pytest.approx(1 / (1 + gap / step), rel=1e-5)
    assert float(gap_weight(tf.constant(0.0), tf.constant(0.0))) == 1.0


@settings(deadline=None)
@given(gradient=_VECTOR, moved=_VECTOR, mean_square=_VECTOR, strength=st.floats(1e-3, 10.0))
def test_the_correction_is_that_of_the_paper(
    gradient: np.ndarray, moved: np.ndarray, mean_square: np.ndarray, strength: float
) -> None:
    wide = gradient.astype(np.float64)
    adaptive = strength / np.sqrt(np.abs(mean_square).astype(np.float64) + 1e-7)
    found = adaptive_compensation(strength, tf.abs(mean_square)).numpy()
    np.testing.assert_allclose(found, adaptive, rtol=1e-5)
    for factor in (strength, adaptive):
        expected = wide + factor * wide * wide * moved
        seen = compensated(gradient, tf.constant(factor, tf.float32), moved).numpy()
        np.testing.assert_allclose(seen, expected, rtol=1e-4, atol=1e-5 * (1 + np.abs(expected).max()))


@cache
def accumulator(
    kind: str, k: int, accumulation: str, optimizer: OptimizerConfig
) -> tuple[GradientAccumulator, dict[str, np.ndarray]]:
    """One for all examples of a case, so that its graph is traced once, and how its variables were."""
    learner = LearnerConfig(gradients_per_update=k, accumulation=accumulation, **KINDS[kind])
    made = GradientAccumulator(START.astype(np.float32), learner, optimizer)
    return made, {name: variable.numpy() for name, variable in made.variables.items()}


def compare(made: GradientAccumulator, naive: Naive, lags: Sequence[int], rates: Sequence[float], seed: int) -> None:
    """Push gradients of these lags, as far as there are so many versions, into both."""
    random, ring = np.random.default_rng(seed), VersionRing(100)
    version = 0
    for wanted, rate in zip(lags, rates, strict=True):
        ring.keep(version, made.parameters.numpy())
        lag = min(wanted, version)
        gradient = random.normal(size=P).astype(np.float32) * np.float32(10.0 ** random.integers(-2, 2))
        former = None if naive.kind == "inverse" else ring.at(version - lag)
        result = made.push(gradient, rate, lag=lag, former=former)
        assert result.weight == pytest.approx(naive.push(gradient.astype(np.float64), lag, rate), rel=1e-3)
        version += result.applied
        np.testing.assert_allclose(made.parameters.numpy(), naive.theta, rtol=1e-3, atol=1e-4)
    assert version == len(naive.versions) - 1 == len(lags) // naive.k


@pytest.mark.parametrize(
    ("k", "accumulation", "optimizer"), [(1, "sum", RMSPROP), (3, "mean", RMSPROP), (2, "sum", SGD)]
)
@pytest.mark.parametrize("kind", KINDS)
@given(
    pushes=st.lists(st.tuples(st.integers(0, 6), st.sampled_from([RATE, RATE / 2, 0.0])), min_size=8, max_size=24),
    seed=st.integers(0, 1000),
)
@settings(max_examples=15, deadline=None)
def test_every_kind_updates_as_its_equations_say(
    kind: str, k: int, accumulation: str, optimizer: OptimizerConfig, pushes: list[tuple[int, float]], seed: int
) -> None:
    made, initial = accumulator(kind, k, accumulation, optimizer)
    for name, variable in made.variables.items():
        variable.assign(initial[name])
    lags, rates = zip(*pushes, strict=True)
    compare(made, Naive(kind, k, accumulation, optimizer), lags, rates, seed)
    assert made.push_graph.traces == 1


def test_gradients_of_the_newest_weights_count_as_without_weights_to_the_bit() -> None:
    results = []
    for kind in ("none", "inverse", "gap"):
        learner = LearnerConfig(gradients_per_update=3, accumulation="mean", staleness=kind)
        made = GradientAccumulator(START.astype(np.float32), learner, RMSPROP)
        random = np.random.default_rng(0)
        for _ in range(9):
            former = tf.identity(made.parameters) if kind == "gap" else None
            made.push(random.normal(size=P).astype(np.float32), RATE, former=former)
        results.append(made.parameters.numpy())
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_array_equal(results[2], results[0])
    assert not np.array_equal(results[0], START.astype(np.float32))


def test_with_an_optimizer_that_takes_out_scale_a_constant_weight_still_shortens_steps() -> None:
    """Four updates of lag 4: a quarter of the step, where a quarter of the gradient would make the same step."""
    moved = []
    for staleness in ("none", "inverse"):
        optimizer = OptimizerConfig(epsilon=1e-12, max_gradient_norm=None)
        made = GradientAccumulator(START.astype(np.float32), LearnerConfig(staleness=staleness), optimizer)
        for _ in range(4):
            made.push(np.ones(P, np.float32), RATE, lag=4)
        moved.append(START - made.parameters.numpy())
    np.testing.assert_allclose(moved[1], moved[0] / 4, rtol=1e-3)


def test_a_gap_is_measured_in_updates_that_count_in_full() -> None:
    """Equal gradients of lag 8: eight steps of weight w are a gap of 8 w such updates, so that w = 1/(1 + 8 w)."""
    made = GradientAccumulator(np.zeros(P, np.float32), LearnerConfig(staleness="gap"), SGD)
    ring, weight = VersionRing(100), 1.0
    for version in range(400):
        ring.keep(version, made.parameters.numpy())
        weight = made.push(np.ones(P, np.float32), RATE, former=ring.at(max(0, version - 8))).weight
    assert weight == pytest.approx((np.sqrt(33) - 1) / 16, rel=1e-2)


def test_a_rate_whose_square_is_no_number_leaves_the_weights_finite() -> None:
    made = GradientAccumulator(START.astype(np.float32), LearnerConfig(staleness="gap"), SGD)
    for rate in (RATE, 1e-30, RATE):
        result = made.push(np.ones(P, np.float32), rate, former=tf.zeros(P))
        assert 0.0 < result.weight <= 1.0
    assert np.isfinite(made.parameters.numpy()).all()


@pytest.mark.parametrize("kind", ["gap", "adaptive"])
def test_a_non_finite_gradient_changes_nothing_that_is_remembered(kind: str) -> None:
    made, _ = accumulator(kind, 3, "mean", RMSPROP)
    made.push(np.ones(P, np.float32), RATE, former=tf.zeros(P))
    before = {name: variable.numpy().tobytes() for name, variable in made.variables.items()}
    assert not made.push(np.array([1, 2, np.nan, 4, 5], np.float32), RATE, former=tf.zeros(P)).finite
    assert {name: variable.numpy().tobytes() for name, variable in made.variables.items()} == before
