"""Policies over actions, as pure TensorFlow functions of what the policy head gives."""

import math

import tensorflow as tf


def categorical_log_prob(logits: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """log π(a) of a categorical policy.

    Args:
        logits: float32 [..., A], unnormalised.
        actions: int32 [...], each in 0..A-1.

    Returns:
        float32 [...]. Gradient flows into `logits`.

    Raises:
        ValueError: the shape of `actions` is not that of `logits` without its last axis.
    """
    if not logits.shape[:-1].is_compatible_with(actions.shape):
        raise ValueError(f"actions of shape {actions.shape} do not fit logits of shape {logits.shape}")
    return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels=actions, logits=logits)


def categorical_entropy(logits: tf.Tensor) -> tf.Tensor:
    """Entropy -Σ π log π, in nats, of a categorical policy: float32 [..., A] -> float32 [...]."""
    log_probs = tf.nn.log_softmax(logits)
    return -tf.reduce_sum(tf.exp(log_probs) * log_probs, axis=-1)


def categorical_sample(logits: tf.Tensor, generator: tf.random.Generator) -> tf.Tensor:
    """Sample actions int32 [B] from logits float32 [B, A] by the Gumbel-max trick, with the generator's state."""
    # The smallest normal float32 keeps log(0) out; it changes no probability that float32 can tell apart.
    uniform = generator.uniform(tf.shape(logits), minval=1.1754944e-38, maxval=1.0)
    return tf.argmax(logits - tf.math.log(-tf.math.log(uniform)), axis=-1, output_type=tf.int32)


def gaussian_log_prob(mean: tf.Tensor, log_std: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """Log-density of a diagonal Gaussian: Σ_d -½((a - μ)/σ)² - log σ - ½ log 2π.

    Its gradient by μ is (a - μ)/σ²: 100 for σ = 0.1 at distance 1. `actions` are as they were sampled, before any
    clipping to bounds: the density of a clipped action is another one.

    Args:
        mean: μ, float32 [..., D].
        log_std: log σ, float32 [..., D] or [D].
        actions: float32 [..., D].

    Returns:
        float32 [...]. Gradient flows into `mean` and `log_std`.

    Raises:
        ValueError: the shape of `actions` is not that of `mean`: broadcasting (N,) against (N, 1) would give (N, N).
    """
    if not mean.shape.is_compatible_with(actions.shape):
        raise ValueError(f"actions of shape {actions.shape} do not fit means of shape {mean.shape}")
    scaled = (actions - mean) * tf.exp(-log_std)
    return tf.reduce_sum(-0.5 * tf.square(scaled) - log_std - 0.5 * math.log(2.0 * math.pi), axis=-1)


def gaussian_entropy(log_std: tf.Tensor) -> tf.Tensor:
    """Differential entropy Σ_d log σ + ½ log 2πe, in nats, of a diagonal Gaussian: float32 [..., D] -> [...]."""
    return tf.reduce_sum(log_std + 0.5 * math.log(2.0 * math.pi * math.e), axis=-1)


def state_dependent_log_std(features: tf.Tensor, log_std: tf.Tensor) -> tf.Tensor:
    """log σ(s) of an action a = μ(s) + Wᵀz(s), with W_hd ~ N(0, σ_hd²) drawn anew: σ_d(s)² = Σ_h z_h(s)² σ_hd².

    Raffin et al. 2022 (arXiv 2005.05719, eq. 5).

    Args:
        features: z(s), float [..., H]. No gradient flows into them: the policy does not learn to change its noise
            through its mean's features.
        log_std: log σ, float32 [H, D].

    Returns:
        float32 [..., D].
    """
    squares = tf.square(tf.stop_gradient(tf.cast(features, tf.float32)))
    # 1e-6 keeps the logarithm finite where all features are 0.
    return 0.5 * tf.math.log(tf.tensordot(squares, tf.exp(2.0 * log_std), axes=1) + 1e-6)
