"""Targets for values and advantages, as pure TensorFlow functions of time-major tensors."""

import tensorflow as tf

from shared.losses import check_shapes


def lambda_returns(
    rewards: tf.Tensor,
    discounts: tf.Tensor,
    values: tf.Tensor,
    bootstrap_value: tf.Tensor,
    mask: tf.Tensor,
    *,
    return_lambda: float,
    n_step: int | None = None,
) -> tf.Tensor:
    """λ-returns of a rollout, of which the paper's n-step return is the case λ = 1.

    With V_T = `bootstrap_value` and G_T = V_T, going backwards in time:

        G_t = r_t + d_t · ((1 - λ) · V_{t+1} + λ · G_{t+1})    where mask_t = 1
        G_t = V_t                                              where mask_t = 0

    λ = 1 gives R ← r + γR of Mnih et al. 2016 (arXiv 1602.01783, Algorithm S3): every step looks ahead to the end of
    the rollout, t_max - t steps. λ = 0 gives one-step targets. Between them G_t - V_t is the advantage of Schulman et
    al. 2016 (arXiv 1506.02438, eq. 16). With `n_step` a target takes in at most that many rewards, and bootstraps: it
    is `n_step` applications of the recurrence to the values, in place of all T.

    Terms that a target does not need are selected away, not multiplied by 0: 0 × NaN is NaN. These terms are all after
    a step with d_t = 0, and the reward of a masked step. A masked step is the reset after an episode's end, seen from
    the true last observation. Its return is its own value, so that an episode that was truncated (d_t = γ) bootstraps
    from V_{t+1} for any λ, one that terminated (d_t = 0) from nothing, and no reward of the next episode leaks across.

    All arguments and the result are float32 [T, B] as in `shared.types`, `bootstrap_value` [B]; T is static. Gradient
    flows into everything that the arguments depend on: a loss that holds targets constant, as all of ours do, stops it.
    Another rank or shape, and an `n_step` that is not from 1 to T, are a ValueError.
    """
    if rewards.shape.rank != 2 or rewards.shape[0] is None:
        raise ValueError(f"rewards must be [T, B] with a static T, got shape {rewards.shape}")
    unroll_length, *batch = rewards.shape
    check_shapes("rewards", rewards.shape, discounts=discounts, values=values, mask=mask)
    check_shapes("environments", tf.TensorShape(batch), bootstrap_value=bootstrap_value)
    if n_step is not None and not 1 <= n_step <= unroll_length:
        raise ValueError(f"n_step must be from 1 to the unroll length {unroll_length}, got {n_step}")
    next_values = tf.concat([values[1:], bootstrap_value[None]], axis=0)
    # The terms that do not depend on the next return: computed once for all T, and traced once.
    bootstraps, live = (1.0 - return_lambda) * next_values, mask > 0.5
    if n_step is not None and n_step < unroll_length:
        targets = values
        for _ in range(n_step):
            next_targets = tf.concat([targets[1:], bootstrap_value[None]], axis=0)
            discounted = tf.math.multiply_no_nan(bootstraps + return_lambda * next_targets, discounts)
            targets = tf.where(live, rewards + discounted, values)
        return targets
    # Unrolled: T small operations are several times cheaper than a while loop, and the cumulative-product form
    # divides by discounts that are zero at terminals.
    weight, next_return = tf.constant(return_lambda, tf.float32), bootstrap_value
    reversed_returns = []
    by_time = zip(*(tf.unstack(x) for x in (rewards, discounts, bootstraps, live, values)), strict=True)
    for reward, discount, bootstrap, is_step, value in reversed(list(by_time)):
        discounted = tf.math.multiply_no_nan(bootstrap + weight * next_return, discount)
        next_return = tf.where(is_step, reward + discounted, value)
        reversed_returns.append(next_return)
    return tf.stack(reversed_returns[::-1])
