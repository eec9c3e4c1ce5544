"""Layer normalisation against NumPy written out, in value and gradient."""

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.networks.layers import EPSILON, gradient_before, normalised

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)


def reference(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values and inverse deviations of float64 [N, U]."""
    mean = x.mean(axis=1, keepdims=True)
    inverse_deviation = 1 / np.sqrt(((x - mean) ** 2).mean(axis=1, keepdims=True) + EPSILON)
    return (x - mean) * inverse_deviation, inverse_deviation


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), shape=SHAPES, offset=st.floats(-100, 100), graph=st.booleans())
def test_each_observation_is_normalised_over_all_its_units(
    seed: int, shape: tuple[int, ...], offset: float, graph: bool
) -> None:
    x = (np.random.default_rng(seed).normal(size=(3, *shape)) + offset).astype(np.float32)
    expected, inverse_deviation = reference(x.reshape(3, -1).astype(np.float64))
    function = tf.function(normalised, autograph=False) if graph else normalised
    result = function(tf.constant(x))
    # A mean of 100 leaves five digits of what is around it.
    np.testing.assert_allclose(np.reshape(result.values, (3, -1)), expected, rtol=2e-3, atol=2e-3)
    assert result.inverse_deviation.shape == (3, *(1 for _ in shape))
    np.testing.assert_allclose(np.reshape(result.inverse_deviation, (3, -1)), inverse_deviation, rtol=2e-3)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), shape=SHAPES)
def test_the_gradient_is_that_of_finite_differences(seed: int, shape: tuple[int, ...]) -> None:
    """By float64 differences of Σ w · v(x), and the same from what was stored."""
    random = np.random.default_rng(seed)
    x, weights = (random.normal(size=(2, *shape)) for _ in range(2))

    def total(x: np.ndarray) -> float:
        return float((weights.reshape(2, -1) * reference(x.reshape(2, -1))[0]).sum())

    expected = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[i] = 1e-6
        expected[i] = (total(x + step) - total(x - step)) / 2e-6
    tensor = tf.constant(x, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        result = normalised(tensor)
        loss = tf.reduce_sum(weights.astype(np.float32) * result.values)
    tolerance = 1e-3 * max(1.0, float(np.max(result.inverse_deviation)))
    np.testing.assert_allclose(tape.gradient(loss, tensor), expected, rtol=1e-3, atol=tolerance)
    stored = gradient_before(tf.constant(weights, tf.float32), *result)
    np.testing.assert_allclose(stored, expected, rtol=1e-3, atol=tolerance)


def test_an_observation_whose_units_are_all_alike_becomes_0() -> None:
    result = normalised(tf.fill((2, 3, 3, 4), 7.0))
    assert not np.any(result.values)
    np.testing.assert_allclose(np.ravel(result.inverse_deviation), [EPSILON**-0.5] * 2, rtol=1e-5)
