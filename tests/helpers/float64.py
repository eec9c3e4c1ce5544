"""The gradient of an actor-critic with `a3c_cnn`, by TensorFlow in float64, and that of a player beside it."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from actors.environments import EnvironmentSpec
from actors.gradient import GradientGraphs, Gradients
from shared.config import RunConfig
from shared.layout import ParameterLayout
from shared.types import Rollout

# A unit that is closer to 0 may be open in float32 and closed in float64, or the other way: 1e-3 of a gradient.
EDGE = 1e-5


class Passed(NamedTuple):
    """A forward pass over N images: log π [N, A], values [N], and whether a unit is on the edge [N]."""

    log_probs: tf.Tensor
    values: tf.Tensor
    on_edge: tf.Tensor


def forward(layout: ParameterLayout, parameters: tf.Tensor, mean: np.ndarray | None, images: np.ndarray) -> Passed:
    tensors = zip(tf.split(parameters, layout.sizes), layout.shapes, strict=True)
    parts = [tf.reshape(part, shape) for part, shape in tensors]
    x = images / 255.0 if mean is None else (images - mean.astype(np.float64)) * 4.0 / 255.0
    on_edge = np.zeros(len(images), bool)
    for kernel, bias, stride in zip(parts[::2], parts[1::2], (4, 2, None), strict=False):
        if stride is None:
            x = tf.reshape(x, (len(images), -1)) @ kernel + bias
        else:
            x = tf.nn.conv2d(x, kernel, stride, "VALID") + bias
        on_edge |= tf.reduce_any(tf.reshape(tf.abs(x) < EDGE, (len(images), -1)), axis=1)
        x = tf.nn.relu(x)
    logits, values = (x @ parts[i] + parts[i + 1] for i in (-4, -2))
    return Passed(tf.nn.log_softmax(logits), values[:, 0], on_edge)


def mean_loss(config: RunConfig, played: Passed, now: Passed, rollout: Rollout) -> tf.Tensor:
    """Over a rollout with no frames before it: `played` at the weights that acted, `now` at those of the gradient."""
    method, (steps, count) = config.method, rollout.mask.shape
    # A whole rollout has new targets for each gradient.
    whole = config.actor.fresh_gradients and config.actor.minibatches == 1
    values = (now if whole else played).values.numpy().reshape(steps + 1, count)
    live, returns = rollout.mask > 0.5, np.empty(rollout.mask.shape)
    following = values[-1]
    for t in reversed(range(steps)):
        target = (1.0 - method.return_lambda) * values[t + 1] + method.return_lambda * following
        following = returns[t] = np.where(live[t], rollout.rewards[t] + rollout.discounts[t] * target, values[t])
    mask = live.ravel()
    advantages, returns = (returns - values[:-1]).ravel(), returns.ravel()
    # In the first window of 1,024 agent steps, missing ones count as 0 in the mean.
    centre = advantages[mask].sum() / (max(mask.sum(), 1024) if config.actor.fresh_gradients else mask.sum())
    if method.standardise_advantages:
        advantages = (advantages - centre) / np.sqrt(np.square(advantages[mask] - centre).mean() + 1e-8)
    taken = np.stack([np.arange(mask.size), rollout.actions.ravel()], axis=1)
    ratios = tf.exp(tf.gather_nd(now.log_probs, taken) - tf.stop_gradient(tf.gather_nd(played.log_probs, taken)))
    bounded = tf.clip_by_value(ratios, 1.0 - method.clip_ratio, 1.0 + method.clip_ratio)
    losses = -tf.minimum(ratios * advantages, bounded * advantages)
    losses += method.value_cost * tf.square(returns - now.values[: mask.size])
    losses += method.entropy_cost * tf.reduce_sum(tf.exp(now.log_probs) * now.log_probs, axis=-1)[: mask.size]
    return tf.reduce_mean(losses[mask])


def difference(kind: Any, config: RunConfig, spec: EnvironmentSpec, spread: float = 0.0) -> float:
    """Largest difference of a player's gradient from the one in float64, relative to its largest number.

    Over all minibatches of the second rollout, with weights that differ by `spread` from those that acted. Its rewards,
    ends and masked agent steps are drawn; those with a unit on the edge are masked, too.
    """
    policy, random = kind.make_policy(config, spec, 1), np.random.default_rng(3)
    first = policy.initial_parameters()
    acting = (first + random.normal(0.0, 0.02, first.shape)).astype(np.float32)
    weights = (acting + random.normal(0.0, spread, first.shape)).astype(np.float32)
    policy.assign(acting)
    gradients = Gradients(GradientGraphs(config, spec, policy), 1)
    player = kind(config, spec, policy, gradients, np.arange(config.actor.environments))
    player.play()
    rollout = player.play().rollout
    images, shape = np.asarray(rollout.observations), rollout.mask.shape
    images = images.reshape(-1, *spec.observation_shape)
    with tf.device("CPU"), tf.GradientTape() as tape:
        played, exact = (tf.constant(parameters, tf.float64) for parameters in (acting, weights))
        tape.watch(exact)
        passes = [forward(policy.layout, parameters, spec.observation_mean, images) for parameters in (played, exact)]
        on_edge = passes[1].on_edge[: rollout.mask.size].numpy().reshape(shape)
        rollout = rollout._replace(
            rewards=random.integers(-1, 2, shape).astype(np.float32),
            discounts=rollout.discounts * random.integers(0, 2, shape).astype(np.float32),
            mask=rollout.mask * (random.random(shape) < 0.8) * ~on_edge,
        )
        expected = tape.gradient(mean_loss(config, *passes, rollout), exact).numpy()
    gradients.begin(rollout)
    policy.assign(weights)
    parts = [gradients.next() for _ in range(config.actor.minibatches)]
    player.close()
    steps = rollout.mask.sum()
    assert sum(part.samples for part in parts) == steps > 0.5 * rollout.mask.size
    found = sum(part.samples / steps * part.gradient.astype(np.float64) for part in parts)
    return np.abs(found - expected).max() / np.abs(expected).max()
