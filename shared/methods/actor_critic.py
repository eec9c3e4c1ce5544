"""Asynchronous advantage actor-critic, for discrete and for continuous actions."""

import numpy as np
import tensorflow as tf

from shared.config import RunConfig
from shared.distributions import (
    categorical_entropy,
    categorical_log_prob,
    categorical_mode,
    gaussian_entropy,
    gaussian_log_prob,
    spherical,
    state_dependent_log_std,
)
from shared.exploration import CategoricalSampler, Explorer, GaussianNoise, StateDependentNoise
from shared.losses import (
    clipped_surrogate_loss,
    masked_mean,
    number_of_steps,
    policy_gradient_loss,
    squared_errors,
)
from shared.methods.method import Method, MethodLoss, Samples, TargetInputs, Targets, dead_units, explained_variance
from shared.networks import Head, NetworkOutput
from shared.schedules import linear_anneal
from shared.types import ActionSpec, Float32Array


class ActorCritic(Method):
    """A3C (Mnih et al. 2016, arXiv 1602.01783, Algorithm S3).

    Discrete actions: a categorical policy, or one for each of several choices that are made at once. Continuous ones: a
    diagonal Gaussian, whose mean is the policy head and whose log σ is a free parameter per action dimension, or, with
    state-dependent noise, per hidden unit and action dimension (Raffin et al. 2022, arXiv 2005.05719). With spherical
    noise the policy head has one more output, for a σ of all dimensions (section 9 of the supplement). The density is
    of the sampled action; clipping to the environment's bounds happens in the environment.

    Later gradients of a rollout, with newer weights than acting, use the clipped ratio of Schulman et al. 2017 (arXiv
    1707.06347, eq. 7).
    """

    preferences_are = "probability"
    action_head = "policy"

    def __init__(self, config: RunConfig, actions: ActionSpec) -> None:
        super().__init__(config, actions)
        self._entropy_cost: float | tf.Variable = config.method.entropy_cost
        if config.method.final_entropy_cost is not None:
            # The graph of the loss is traced once.
            self._entropy_cost = tf.Variable(config.method.entropy_cost, trainable=False, name="entropy_cost")

    def begin(self, frames: int) -> None:
        settings, annealing_frames = self.config.method, self.config.annealing_frames
        if settings.final_entropy_cost is not None:
            assert not isinstance(self._entropy_cost, float)
            cost = linear_anneal(settings.entropy_cost, settings.final_entropy_cost, frames, annealing_frames)
            self._entropy_cost.assign(cost)

    def heads(self) -> tuple[Head, ...]:
        # Nearly zero at the start: a uniform policy, or a mean at the middle of the range.
        return Head("policy", self.actions.size + self._spherical, gain=0.01), Head("value", 1, gain=1.0)

    def parameters(self, features: int) -> dict[str, Float32Array]:
        if not self.actions.continuous or self._spherical:
            return {}
        exploration = self.config.exploration
        shape = (features, self.actions.size) if exploration.noise == "state_dependent" else (self.actions.size,)
        return {"log_std": np.full(shape, exploration.initial_log_std, np.float32)}

    def explorer(self, environments: int, seed: int, *, training: bool) -> Explorer:  # noqa: ARG002
        if not self.actions.continuous:
            return CategoricalSampler(seed, self.actions.choices)
        exploration = self.config.exploration
        if exploration.noise != "state_dependent":
            return GaussianNoise(seed, self._gaussian)
        return StateDependentNoise(environments, self.actions.size, seed, exploration.noise_persistence_agent_steps)

    def greedy(self, output: NetworkOutput) -> tf.Tensor:
        if self.actions.continuous:
            return self._gaussian(output)[0]
        return categorical_mode(output.heads["policy"], self.actions.choices)

    def value(self, output: NetworkOutput) -> tf.Tensor:
        return tf.squeeze(output.heads["value"], axis=-1)

    def preferences(self, output: NetworkOutput) -> tf.Tensor | None:
        return None if self.actions.shape else tf.nn.softmax(output.heads["policy"])

    def log_prob(self, output: NetworkOutput, actions: tf.Tensor) -> tf.Tensor:
        """log π(a | s), or its log-density: float32 of the batch shape of `actions`."""
        if not self.actions.continuous:
            return categorical_log_prob(output.heads["policy"], actions, self.actions.choices)
        return gaussian_log_prob(*self._gaussian(output), actions)

    def entropy(self, output: NetworkOutput) -> tf.Tensor:
        """Entropy of the policy in nats, differential for a Gaussian: float32 of the batch shape."""
        if not self.actions.continuous:
            return categorical_entropy(output.heads["policy"], self.actions.choices)
        mean, log_std = self._gaussian(output)
        return gaussian_entropy(tf.broadcast_to(log_std, tf.shape(mean)))

    def targets(self, inputs: TargetInputs) -> Targets:
        rollout = inputs.rollout
        returns = self._lambda_returns(rollout, inputs.values, self.bootstrap_value(inputs))
        return Targets(returns, returns - inputs.values)

    def sample_loss(self, output: NetworkOutput, samples: Samples) -> MethodLoss:
        """The mean over agent steps, times their number for the reduction "sum", of

            policy's term + value_cost · (R - V(s))² - entropy_cost · H(π(s))

        The paper sums over the t_max steps of one environment; with many environments per actor a mean keeps the scale
        of the gradient, and with it the meaning of RMSProp's epsilon, independent of their number.
        """
        settings, (actions, mask, returns, advantages, acting) = self.config.method, samples
        log_probs, values, drift = self.log_prob(output, actions), self.value(output), None
        if acting is None:
            policy = policy_gradient_loss(log_probs, advantages, mask)
        else:
            policy, drift = clipped_surrogate_loss(log_probs, acting, advantages, mask, settings.clip_ratio)
        value = masked_mean(squared_errors(values, returns, mask), mask)
        entropy = masked_mean(self.entropy(output), mask)
        total = policy + settings.value_cost * value - self._entropy_cost * entropy
        statistics = {
            "policy_loss": policy,
            "value_loss": value,
            "entropy": entropy,
            "explained_variance": explained_variance(returns, values, mask),
            "dead_units": dead_units(output.features),
        }
        if drift is not None:
            statistics |= drift._asdict()
        return MethodLoss(total * number_of_steps(mask) if settings.reduction == "sum" else total, statistics)

    @property
    def _spherical(self) -> bool:
        return self.actions.continuous and self.config.exploration.noise == "spherical"

    def _gaussian(self, output: NetworkOutput) -> tuple[tf.Tensor, tf.Tensor]:
        """μ float32 [..., D] and log σ of the policy, which broadcasts to it."""
        mean = output.heads["policy"]
        if self._spherical:
            return spherical(mean)
        log_std = output.parameters["log_std"]
        if self.config.exploration.noise == "independent":
            return mean, log_std
        return mean, state_dependent_log_std(output.features, log_std)
