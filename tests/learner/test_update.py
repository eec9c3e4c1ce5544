"""The accumulator: exact sums, exact zeros, one trace; the global norm and clipping; optimizers and their equations."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from rollouts import traces

from learner.optimizer import SGD
from learner.update import GradientAccumulator, global_norm
from shared.config import OptimizerConfig, RunConfig
from shared.errors import ConfigurationError
from shared.graph import aligned_copy
from shared.layout import ParameterLayout
from shared.registry import OPTIMIZERS, register_optimizer
from shared.schedules import crossed_multiple

P = 1000
LAYOUT = ParameterLayout(("kernel", "bias"), ((P - 10,), (10,)))
START = np.random.default_rng(0).normal(size=P).astype(np.float32)
OPTIMIZER = OptimizerConfig(epsilon=0.1, max_gradient_norm=None)


def accumulator(k: int, optimizer: OptimizerConfig = OPTIMIZER, *, mean: bool = False) -> GradientAccumulator:
    return GradientAccumulator(START, LAYOUT, k, optimizer, mean=mean)


def gradients(count: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(count, P)).astype(np.float32)


@pytest.mark.parametrize(("mean", "scale", "limit"), [(False, 1.0, 20.0), (True, 0.25, 20.0), (True, 0.25, 10.0)])
def test_n_pushes_equal_one_push_of_the_sum(mean: bool, scale: float, limit: float) -> None:
    # The sum has a norm of 63, and the mean one of 16.
    limited = replace(OPTIMIZER, max_gradient_norm=limit)
    many, one = accumulator(4, limited, mean=mean), accumulator(1, limited)
    pushed = gradients(4)
    results = [many.push(gradient, 0.01) for gradient in pushed]
    whole = one.push(pushed.sum(axis=0) * np.float32(scale), 0.01)
    assert [result.applied for result in results] == [False, False, False, True]
    # The norm is that of the sum before it is clipped.
    norm = scale * np.linalg.norm(pushed.sum(axis=0))
    assert results[-1].gradient_norm == pytest.approx(norm, rel=1e-5) == whole.gradient_norm
    difference = np.abs(many.parameters.numpy() - one.parameters.numpy())
    assert difference.max() <= 1e-5 * np.abs(one.parameters.numpy()).max()


def test_the_sum_of_a_whole_update_is_equal_to_its_gradients_to_the_bit() -> None:
    gradients = np.random.default_rng(1).normal(size=(4, len(START))).astype(np.float32)
    single, kept, whole = (accumulator(4, mean=True) for _ in range(3))
    whole.push(((gradients[0] + gradients[1]) + gradients[2]) + gradients[3], 0.1, 4)
    for gradient in gradients:
        kept.push(gradient, 0.1)
        kept.keep_pending()
        single.push(gradient, 0.1)
    np.testing.assert_array_equal(whole.read(), single.read())
    np.testing.assert_array_equal(whole.read(), kept.read())


# 1e36 a square, and 1.6e37 that of a sum of four: too much for the sum of 1,000 squares in float32.
HUGE = np.full(P, 5e17, np.float32)
NAN, INFINITE = (np.where(np.arange(P) == 7, bad, 1.0).astype(np.float32) for bad in (np.nan, np.inf))


@pytest.mark.parametrize(
    ("pushed", "limit"),
    [([NAN], None), ([INFINITE, *gradients(2)], None), ([HUGE] * 4, None), ([HUGE] * 4, 40.0)],
    ids=["nan", "infinite first", "huge", "huge, clipped"],
)
def test_a_sum_that_is_not_finite_changes_nothing_and_leaves_nothing(pushed: list, limit: float | None) -> None:
    k = len(pushed)
    held = accumulator(k, replace(OPTIMIZER, max_gradient_norm=limit))
    before = {name: variable.numpy().tobytes() for name, variable in held.variables.items()}
    results = [held.push(gradient, 0.01) for gradient in pushed]
    assert [(result.finite, result.applied) for result in results] == [(True, False)] * (k - 1) + [(False, False)]
    assert {name: variable.numpy().tobytes() for name, variable in held.variables.items()} == before
    assert [held.push(each, 0.01).applied for each in gradients(k)] == [False] * (k - 1) + [True]


@pytest.mark.parametrize("size", [1, 1024, 5000, 700_000])
def test_the_global_norm_is_euclidean_and_eager_equals_graph(size: int) -> None:
    vector = np.random.default_rng(size).normal(size=size).astype(np.float32)
    norm = tf.function(global_norm)(tf.constant(vector)).numpy()
    assert norm == pytest.approx(np.linalg.norm(vector.astype(np.float64)), rel=1e-6)
    assert global_norm(tf.constant(vector)).numpy().tobytes() == norm.tobytes()


def test_the_global_norm_is_not_finite_where_an_element_its_square_or_the_sum_over_blocks_is_not() -> None:
    for bad in (np.nan, np.inf, 1e30):
        vector = np.ones(3000, np.float32)
        vector[2000] = bad
        assert not np.isfinite(global_norm(tf.constant(vector)).numpy())
    assert np.isfinite(global_norm(tf.fill([1024], 3e17)).numpy())
    assert not np.isfinite(global_norm(tf.fill([4096], 3e17)).numpy())


@pytest.mark.parametrize("name", ["rmsprop", "adam"])
def test_a_weight_without_a_gradient_stays_with_the_smallest_epsilon(name: str) -> None:
    """A smaller one may be 0 in float32, where such a weight became NaN at the first update."""
    smallest = OptimizerConfig(name=name, epsilon=1e-30, decay=0.999999, bias_correction=name == "rmsprop")
    updated = accumulator(1, RunConfig(optimizer=smallest).optimizer)
    assert updated.push(np.eye(1, P, dtype=np.float32)[0], 0.1).applied
    np.testing.assert_array_equal(updated.parameters.numpy()[1:], START[1:])
    with pytest.raises(ConfigurationError, match="epsilon 1e-38: must be at least 1e-30"):
        RunConfig(optimizer=replace(smallest, epsilon=1e-38))


UPDATES, RATE = 100, 1e-3
GRADIENTS = gradients(UPDATES)


def ours(config: OptimizerConfig) -> np.ndarray:
    updated = accumulator(1, config)
    for gradient in GRADIENTS:
        assert updated.push(gradient, RATE).applied
    assert traces(updated) == 1
    return updated.parameters.numpy()


def clipped(gradient: np.ndarray, config: OptimizerConfig) -> np.ndarray:
    norm, limit = np.linalg.norm(gradient), config.max_gradient_norm
    return gradient * limit / norm if limit is not None and norm > limit else gradient


BETA_1, BETA_2 = 0.9, 0.999


def naive(config: OptimizerConfig) -> np.ndarray:
    """The parameters after all updates by the equations of an optimizer, in float64."""
    theta, m, g = START.astype(np.float64), np.zeros(P), np.zeros(P)
    for t, gradient in enumerate(GRADIENTS.astype(np.float64), start=1):
        step = gradient = clipped(gradient, config)
        if config.name == "rmsprop":
            g = config.decay * g + (1 - config.decay) * gradient**2
            corrected = g / (1 - config.decay**t) if config.bias_correction else g
            step = gradient / np.sqrt(corrected + config.epsilon)
        elif config.name == "adam":
            m = BETA_1 * m + (1 - BETA_1) * gradient
            g = BETA_2 * g + (1 - BETA_2) * gradient**2
            step = np.sqrt(1 - BETA_2**t) / (1 - BETA_1**t) * m / (np.sqrt(g) + config.epsilon)
        theta = theta - RATE * step
    return theta


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
    config = replace(OPTIMIZER, **changes)
    expected = naive(config)
    moved = np.abs(expected - START).max()
    assert moved > 0.01
    assert np.abs(ours(config) - expected).max() <= 1e-6 * np.abs(expected).max()


class Lars(SGD):
    """SGD in units of the norm of each tensor."""

    def apply(self, parameters: tf.Variable, gradient: tf.Tensor, learning_rate: tf.Tensor) -> None:
        tensors = zip(*(tf.split(vector, self.layout.sizes) for vector in (parameters, gradient)), strict=True)
        scaled = [tf.norm(tensor) / tf.norm(by) * by for tensor, by in tensors]
        super().apply(parameters, tf.concat(scaled, axis=0), learning_rate)


def test_an_optimizer_of_ones_own_knows_the_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIMIZERS, "lars", OPTIMIZERS["sgd"])
    del OPTIMIZERS["lars"]
    register_optimizer("lars", Lars)
    config = RunConfig(optimizer=replace(OPTIMIZER, name="lars")).optimizer
    updated = accumulator(1, config)
    assert updated.push(GRADIENTS[0], RATE).applied
    moved = np.split(updated.parameters.numpy() - START, [P - 10])
    norms = [np.linalg.norm(tensor) * RATE for tensor in np.split(START, [P - 10])]
    np.testing.assert_allclose([np.linalg.norm(tensor) for tensor in moved], norms, rtol=1e-3)


class Optimistic(SGD):
    """Steps along 2g - g', where g' is the gradient before (Daskalakis et al. 2018, arXiv 1711.00141)."""

    def __init__(self, layout: ParameterLayout, config: OptimizerConfig) -> None:
        super().__init__(layout, config)
        # The accumulator has a variable of this name.
        self.variables = {"accumulated": tf.Variable(tf.zeros([layout.size]))}

    def apply(self, parameters: tf.Variable, gradient: tf.Tensor, learning_rate: tf.Tensor) -> None:
        before = self.variables["accumulated"]
        super().apply(parameters, 2.0 * gradient - before, learning_rate)
        before.assign(gradient)


def test_an_optimizer_of_ones_own_keeps_the_gradient_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIMIZERS, "optimistic", OPTIMIZERS["sgd"])
    del OPTIMIZERS["optimistic"]
    register_optimizer("optimistic", Optimistic)
    updated = accumulator(1, replace(OPTIMIZER, name="optimistic"))
    memory = aligned_copy(GRADIENTS[0])
    updated.push(memory, RATE)
    updated.save_pending()
    # Its actor writes the next one.
    memory[:] = GRADIENTS[1]
    updated.push(memory, RATE)
    expected = START - RATE * (2.0 * GRADIENTS[0] + (2.0 * GRADIENTS[1] - GRADIENTS[0]))
    np.testing.assert_allclose(updated.read(), expected, atol=1e-5)
    assert not updated.variables["accumulated"].numpy().any()


def test_a_counter_that_jumps_crosses_multiples() -> None:
    crossed = [crossed_multiple(*pair, 10) for pair in ((0, 9), (9, 10), (9, 31), (10, 19), (19, 20))]
    assert crossed == [False, True, True, False, True]
