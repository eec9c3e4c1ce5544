"""Policies over actions, as pure TensorFlow functions of the policy head's output."""

import math
from collections.abc import Sequence

import tensorflow as tf


def categorical_log_prob(logits: tf.Tensor, actions: tf.Tensor, choices: Sequence[int] = ()) -> tf.Tensor:
    """log π(a) of a categorical policy, or of several that are independent of each other given the observation:

        π(a) = Π_c π_c(a_c),  log π(a) = Σ_c log π_c(a_c),  H = Σ_c H_c

    As in Tang and Agrawal 2020 (arXiv 1901.10500, section 3). From `logits` float32 [..., A] and `actions` int32 [...],
    or [..., C] with `choices` values each, whose sum is A: float32 [...]. Actions of another shape are a ValueError.
    """
    expected = [*logits.shape[:-1], *([len(choices)] if choices else [])]
    if not tf.TensorShape(expected).is_compatible_with(actions.shape):
        raise ValueError(f"actions of shape {actions.shape} do not fit logits of shape {logits.shape}")
    if not choices:
        return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels=actions, logits=logits)
    pairs = zip(_by_choice(logits, choices), tf.unstack(actions, axis=-1), strict=True)
    return tf.add_n([categorical_log_prob(part, action) for part, action in pairs])


def categorical_entropy(logits: tf.Tensor, choices: Sequence[int] = ()) -> tf.Tensor:
    """Entropy -Σ π log π, in nats: float32 [..., A] -> float32 [...]. The sum over several choices."""
    if choices:
        return tf.add_n([categorical_entropy(part) for part in _by_choice(logits, choices)])
    log_probs = tf.nn.log_softmax(logits)
    # An impossible action, of logit -inf, adds nothing: 0 log 0 = 0.
    finite = tf.where(tf.math.is_inf(log_probs), tf.zeros_like(log_probs), log_probs)
    return -tf.reduce_sum(tf.exp(log_probs) * finite, axis=-1)


def categorical_mode(logits: tf.Tensor, choices: Sequence[int] = ()) -> tf.Tensor:
    """The most probable action: int32 [...], or [..., C] of several choices, from logits float32 [..., A]."""
    if choices:
        return tf.stack([categorical_mode(part) for part in _by_choice(logits, choices)], axis=-1)
    return tf.argmax(logits, axis=-1, output_type=tf.int32)


def categorical_sample(logits: tf.Tensor, generator: tf.random.Generator, choices: Sequence[int] = ()) -> tf.Tensor:
    """Sample actions int32 [B], or [B, C], from logits float32 [B, A] by the Gumbel-max trick."""
    # The smallest normal float32 keeps log(0) out; it changes no probability that float32 can tell apart.
    uniform = generator.uniform(tf.shape(logits), minval=1.1754944e-38, maxval=1.0)
    return categorical_mode(logits - tf.math.log(-tf.math.log(uniform)), choices)


def _by_choice(logits: tf.Tensor, choices: Sequence[int]) -> list[tf.Tensor]:
    return tf.split(logits, list(choices), axis=-1)


MASKED = -1e9
"""The logit or value of an action that is not allowed."""


def masked_logits(logits: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Logits or action values float32 [..., A] with `MASKED` where the mask bool [..., A] does not allow the action.

    Huang and Ontañón 2022 (arXiv 2006.14171). The probability of such an action is exactly 0 in float32, and so is the
    gradient that flows into its logit, which is selected away. The number is finite: with -inf the gradient of the
    entropy would be 0 · inf = NaN.
    """
    return tf.where(mask, logits, tf.constant(MASKED, logits.dtype))


def allowed_actions(logits: tf.Tensor) -> tf.Tensor:
    """The mask bool [..., A] that `masked_logits` float32 [..., A] have."""
    return logits > 0.5 * MASKED


def gaussian_log_prob(mean: tf.Tensor, log_std: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """Log-density of a diagonal Gaussian: Σ_d -½((a - μ)/σ)² - log σ - ½ log 2π.

    μ `mean` is float32 [..., D], `log_std` [..., D] or [D]. Its gradient by μ is (a - μ)/σ²: 100 for σ = 0.1 at
    distance 1. `actions` [..., D] are as they were sampled, before any clipping to bounds: the density of a clipped
    action is another one. Another shape is a ValueError: broadcasting (N,) against (N, 1) would give (N, N).
    """
    if not mean.shape.is_compatible_with(actions.shape):
        raise ValueError(f"actions of shape {actions.shape} do not fit means of shape {mean.shape}")
    scaled = (actions - mean) * tf.exp(-log_std)
    return tf.reduce_sum(-0.5 * tf.square(scaled) - log_std - 0.5 * math.log(2.0 * math.pi), axis=-1)


def gaussian_entropy(log_std: tf.Tensor) -> tf.Tensor:
    """Differential entropy Σ_d log σ + ½ log 2πe, in nats, of a diagonal Gaussian: float32 [..., D] -> [...]."""
    return tf.reduce_sum(log_std + 0.5 * math.log(2.0 * math.pi * math.e), axis=-1)


def spherical(outputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """μ and log σ of N(μ, σ²I) with σ² = log(1 + exp x), where x is the last of the outputs.

    Mnih et al. 2016 (arXiv 1602.01783, section 9 of the supplement). float32 [..., D + 1] -> [..., D] and [..., 1].
    """
    # 1e-6 keeps the logarithm finite.
    return outputs[..., :-1], 0.5 * tf.math.log(tf.math.softplus(outputs[..., -1:]) + 1e-6)


def state_dependent_log_std(features: tf.Tensor, log_std: tf.Tensor) -> tf.Tensor:
    """log σ(s) of an action a = μ(s) + Wᵀz(s), with W_hd ~ N(0, σ_hd²) drawn anew: σ_d(s)² = Σ_h z_h(s)² σ_hd².

    Raffin et al. 2022 (arXiv 2005.05719, eq. 5). From `features` z(s) [..., H] and `log_std` log σ [H, D]: float32
    [..., D]. No gradient flows into the features: the policy does not learn to change its noise through its mean's
    features.
    """
    squares = tf.square(tf.stop_gradient(tf.cast(features, tf.float32)))
    # 1e-6 keeps the logarithm finite where all features are 0.
    return 0.5 * tf.math.log(tf.tensordot(squares, tf.exp(2.0 * log_std), axes=1) + 1e-6)
