"""Losses as pure functions: tensors and floats in, a NamedTuple out; no variables, no logging, no configuration."""

from typing import Literal, NamedTuple

import tensorflow as tf

from shared.distributions import categorical_entropy, categorical_log_prob

Reduction = Literal["sum", "mean"]


class ActorCriticLoss(NamedTuple):
    """The loss to minimise and its parts. Scalars float32.

    `policy`, `value` and `entropy` are means over agent steps, whatever the reduction of `total` is, so that
    curves of different settings can be compared.
    """

    total: tf.Tensor
    policy: tf.Tensor
    value: tf.Tensor
    entropy: tf.Tensor


def actor_critic_loss(
    logits: tf.Tensor,
    values: tf.Tensor,
    actions: tf.Tensor,
    returns: tf.Tensor,
    mask: tf.Tensor,
    *,
    value_cost: float,
    entropy_cost: float,
    reduction: Reduction,
    standardise_advantages: bool,
) -> ActorCriticLoss:
    """Advantage actor-critic (Mnih et al. 2016, arXiv 1602.01783, section 4 and Algorithm S3).

        loss = Σ_t -log π(a_t | s_t) · A_t + value_cost · (R_t - V(s_t))² - entropy_cost · H(π(s_t))

    with A_t = R_t - V(s_t) held constant, and R_t held constant too. The sum runs over agent steps (mask = 1); it
    is divided by their number when the reduction is "mean". The paper sums over the t_max steps of one
    environment; with many environments per actor a mean keeps the scale of the gradient, and with it the meaning
    of RMSProp's epsilon, independent of their number.

    Args:
        logits: float32 [T, B, A], of the policy that is being learned.
        values: float32 [T, B].
        actions: int32 [T, B].
        returns: float32 [T, B], from `shared.returns`.
        mask: float32 [T, B].
        value_cost: weight of the squared error; the paper's is 0.5.
        entropy_cost: weight of the entropy bonus; the paper's β is 0.01.
        reduction: "sum" (the paper's) or "mean" over agent steps.
        standardise_advantages: shift and scale A_t to mean 0 and standard deviation 1 over the rollout's agent
            steps, for the policy's term only. It makes the policy's gradient as large beside the entropy's while
            rewards are rare as when they are frequent. Not in the paper.

    Returns:
        ActorCriticLoss. Gradient flows into `logits` and `values` only.

    Raises:
        ValueError: shapes that do not fit each other.
    """
    for name, tensor in (("actions", actions), ("returns", returns), ("mask", mask)):
        if not values.shape.is_compatible_with(tensor.shape):
            raise ValueError(f"{name} of shape {tensor.shape} do not fit values of shape {values.shape}")
    returns = tf.stop_gradient(returns)
    agent_steps = tf.maximum(tf.reduce_sum(mask), 1.0)

    def mean(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(mask * x) / agent_steps

    advantages = tf.stop_gradient(returns - values)
    if standardise_advantages:
        centred = advantages - mean(advantages)
        # 1e-8 only keeps constant advantages finite: they become 0.
        advantages = centred * tf.math.rsqrt(mean(tf.square(centred)) + 1e-8)
    policy = -mean(categorical_log_prob(logits, actions) * advantages)
    value = mean(tf.square(returns - values))
    entropy = mean(categorical_entropy(logits))
    total = policy + value_cost * value - entropy_cost * entropy
    if reduction == "sum":
        total *= agent_steps
    return ActorCriticLoss(total, policy, value, entropy)
