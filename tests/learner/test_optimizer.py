"""Every optimizer against its equations in NumPy, in float64, over 100 updates; and TensorFlow's and Keras' own."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from learner.update import GradientAccumulator
from shared.config import LearnerConfig, OptimizerConfig
from shared.schedules import crossed_multiple

P, UPDATES, RATE = 1_000, 100, 1e-3
START = np.random.default_rng(0).normal(size=P).astype(np.float32)
GRADIENTS = np.random.default_rng(1).normal(size=(UPDATES, P)).astype(np.float32)
PLAIN = OptimizerConfig(epsilon=0.1, max_gradient_norm=None)


def ours(config: OptimizerConfig) -> np.ndarray:
    updated = GradientAccumulator(START, LearnerConfig(), config)
    for gradient in GRADIENTS:
        assert updated.push(gradient, RATE).applied
    return updated.parameters.numpy()


def clipped(gradient: np.ndarray, config: OptimizerConfig) -> np.ndarray:
    norm, limit = np.linalg.norm(gradient), config.max_gradient_norm
    return gradient * limit / norm if limit is not None and norm > limit else gradient


def naive_rmsprop(config: OptimizerConfig) -> np.ndarray:
    theta, g = START.astype(np.float64), np.zeros(P)
    a = config.decay
    for t, gradient in enumerate(GRADIENTS.astype(np.float64), start=1):
        gradient = clipped(gradient, config)
        g = a * g + (1 - a) * gradient**2
        corrected = g / (1 - a**t) if config.bias_correction else g
        theta = theta - RATE * gradient / np.sqrt(corrected + config.epsilon)
    return theta


BETA_1, BETA_2 = 0.9, 0.999


def naive_adam(config: OptimizerConfig) -> np.ndarray:
    theta, m, v = START.astype(np.float64), np.zeros(P), np.zeros(P)
    for t, gradient in enumerate(GRADIENTS.astype(np.float64), start=1):
        m = BETA_1 * m + (1 - BETA_1) * gradient
        v = BETA_2 * v + (1 - BETA_2) * gradient**2
        rate = RATE * np.sqrt(1 - BETA_2**t) / (1 - BETA_1**t)
        theta = theta - rate * m / (np.sqrt(v) + config.epsilon)
    return theta


def naive_sgd(config: OptimizerConfig) -> np.ndarray:
    theta = START.astype(np.float64)
    for gradient in GRADIENTS.astype(np.float64):
        theta = theta - RATE * clipped(gradient, config)
    return theta


NAIVE = {"rmsprop": naive_rmsprop, "adam": naive_adam, "sgd": naive_sgd}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"epsilon": 1e-7, "bias_correction": True},
        {"decay": 0.95},
        {"max_gradient_norm": 5.0},
        {"max_gradient_norm": 1000.0},
        {"name": "adam", "epsilon": 1e-7},
        {"name": "adam", "epsilon": 1e-3},
        {"name": "sgd"},
    ],
    ids=str,
)
def test_equals_its_equations_to_1e_6_over_100_updates(changes: dict) -> None:
    config = replace(PLAIN, **changes)
    expected = NAIVE[config.name](config)
    moved = np.abs(expected - START).max()
    assert moved > 0.01
    assert np.abs(ours(config) - expected).max() <= 1e-6 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("config", "optimizer"),
    [
        (replace(PLAIN, epsilon=1e-3), keras.optimizers.RMSprop(RATE, rho=0.99, epsilon=1e-3)),
        (replace(PLAIN, name="adam", epsilon=1e-7), keras.optimizers.Adam(RATE, epsilon=1e-7)),
    ],
    ids=["rmsprop", "adam"],
)
def test_equals_keras(config: OptimizerConfig, optimizer: keras.optimizers.Optimizer) -> None:
    variable = keras.Variable(START)
    for gradient in GRADIENTS:
        optimizer.apply([tf.constant(gradient)], [variable])
    np.testing.assert_allclose(ours(config), variable.numpy(), rtol=0, atol=2e-6)


def test_a_counter_that_jumps_crosses_multiples() -> None:
    crossed = [crossed_multiple(*pair, 10) for pair in ((0, 9), (9, 10), (9, 31), (10, 19), (19, 20))]
    assert crossed == [False, True, True, False, True]
