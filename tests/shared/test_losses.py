"""The losses against sums that are written out: values, gradients, and shapes that do not fit."""

import re
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from shared.config import MethodConfig, RunConfig
from shared.distributions import categorical_log_prob, gaussian_log_prob
from shared.losses import (
    PolicyDrift,
    clipped_surrogate_loss,
    policy_gradient_loss,
    squared_errors,
    standardised,
    values_of_actions,
)
from shared.methods.method import MethodLoss, Samples, make_method
from shared.networks import NetworkOutput
from shared.types import ActionSpec

T, B, A = 3, 2, 4


def batch(seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        "logits": random.normal(size=(T, B, A)).astype(np.float32),
        "values": random.normal(size=(T, B)).astype(np.float32),
        "actions": random.integers(0, A, (T, B)).astype(np.int32),
        "returns": random.normal(size=(T, B)).astype(np.float32),
        "mask": np.array([[1, 1], [1, 0], [1, 1]], np.float32),
    }


def loss(
    data: dict[str, np.ndarray], standardise: bool = False, acting: np.ndarray | None = None, **settings
) -> MethodLoss:
    """The actor-critic's, of a network with these outputs."""
    logits, values, actions, returns, mask = (tf.convert_to_tensor(data[name]) for name in batch())
    config = RunConfig(method=MethodConfig(value_cost=0.5, entropy_cost=0.01, **settings))
    output = NetworkOutput({"policy": logits, "value": values[..., None]}, tf.ones((T, B, 1)), {})
    advantages = standardised(returns - values, mask) if standardise else returns - values
    samples = Samples(actions, mask, returns, advantages, acting)
    return make_method(config, ActionSpec(A)).sample_loss(output, samples)


def written_out(data: dict[str, np.ndarray], logits: tf.Tensor, values: tf.Tensor, standardise: bool) -> tf.Tensor:
    """Sum over agent steps of the paper's three terms in float64, with advantages held constant."""
    live = [(t, b) for t in range(T) for b in range(B) if data["mask"][t, b]]
    advantages = np.array([data["returns"][i] - data["values"][i] for i in live], np.float64)
    if standardise:
        advantages = (advantages - advantages.mean()) / advantages.std()
    total = 0.0
    for i, advantage in zip(live, advantages, strict=True):
        log_probs = tf.nn.log_softmax(logits[i])
        total += -log_probs[data["actions"][i]] * advantage
        total += 0.5 * (data["returns"][i] - values[i]) ** 2
        total -= 0.01 * -tf.reduce_sum(tf.exp(log_probs) * log_probs)
    return total


@pytest.mark.parametrize("standardise", [False, True])
def test_the_loss_and_its_gradient_are_those_of_the_written_out_sum(standardise: bool) -> None:
    data = batch()
    sources = {name: tf.constant(data[name]) for name in ("logits", "values", "returns")}
    exact = [tf.constant(data[name], tf.float64) for name in ("logits", "values")]
    with tf.GradientTape() as tape, tf.GradientTape() as exact_tape:
        tape.watch(sources)
        exact_tape.watch(exact)
        summed = loss(data | sources, standardise, reduction="sum")
        expected = written_out(data, *exact, standardise)
    mean = loss(data, standardise, reduction="mean")
    assert float(summed.total) == pytest.approx(float(expected), rel=1e-5)
    assert float(mean.total) == pytest.approx(float(expected) / 5, rel=1e-5)
    for name in ("policy_loss", "value_loss", "entropy"):
        assert float(mean.statistics[name]) == float(summed.statistics[name])
    gradients = tape.gradient(summed.total, sources)
    assert gradients["returns"] is None
    for name, gradient in zip(("logits", "values"), exact_tape.gradient(expected, exact), strict=True):
        np.testing.assert_allclose(gradients[name], gradient, rtol=1e-4, atol=1e-6)


def test_a_wholly_masked_rollout_has_no_loss_and_no_gradient() -> None:
    data = {**batch(), "mask": np.zeros((T, B), np.float32)}
    logits = tf.constant(data["logits"])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        total = loss({**data, "logits": logits}, standardise=True).total
    assert float(total) == 0.0
    np.testing.assert_array_equal(tape.gradient(total, logits), np.zeros((T, B, A)))


def zeros(*shape: int) -> tf.Tensor:
    return tf.zeros(shape)


def first(*shape: int) -> tf.Tensor:
    """The first action everywhere."""
    return tf.zeros(shape, tf.int32)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: categorical_log_prob(zeros(3, 2, 4), first(6)),
         "actions of shape (6,) do not fit logits of shape (3, 2, 4)"),
        (lambda: categorical_log_prob(zeros(4, 5), first(4), (3, 2)),
         "actions of shape (4,) do not fit logits of shape (4, 5)"),
        (lambda: gaussian_log_prob(zeros(5, 1), zeros(1), zeros(5)),
         "actions of shape (5,) do not fit means of shape (5, 1)"),
        (lambda: policy_gradient_loss(zeros(3, 2), zeros(3, 2, 1), zeros(3, 2)),
         "advantages of shape (3, 2, 1) do not fit log_probs of shape (3, 2)"),
        (lambda: clipped_surrogate_loss(zeros(3, 2), zeros(6), zeros(3, 2), zeros(3, 2), 0.2),
         "behaviour_log_probs of shape (6,) do not fit log_probs of shape (3, 2)"),
        (lambda: values_of_actions(zeros(3, 1, 2), first(3, 1, 1)),
         "actions of shape (3, 1, 1) do not fit action values of shape (3, 1, 2)"),
        (lambda: squared_errors(zeros(3, 1), zeros(3), zeros(3, 1)),
         "returns of shape (3,) do not fit values of shape (3, 1)"),
    ],
)  # fmt: skip
def test_shapes_that_do_not_fit_are_named(call: Callable[[], object], problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        call()


def drifted(data: dict[str, np.ndarray], scale: float = 0.4) -> np.ndarray:
    """log π(a) of another policy, as if that one had acted: float32 [T, B]."""
    other = data["logits"] + scale * np.random.default_rng(7).normal(size=data["logits"].shape).astype(np.float32)
    return categorical_log_prob(tf.constant(other), tf.constant(data["actions"])).numpy()


@pytest.mark.parametrize("seed", [1, 3])
def test_a_policy_that_has_moved_is_judged_by_the_clipped_ratio(seed: int) -> None:
    """Equation 7 of arXiv 1707.06347, written out; and how far the policy has moved."""
    data, epsilon = batch(seed), 0.2
    acting = drifted(data)
    now = categorical_log_prob(tf.constant(data["logits"]), tf.constant(data["actions"])).numpy().astype(np.float64)
    terms, deviations, outside, divergences = [], [], [], []
    for i in np.ndindex(T, B):
        if not data["mask"][i]:
            continue
        ratio = np.exp(now[i] - acting[i])
        advantage = float(data["returns"][i] - data["values"][i])
        terms.append(min(ratio * advantage, np.clip(ratio, 1 - epsilon, 1 + epsilon) * advantage))
        deviations.append(abs(ratio - 1))
        outside.append(abs(ratio - 1) > epsilon)
        divergences.append(ratio - 1 - np.log(ratio))
    statistics = loss(data, acting=acting, clip_ratio=epsilon).statistics
    assert 0 < sum(outside) < len(outside)
    assert float(statistics["policy_loss"]) == pytest.approx(-np.mean(terms), rel=1e-5)
    expected = [np.mean(deviations), np.mean(outside), np.mean(divergences)]
    np.testing.assert_allclose([float(statistics[name]) for name in PolicyDrift._fields], expected, rtol=1e-4)


def test_an_action_that_was_all_but_impossible_leaves_the_gradient_finite() -> None:
    data = batch(6)
    logits = tf.constant(data["logits"])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        total = loss({**data, "logits": logits}, acting=tf.fill((T, B), -200.0), clip_ratio=0.2).total
    assert np.isfinite(tape.gradient(total, logits).numpy()).all()
