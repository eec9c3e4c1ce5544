"""The graphs of an actor: flat weights in, actions out, and from a rollout to the flat gradient."""

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from actors.environments import EnvironmentSpec
from shared.config import MethodConfig, NetworkConfig
from shared.distributions import categorical_sample
from shared.layout import ParameterLayout
from shared.losses import actor_critic_loss
from shared.networks import ActorCriticNetwork
from shared.returns import lambda_returns
from shared.types import Float32Array, Rollout, RolloutStatistics


class Policy:
    """A network that acts. Each method is one graph call, traced once.

    Args:
        network_config, spec: what to build.
        seed: of the initial weights and of the sampled actions.
    """

    def __init__(self, network_config: NetworkConfig, spec: EnvironmentSpec, *, weight_seed: int, seed: int) -> None:
        self.network = ActorCriticNetwork(
            network_config, spec.observation_shape, spec.actions, weight_seed, spec.observation_mean
        )
        self.layout = ParameterLayout.of(self.network.variables)
        self._generator = tf.random.Generator.from_seed(seed)
        observations = tf.TensorSpec((None, *spec.observation_shape), spec.observation_dtype)
        self._assign = tf.function(self._assign_graph, input_signature=[tf.TensorSpec((self.layout.size,), tf.float32)])
        self._sample = tf.function(self._sample_graph, input_signature=[observations])
        self._greedy = tf.function(self._greedy_graph, input_signature=[observations])

    def assign(self, parameters: Float32Array) -> None:
        """Set all weights from a float32 [P]."""
        self._assign(parameters)

    def sample(self, observations: npt.NDArray[np.generic]) -> npt.NDArray[np.int32]:
        """Actions int32 [B], sampled from the policy, for observations [B, …]."""
        return self._sample(observations).numpy()

    def greedy(self, observations: npt.NDArray[np.generic]) -> npt.NDArray[np.int32]:
        """The most probable actions int32 [B], for observations [B, …]."""
        return self._greedy(observations).numpy()

    def _assign_graph(self, parameters: tf.Tensor) -> None:
        parts = tf.split(parameters, self.layout.sizes)
        for variable, part in zip(self.network.variables, parts, strict=True):
            variable.assign(tf.reshape(part, variable.shape))

    def _sample_graph(self, observations: tf.Tensor) -> tf.Tensor:
        return categorical_sample(self.network(observations).logits, self._generator)

    def _greedy_graph(self, observations: tf.Tensor) -> tf.Tensor:
        return tf.argmax(self.network(observations).logits, axis=-1, output_type=tf.int32)


class PolicyGradient:
    """The gradient of the actor-critic loss over one rollout, as one graph call.

    The graph returns the gradient and updates nothing: a `tf.function` that also applied it could read weights
    that were already updated.

    Args:
        policy: whose network is differentiated.
        config: the loss.
        unroll_length, environments: T and B of the rollouts.
        spec: of the environment.
    """

    def __init__(
        self, policy: Policy, config: MethodConfig, unroll_length: int, environments: int, spec: EnvironmentSpec
    ) -> None:
        self._network = policy.network
        self._config = config
        steps = (unroll_length, environments)
        self._graph = tf.function(
            self._gradient_graph,
            input_signature=[
                tf.TensorSpec((unroll_length + 1, environments, *spec.observation_shape), spec.observation_dtype),
                tf.TensorSpec(steps, tf.int32),
                tf.TensorSpec(steps, tf.float32),
                tf.TensorSpec(steps, tf.float32),
                tf.TensorSpec(steps, tf.float32),
            ],
        )

    def __call__(self, rollout: Rollout) -> tuple[Float32Array, RolloutStatistics]:
        """The gradient float32 [P] of the rollout's loss, and its statistics."""
        gradient, statistics = self._graph(*rollout)
        return gradient.numpy(), RolloutStatistics(*statistics.numpy().tolist())

    def _gradient_graph(
        self, observations: tf.Tensor, actions: tf.Tensor, rewards: tf.Tensor, discounts: tf.Tensor, mask: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        steps = actions.shape
        batch = tf.reshape(observations[:-1], (steps.num_elements(), *observations.shape[2:]))
        bootstrap_value = self._network(observations[-1]).values
        with tf.GradientTape() as tape:
            output = self._network(batch)
            logits = tf.reshape(output.logits, (*steps, -1))
            values = tf.reshape(output.values, steps)
            returns = lambda_returns(
                rewards, discounts, tf.stop_gradient(values), bootstrap_value, mask, self._config.return_lambda
            )
            loss = actor_critic_loss(
                logits,
                values,
                actions,
                returns,
                mask,
                value_cost=self._config.value_cost,
                entropy_cost=self._config.entropy_cost,
                reduction=self._config.reduction,
                standardise_advantages=self._config.standardise_advantages,
            )
        gradients = tape.gradient(loss.total, self._network.variables)
        flat = tf.concat([tf.reshape(g, [-1]) for g in gradients], axis=0)
        statistics = tf.stack(
            [
                loss.policy,
                loss.value,
                loss.entropy,
                explained_variance(returns, values, mask),
                dead_units(output.features),
            ]
        )
        return flat, statistics


def explained_variance(returns: tf.Tensor, values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """1 - Var(R - V) / Var(R) over agent steps, float32 scalar; 0 where the returns do not vary."""
    agent_steps = tf.maximum(tf.reduce_sum(mask), 1.0)

    def variance(x: tf.Tensor) -> tf.Tensor:
        mean = tf.reduce_sum(mask * x) / agent_steps
        return tf.reduce_sum(mask * tf.square(x - mean)) / agent_steps

    total = variance(returns)
    return tf.where(total > 1e-12, 1.0 - variance(returns - values) / tf.maximum(total, 1e-12), 0.0)


def dead_units(features: tf.Tensor) -> tf.Tensor:
    """Share of the units of float [N, H] that are 0 for every row: float32 scalar. Tanh units never count."""
    return tf.reduce_mean(tf.cast(tf.reduce_all(tf.equal(features, 0), axis=0), tf.float32))
