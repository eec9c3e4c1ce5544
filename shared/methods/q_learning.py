"""Asynchronous n-step Q-learning and Sarsa, with their one-step forms as the case `n_step` = 1."""

import numpy as np
import tensorflow as tf

from shared.distributions import allowed_actions
from shared.exploration import EpsilonGreedy, Explorer
from shared.losses import masked_mean, number_of_steps, squared_errors, values_of_actions
from shared.methods.method import (
    Method,
    MethodLoss,
    RolloutTensors,
    Samples,
    TargetInputs,
    Targets,
    dead_units,
    explained_variance,
)
from shared.networks import Head, Network, NetworkOutput


class QLearning(Method):
    """Asynchronous n-step Q-learning (Mnih et al. 2016, arXiv 1602.01783, Algorithm S2).

        R = 0 at a terminal, else max_a Q(s, a; θ⁻);    backwards R ← r + γR;    gradient of (R - Q(s, a; θ))²

    Actions are ε-greedy. `n_step` = 1 is Algorithm 1 of the paper.

    Without a target network θ⁻ are the weights that acted (Gallici et al. 2024, arXiv 2407.04811), or, with fresh
    gradients of whole rollouts, those of the gradient: targets bootstrap from their values.
    """

    preferences_are = "action value"
    action_head = "action_values"

    def heads(self) -> tuple[Head, ...]:
        return (Head("action_values", self.actions.size, gain=0.01),)

    def explorer(self, environments: int, seed: int, *, training: bool) -> Explorer:
        masked = self.config.environment.action_mask is not None
        return EpsilonGreedy(
            self.config.exploration, environments, self.actions.size, seed, training=training, masked=masked
        )

    def greedy(self, output: NetworkOutput) -> tf.Tensor:
        return tf.argmax(output.heads["action_values"], axis=-1, output_type=tf.int32)

    def value(self, output: NetworkOutput) -> tf.Tensor:
        return tf.reduce_max(output.heads["action_values"], axis=-1)

    def preferences(self, output: NetworkOutput) -> tf.Tensor | None:
        values = output.heads["action_values"]
        return (
            values if self.config.environment.action_mask is None else tf.where(allowed_actions(values), values, np.nan)
        )

    def targets(self, inputs: TargetInputs) -> Targets:
        if inputs.target_network is None:
            bootstrap_values = self._online_values(inputs)
        else:
            bootstrap_values = self._target_values(inputs.target_network, inputs.rollout)
        returns = self._lambda_returns(inputs.rollout, bootstrap_values[:-1], bootstrap_values[-1])
        return Targets(returns, tf.zeros_like(returns))

    def sample_loss(self, output: NetworkOutput, samples: Samples) -> MethodLoss:
        """The sum of (R - Q(s, a))² over agent steps, or its mean."""
        values = values_of_actions(output.heads["action_values"], samples.actions)
        total = tf.reduce_sum(squared_errors(values, samples.returns, samples.mask))
        mean = total / number_of_steps(samples.mask)
        statistics = {
            "value_loss": mean,
            "mean_action_value": masked_mean(self.value(output), samples.mask),
            "explained_variance": explained_variance(samples.returns, values, samples.mask),
            "dead_units": dead_units(output.features),
        }
        return MethodLoss(total if self.config.method.reduction == "sum" else mean, statistics)

    def _online_values(self, inputs: TargetInputs) -> tf.Tensor:
        """Bootstrap values at each time, float32 [T + 1, B], by the weights of `inputs.network`."""
        return tf.concat([inputs.values, self.bootstrap_value(inputs)[None]], axis=0)

    def _target_values(self, target_network: Network, rollout: RolloutTensors) -> tf.Tensor:
        """Bootstrap values by the target network; zeros at times where no target bootstraps."""
        settings = self.config.method
        unroll_length = rollout.rewards.shape[0]

        def at_all_times() -> tf.Tensor:
            return self._values(target_network, rollout.observations, rollout)

        def at_the_end() -> tf.Tensor:
            last = self._values(target_network, rollout.observations[-1:], rollout)
            return tf.concat([tf.zeros_like(rollout.rewards), last], axis=0)

        bootstraps_on_the_way = settings.return_lambda < 1.0 or (settings.n_step or unroll_length) < unroll_length
        # With a memory, the target network's own state at the end follows from that of acting at time 0.
        if bootstraps_on_the_way or target_network.state_units:
            return tf.stop_gradient(at_all_times())
        # Targets reach to the end of the rollout, except from an episode truncated on the way: its masked reset has the
        # last observation. Most rollouts have none, and need T fewer evaluations.
        return tf.stop_gradient(tf.cond(tf.reduce_all(rollout.mask > 0.5), at_the_end, at_all_times))

    def _values(self, target_network: Network, observations: tf.Tensor, rollout: RolloutTensors) -> tf.Tensor:
        """V(s) for the last N observations of the rollout: float32 [N, B]."""
        return tf.reduce_max(_action_values(target_network, observations, rollout), axis=-1)


class Sarsa(QLearning):
    """Asynchronous n-step Sarsa (arXiv 1602.01783, section 4): R = Q(s, a; θ⁻) of the action a that was taken next."""

    needs_next_actions = True

    def _online_values(self, inputs: TargetInputs) -> tf.Tensor:
        # Acting gives values of the best actions, not of the actions taken.
        return self._target_values(inputs.network, inputs.rollout)

    def _values(self, target_network: Network, observations: tf.Tensor, rollout: RolloutTensors) -> tf.Tensor:
        actions = tf.concat([rollout.actions, rollout.next_actions[None]], axis=0)
        targets = _action_values(target_network, observations, rollout)
        return values_of_actions(targets, actions[-observations.shape[0] :])


def _action_values(network: Network, observations: tf.Tensor, rollout: RolloutTensors) -> tf.Tensor:
    """Q(s, ·) for the last N observations of the rollout: float32 [N, B, A]. With a memory N is T + 1."""
    mask = tf.concat([rollout.mask, tf.ones_like(rollout.mask[:1])], axis=0)[-observations.shape[0] :]
    return network.unroll(observations, rollout.first_state, mask).heads["action_values"]
