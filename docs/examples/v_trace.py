"""V-trace of IMPALA (Espeholt et al. 2018, arXiv 1802.01561) as a method of one's own: it corrects for policy lag.

In this folder: `tributary train cartpole --environment.import v_trace --method.name v_trace --actor.minibatches 1`.
With one minibatch each gradient has targets at its own weights; at the weights that acted all ratios are 1.
"""

from typing import ClassVar

import tensorflow as tf

import tributary_rl as tributary
from shared.methods.actor_critic import ActorCritic
from shared.methods.method import MethodLoss, Samples, TargetInputs, Targets
from shared.networks import NetworkOutput


def v_trace(
    rewards: tf.Tensor,
    discounts: tf.Tensor,
    values: tf.Tensor,
    bootstrap_value: tf.Tensor,
    mask: tf.Tensor,
    ratios: tf.Tensor,
    largest_rho: float,
    largest_c: float,
) -> Targets:
    """Equation 1 of the paper, backwards in time, and the advantages of its section 4.2.

        δ_t = ρ_t (r_t + d_t V_{t+1} - V_t),    v_t = V_t + δ_t + d_t c_t (v_{t+1} - V_{t+1})
        advantage_t = ρ_t (r_t + d_t v_{t+1} - V_t),    ρ_t = min(ρ̄, ratio_t),    c_t = min(c̄, ratio_t)

    All arguments and results are float32 [T, B], `bootstrap_value` [B]; `ratios` are π(a | s) / μ(a | s). A masked step
    is the reset after an episode: its target is its own value.
    """
    live, rhos, cs = mask > 0.5, tf.minimum(largest_rho, ratios), tf.minimum(largest_c, ratios)
    errors = tf.where(live, rhos * (rewards + discounts * _after(values, bootstrap_value) - values), 0.0)
    carried = tf.where(live, discounts * cs, 0.0)
    correction, corrections = tf.zeros_like(bootstrap_value), []
    for error, weight in reversed(list(zip(tf.unstack(errors), tf.unstack(carried), strict=True))):
        correction = error + weight * correction
        corrections.append(correction)
    targets = values + tf.stack(corrections[::-1])
    return Targets(targets, rhos * (rewards + discounts * _after(targets, bootstrap_value) - values))


def _after(values: tf.Tensor, bootstrap_value: tf.Tensor) -> tf.Tensor:
    return tf.concat([values[1:], bootstrap_value[None]], axis=0)


class VTrace(ActorCritic):
    """An actor-critic with V-trace in place of the clipped ratio. `--method.options largest_rho 2` sets ρ̄."""

    options: ClassVar = {"largest_rho": 1.0, "largest_c": 1.0}

    def targets(self, inputs: TargetInputs) -> Targets:
        """Graph code: see `Method.targets`."""
        _, _, rewards, discounts, mask, *_ = inputs.rollout
        ratios = tf.exp(inputs.log_probs - inputs.behaviour_log_probs)
        bootstrap_value, bounds = self.bootstrap_value(inputs), self.config.method.options
        return v_trace(rewards, discounts, inputs.values, bootstrap_value, mask, ratios, **bounds)

    def sample_loss(self, output: NetworkOutput, samples: Samples) -> MethodLoss:
        """Graph code: the plain policy gradient, whose advantages have the ratio."""
        return super().sample_loss(output, samples._replace(behaviour_log_probs=None))


tributary.register_method("v_trace", VTrace, continuous_actions=True)
