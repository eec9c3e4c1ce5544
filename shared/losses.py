"""Losses as pure functions: tensors and floats in, a NamedTuple out; no variables, no logging, no configuration."""

from typing import Literal, NamedTuple

import tensorflow as tf

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
    log_probs: tf.Tensor,
    entropies: tf.Tensor,
    values: tf.Tensor,
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
        log_probs: float32 [T, B], log π(a_t | s_t) of the policy that is being learned, from `shared.distributions`.
        entropies: float32 [T, B], H(π(s_t)).
        values: float32 [T, B].
        returns: float32 [T, B], from `shared.returns`.
        mask: float32 [T, B].
        value_cost: weight of the squared error; the paper's is 0.5.
        entropy_cost: weight of the entropy bonus; the paper's β is 0.01.
        reduction: "sum" (the paper's) or "mean" over agent steps.
        standardise_advantages: shift and scale A_t to mean 0 and standard deviation 1 over the rollout's agent
            steps, for the policy's term only. It makes the policy's gradient as large beside the entropy's while
            rewards are rare as when they are frequent. Not in the paper.

    Returns:
        ActorCriticLoss. Gradient flows into `log_probs`, `entropies` and `values` only.

    Raises:
        ValueError: shapes that do not fit each other: (N,) against (N, 1) would broadcast to (N, N).
    """
    _refuse_other_shapes(values, log_probs=log_probs, entropies=entropies, returns=returns, mask=mask)
    returns = tf.stop_gradient(returns)
    agent_steps = tf.maximum(tf.reduce_sum(mask), 1.0)

    def mean(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(mask * x) / agent_steps

    advantages = tf.stop_gradient(returns - values)
    if standardise_advantages:
        centred = advantages - mean(advantages)
        # 1e-8 only keeps constant advantages finite: they become 0.
        advantages = centred * tf.math.rsqrt(mean(tf.square(centred)) + 1e-8)
    policy = -mean(log_probs * advantages)
    value = mean(tf.square(returns - values))
    entropy = mean(entropies)
    total = policy + value_cost * value - entropy_cost * entropy
    if reduction == "sum":
        total *= agent_steps
    return ActorCriticLoss(total, policy, value, entropy)


class ActionValueLoss(NamedTuple):
    """The loss to minimise, and the mean error over agent steps whatever the reduction is. Scalars float32."""

    total: tf.Tensor
    value: tf.Tensor


def action_value_loss(
    action_values: tf.Tensor,
    actions: tf.Tensor,
    returns: tf.Tensor,
    mask: tf.Tensor,
    *,
    error: Literal["squared", "huber"],
    reduction: Reduction,
) -> ActionValueLoss:
    """n-step Q-learning and Sarsa (Mnih et al. 2016, arXiv 1602.01783, Algorithm S2).

        loss = Σ_t (R_t - Q(s_t, a_t))²

    with R_t held constant. "huber" is (R - Q)² up to an error of 1 and 2|R - Q| - 1 beyond it, so that the gradient
    by Q stays within [-2, 2]; it is twice the usual form, to be the squared error where errors are small.

    Args:
        action_values: float32 [T, B, A], Q(s_t, ·; θ).
        actions: int32 [T, B].
        returns: float32 [T, B], from `shared.returns`, bootstrapped from the target network.
        mask: float32 [T, B].
        error: "squared" (the paper's) or "huber".
        reduction: "sum" (the paper's) or "mean" over agent steps.

    Returns:
        ActionValueLoss. Gradient flows into `action_values` only.

    Raises:
        ValueError: shapes that do not fit each other.
    """
    values = chosen(action_values, actions)
    _refuse_other_shapes(values, returns=returns, mask=mask)
    difference = tf.stop_gradient(returns) - values
    if error == "squared":
        errors = tf.square(difference)
    else:
        size = tf.abs(difference)
        errors = tf.where(size <= 1.0, tf.square(difference), 2.0 * size - 1.0)
    summed, agent_steps = tf.reduce_sum(mask * errors), tf.maximum(tf.reduce_sum(mask), 1.0)
    mean = summed / agent_steps
    return ActionValueLoss(summed if reduction == "sum" else mean, mean)


def chosen(action_values: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """Q(s, a) of the actions that were taken: float32 [..., A] and int32 [...] -> float32 [...].

    Raises:
        ValueError: the shape of `actions` is not that of `action_values` without its last axis.
    """
    if not action_values.shape[:-1].is_compatible_with(actions.shape):
        raise ValueError(f"actions of shape {actions.shape} do not fit action values of shape {action_values.shape}")
    return tf.gather(action_values, actions, axis=-1, batch_dims=actions.shape.rank)


def _refuse_other_shapes(values: tf.Tensor, **others: tf.Tensor) -> None:
    for name, tensor in others.items():
        if not values.shape.is_compatible_with(tensor.shape):
            raise ValueError(f"{name} of shape {tensor.shape} do not fit values of shape {values.shape}")
