"""Policies over actions, as pure TensorFlow functions of what the policy head gives."""

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
