"""Terms of losses as pure functions of tensors and floats; no variables, no logging, no configuration."""

from typing import NamedTuple

import tensorflow as tf

from shared.moments import WINDOW, with_newer

_LOG_RATIO = 20.0


class PolicyDrift(NamedTuple):
    """Distance of a policy π from the behaviour policy π', by r = π(a | s) / π'(a | s).

    Attributes:
        ratio_deviation: mean |r - 1| over agent steps, a float32 scalar as the others.
        clipped_share: share of agent steps whose r is outside of its clipping range.
        approximate_kl: mean r - 1 - log r, an estimate of KL(π' || π) in nats that is never negative.
    """

    ratio_deviation: tf.Tensor
    clipped_share: tf.Tensor
    approximate_kl: tf.Tensor


def policy_gradient_loss(log_probs: tf.Tensor, advantages: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Mean of -log π(a | s) · A over agent steps, with A held constant (Mnih et al. 2016, arXiv 1602.01783, S3).

    Args:
        log_probs: float32 [...], log π(a | s) of the policy that is being learned, from `shared.distributions`.
        advantages: float32 [...], R - V(s), held constant; `standardised` or not.
        mask: float32 [...], 1 at agent steps.

    Returns:
        A float32 scalar, as the losses below. Other shapes are a ValueError: (N,) against (N, 1) would give (N, N).
    """
    check_shapes("log_probs", log_probs.shape, advantages=advantages, mask=mask)
    return -masked_mean(zero_masked(log_probs, mask) * zero_masked(tf.stop_gradient(advantages), mask), mask)


def clipped_surrogate_loss(
    log_probs: tf.Tensor,
    behaviour_log_probs: tf.Tensor,
    advantages: tf.Tensor,
    mask: tf.Tensor,
    clip_ratio: float | tf.Tensor,
) -> tuple[tf.Tensor, PolicyDrift]:
    """The clipped surrogate of Schulman et al. 2017 (arXiv 1707.06347, eq. 7), with r = π(a | s) / π'(a | s); π' acted:

        mean of -min(r · A, clip(r, 1 - ε, 1 + ε) · A)

    At r = 1 its gradient equals that of `policy_gradient_loss`, where the other arguments are described. Gradient flows
    into `log_probs` only.

    Args:
        behaviour_log_probs: float32 [...], log π'(a | s).
        clip_ratio: ε, a scalar.
    """
    shapes = {"behaviour_log_probs": behaviour_log_probs, "advantages": advantages, "mask": mask}
    check_shapes("log_probs", log_probs.shape, **shapes)
    now, before, advantages = (
        zero_masked(x, mask) for x in (log_probs, tf.stop_gradient(behaviour_log_probs), tf.stop_gradient(advantages))
    )
    # Bounded so that its exponential is finite: an action that was all but impossible must not lose the gradient.
    log_ratios = tf.clip_by_value(now - before, -_LOG_RATIO, _LOG_RATIO)
    ratios = tf.exp(log_ratios)
    clipped = tf.clip_by_value(ratios, 1.0 - clip_ratio, 1.0 + clip_ratio)
    loss = -masked_mean(tf.minimum(ratios * advantages, clipped * advantages), mask)
    deviations = tf.abs(ratios - 1.0)
    outside = tf.cast(deviations > clip_ratio, tf.float32)
    return loss, PolicyDrift(*(masked_mean(x, mask) for x in (deviations, outside, ratios - 1.0 - log_ratios)))


def squared_errors(values: tf.Tensor, returns: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """(R - V)² at agent steps, with R held constant, and 0 at masked steps: float32 [...] as the arguments.

    Other shapes are a ValueError.
    """
    check_shapes("values", values.shape, returns=returns, mask=mask)
    return tf.square(zero_masked(tf.stop_gradient(returns), mask) - zero_masked(values, mask))


def zero_masked(x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """float32 [...] with 0 at masked steps, which get a gradient of 0.

    A product with the mask would not do: 0 × NaN is NaN, forwards and in the gradient. Losses select their arguments,
    and not their result, whose gradient would be such a product.
    """
    return tf.where(mask > 0.5, x, tf.zeros_like(x))


def masked_mean(x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Mean of float32 [...] over agent steps: float32 scalar, 0 where all is masked."""
    return tf.reduce_sum(zero_masked(x, mask)) / number_of_steps(mask)


def number_of_steps(mask: tf.Tensor) -> tf.Tensor:
    """Number of agent steps, 1 if all is masked: float32 scalar."""
    return tf.maximum(tf.reduce_sum(mask), 1.0)


def standardised(advantages: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Advantages float32 [...] shifted and scaled to mean 0 and standard deviation 1 over agent steps; 0 if masked.

    The advantage of a single agent step is kept: shifted by its mean it would be 0, and would teach nothing.

    It makes the policy's gradient as large beside the entropy's while rewards are rare as when they are frequent. Not
    in the paper.
    """
    advantages = zero_masked(advantages, mask)
    centred = zero_masked(advantages - masked_mean(advantages, mask), mask)
    # 1e-8 only keeps constant advantages finite: they become 0.
    scaled = centred * tf.math.rsqrt(masked_mean(tf.square(centred), mask) + 1e-8)
    return tf.where(tf.reduce_sum(mask) > 1.5, scaled, advantages)


def standardised_by_recent(
    advantages: tf.Tensor, mask: tf.Tensor, moments: tf.Tensor, counted: bool | tf.Tensor = False
) -> tuple[tf.Tensor, tf.Tensor]:
    """Advantages standardised by an exponential window of 1,024 agent steps of all actors, and their own moments.

    For small rollouts. Within 64 consecutive steps of one environment all advantages may be of one sign, and
    standardised among themselves half of them would change it: in LunarLander, a crash would be praised. While the
    window is not full, missing advantages count as 0 in the mean: the first ones keep their signs.

    `moments` float64 [3]: the `AdvantageMoments` so far, zeros at the start. `counted`: they include this rollout's.
    Returns the standardised advantages and their own `AdvantageMoments`, for the window. Advantages enter the window
    clipped to √1024 deviations: one of 100 would scale the policy terms of all actors by 0.3 for thousands of agent
    steps.

    In float32 the variance would be lost where the mean is a thousand deviations. An actor's own last 1,024 agent steps
    would not do: a thousand actors play a million meanwhile.
    """
    exact, steps = (tf.cast(x, tf.float64) for x in (zero_masked(advantages, mask), mask))
    count = tf.reduce_sum(steps)
    before = tf.unstack(moments)
    window = tf.where(counted, moments, with_newer(moments, _sums(count, exact), tf.maximum))
    number, total, squares = tf.unstack(window)
    mean = total / tf.maximum(number, WINDOW)
    # Around `mean`, which is not the window's own mean while it is not full.
    variance = (squares - 2.0 * mean * total) / tf.maximum(number, 1.0) + tf.square(mean)
    scaled = tf.cast((exact - mean) * tf.math.rsqrt(tf.maximum(variance, 0.0) + 1e-8), tf.float32)
    # A number in the window cannot deviate more. That of a later gradient may have the number clipped, or not yet.
    largest = tf.cast(tf.sqrt(tf.maximum(number, WINDOW)), tf.float32)
    scaled = tf.clip_by_value(scaled, -largest, largest)

    centre = before[1] / tf.maximum(before[0], 1.0)
    spread = tf.maximum(before[2] / tf.maximum(before[0], 1.0) - tf.square(centre), 0.0)
    limit = tf.sqrt(WINDOW * spread)
    bounded = tf.where(steps > 0.5, tf.clip_by_value(exact, centre - limit, centre + limit), 0.0)
    # Equal advantages bound nothing.
    rollout_moments = _sums(count, tf.where(spread > 0.0, bounded, exact))
    return zero_masked(scaled, mask), rollout_moments


def _sums(count: tf.Tensor, advantages: tf.Tensor) -> tf.Tensor:
    """`AdvantageMoments` [3] of `count` advantages, 0 where they are masked."""
    return tf.stack([count, tf.reduce_sum(advantages), tf.reduce_sum(tf.square(advantages))])


def values_of_actions(action_values: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """Q(s, a) of the actions that were taken: float32 [..., A] and int32 [...] -> float32 [...]."""
    if not action_values.shape[:-1].is_compatible_with(actions.shape):
        raise ValueError(f"actions of shape {actions.shape} do not fit action values of shape {action_values.shape}")
    return tf.gather(action_values, actions, axis=-1, batch_dims=actions.shape.rank)


def check_shapes(of: str, shape: tf.TensorShape, **tensors: tf.Tensor) -> None:
    for name, tensor in tensors.items():
        if not shape.is_compatible_with(tensor.shape):
            raise ValueError(f"{name} of shape {tensor.shape} do not fit {of} of shape {shape}")
