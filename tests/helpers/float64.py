"""The gradient of an actor-critic with `a3c_cnn`, written out in NumPy with float64, and that of a player beside it."""

from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from actors.environments import EnvironmentSpec
from actors.gradient import GradientGraphs, Gradients
from shared.config import RunConfig
from shared.layout import ParameterLayout
from shared.types import Rollout

# Strides of the convolutions. Their kernels are twice as wide: 8 and 4 pixels.
STRIDES = (4, 2)
# A unit that is closer to 0 may be open in float32 and closed in float64, or the other way: 1e-3 of a gradient.
EDGE = 1e-5


class Passed(NamedTuple):
    """A forward pass over N images: log π [N, A], values [N], and each layer's inputs and sums before the ReLU."""

    log_probs: np.ndarray
    values: np.ndarray
    inputs: list[np.ndarray]
    sums: list[np.ndarray]


class Network:
    """The network at these parameters, with kernels [inputs, units]."""

    def __init__(self, layout: ParameterLayout, parameters: np.ndarray, mean: np.ndarray | None) -> None:
        parts = [part.astype(np.float64) for part in layout.split(parameters)]
        self.kernels = [kernel.reshape(-1, kernel.shape[-1]) for kernel in parts[::2]]
        self.biases, self._mean = parts[1::2], mean

    def forward(self, images: np.ndarray) -> Passed:
        x = images / 255.0 if self._mean is None else (images - self._mean.astype(np.float64)) * 4.0 / 255.0
        inputs, sums = [], []
        for kernel, bias, stride in zip(self.kernels, self.biases, (*STRIDES, None), strict=False):
            inputs.append(x.reshape(len(x), -1) if stride is None else windows(x, stride))
            sums.append(inputs[-1] @ kernel + bias)
            x = np.maximum(sums[-1], 0.0)
        inputs.append(x)
        logits, values = (x @ self.kernels[i] + self.biases[i] for i in (-2, -1))
        return Passed(logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)), values[:, 0], inputs, sums)

    def backward(self, passed: Passed, by_logits: np.ndarray, by_values: np.ndarray) -> np.ndarray:
        """The flat gradient [P], from those by the heads' outputs [N, A] and [N]."""
        features, by_values = passed.inputs[-1], by_values[:, None]
        gradients = [*by_weights(features, by_logits), *by_weights(features, by_values)]
        by_output = by_logits @ self.kernels[-2].T + by_values @ self.kernels[-1].T
        for i in (2, 1, 0):
            by_sum = by_output.reshape(passed.sums[i].shape) * (passed.sums[i] > 0)
            gradients = [*by_weights(passed.inputs[i], by_sum), *gradients]
            by_input = by_sum @ self.kernels[i].T
            by_output = by_input if i != 1 else summed(by_input, passed.sums[0].shape, STRIDES[1])
        return np.concatenate(gradients)


def windows(x: np.ndarray, stride: int) -> np.ndarray:
    """The windows of x [N, H, W, C] that are two strides wide: [N, H', W', pixels]."""
    seen = sliding_window_view(x, (2 * stride, 2 * stride), axis=(1, 2))[:, ::stride, ::stride]
    return np.moveaxis(seen, 3, -1).reshape(*seen.shape[:3], -1)


def summed(by_windows: np.ndarray, shape: tuple[int, ...], stride: int) -> np.ndarray:
    """The gradient by x of this shape, from that by its windows."""
    x, (rows, columns) = np.zeros(shape), by_windows.shape[1:3]
    pixels = by_windows.reshape(*by_windows.shape[:3], 2 * stride, 2 * stride, -1)
    for i, j in np.ndindex(2 * stride, 2 * stride):
        x[:, i : i + stride * rows : stride, j : j + stride * columns : stride] += pixels[:, :, :, i, j]
    return x


def by_weights(inputs: np.ndarray, by_sum: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rows = by_sum.reshape(-1, by_sum.shape[-1])
    return (inputs.reshape(len(rows), -1).T @ rows).ravel(), rows.sum(axis=0)


def gradient(config: RunConfig, acting: Network, network: Network, rollout: Rollout) -> np.ndarray:
    """The gradient [P] of the mean loss over a rollout that `acting` has played, with no frames before it."""
    method, images = config.method, rollout.observations.reshape(-1, *rollout.observations.shape[2:])
    played, passed = acting.forward(images), network.forward(images[: rollout.mask.size])
    # A whole rollout has new targets for each gradient.
    whole = config.actor.fresh_gradients and config.actor.minibatches == 1
    values = (network.forward(images) if whole else played).values.reshape(-1, rollout.mask.shape[1])
    live, returns = rollout.mask > 0.5, np.empty(rollout.mask.shape)
    following = values[-1]
    for t in reversed(range(len(returns))):
        target = (1.0 - method.return_lambda) * values[t + 1] + method.return_lambda * following
        following = returns[t] = np.where(live[t], rollout.rewards[t] + rollout.discounts[t] * target, values[t])
    mask, count = live.ravel(), live.sum()
    advantages, returns = (returns - values[:-1]).ravel(), returns.ravel()
    # In the first window of 1,024 agent steps, missing ones count as 0 in the mean.
    centre = advantages[mask].sum() / (max(count, 1024) if config.actor.fresh_gradients else count)
    if method.standardise_advantages:
        advantages = (advantages - centre) / np.sqrt(np.square(advantages[mask] - centre).mean() + 1e-8)
    taken = np.arange(mask.size), rollout.actions.ravel()
    ratios = np.exp(passed.log_probs[taken] - played.log_probs[: mask.size][taken])
    bounded = np.clip(ratios, 1.0 - method.clip_ratio, 1.0 + method.clip_ratio)
    slopes = np.where(ratios * advantages <= bounded * advantages, -ratios * advantages, 0.0)
    probabilities = np.exp(passed.log_probs)
    entropies = -(probabilities * passed.log_probs).sum(axis=-1, keepdims=True)
    by_logits = method.entropy_cost * probabilities * (passed.log_probs + entropies) - probabilities * slopes[:, None]
    by_logits[taken] += slopes
    by_values = 2.0 * method.value_cost * (passed.values - returns)
    return network.backward(passed, by_logits * mask[:, None] / count, by_values * mask / count)


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
    observations, shape = np.asarray(rollout.observations), rollout.mask.shape
    networks = [Network(policy.layout, parameters, spec.observation_mean) for parameters in (acting, weights)]
    passed = networks[1].forward(observations[:-1].reshape(-1, *spec.observation_shape))
    on_edge = np.any([(np.abs(x) < EDGE).reshape(len(x), -1).any(axis=1) for x in passed.sums], axis=0)
    rollout = rollout._replace(
        rewards=random.integers(-1, 2, shape).astype(np.float32),
        discounts=rollout.discounts * random.integers(0, 2, shape).astype(np.float32),
        mask=rollout.mask * (random.random(shape) < 0.8) * ~on_edge.reshape(shape),
    )
    gradients.begin(rollout)
    policy.assign(weights)
    parts = [gradients.next() for _ in range(config.actor.minibatches)]
    player.close()
    steps = rollout.mask.sum()
    assert sum(part.samples for part in parts) == steps > 0.5 * rollout.mask.size
    found = sum(part.samples / steps * part.gradient.astype(np.float64) for part in parts)
    expected = gradient(config, *networks, rollout._replace(observations=observations))
    return np.abs(found - expected).max() / np.abs(expected).max()
