"""From a rollout to the flat gradient of the method's loss."""

import tensorflow as tf

from actors.environments import EnvironmentSpec
from actors.policy import Policy, assign_graph, build_network
from shared.config import RunConfig
from shared.graph import Graph, as_array
from shared.methods.method import RolloutTensors
from shared.types import Float32Array, Rollout, WeightSnapshot


class RolloutGradient:
    """The gradient of a method's loss over one rollout, as one graph call.

    The graph returns the gradient and updates nothing: a `tf.function` that also applied it could read weights
    that were already updated.

    Args:
        config: of the run.
        spec: of its environment.
        policy: whose network is differentiated.
    """

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, policy: Policy) -> None:
        self._policy = policy
        self._target_network = None
        self._target_version: int | None = None
        if policy.method.uses_target_network:
            self._target_network = build_network(config, spec, policy.method)
            self._assign_target = assign_graph(self._target_network, policy.layout)
        self._statistics: tuple[str, ...] = ()
        steps = (config.actor.unroll_length, config.actor.environments)
        actions = spec.actions
        self._graph = Graph(
            self._gradient_graph,
            [
                tf.TensorSpec((steps[0] + 1, steps[1], *spec.observation_shape), spec.observation_dtype),
                tf.TensorSpec((*steps, *actions.shape), actions.dtype),
                tf.TensorSpec(steps, tf.float32),
                tf.TensorSpec(steps, tf.float32),
                tf.TensorSpec(steps, tf.float32),
                tf.TensorSpec((steps[1], *actions.shape), actions.dtype),
            ],
        )

    @property
    def traces(self) -> int:
        """How often its graph was traced."""
        return self._graph.traces

    def assign_target(self, target: WeightSnapshot) -> None:
        """Set the target network, unless it is that version already."""
        if target.version != self._target_version:
            self._assign_target(target.parameters)
            self._target_version = target.version

    def __call__(self, rollout: Rollout) -> tuple[Float32Array, dict[str, float]]:
        """The gradient float32 [P] of the rollout's loss, and the method's statistics by name."""
        gradient, statistics = self._graph(*rollout)
        return as_array(gradient), dict(zip(self._statistics, statistics.numpy().tolist(), strict=True))

    def _gradient_graph(self, *rollout: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        network = self._policy.network
        # Arrays reach this function as they are when graphs are run eagerly, to debug.
        tensors = RolloutTensors(*(tf.convert_to_tensor(x) for x in rollout))
        tensors = tensors._replace(activations=self._policy.activations)
        with tf.GradientTape() as tape:
            loss = self._policy.method.loss(network, self._target_network, tensors)
        by_variable = tape.gradient(loss.total, network.trainable_variables)
        # A weight that the loss does not look at has gradient 0. So have running moments, the last in the layout, which
        # no gradient trains.
        by_variable += [None] * (len(self._policy.layout.sizes) - len(by_variable))
        pieces = zip(by_variable, self._policy.layout.sizes, strict=True)
        flat = tf.concat([tf.zeros(size) if g is None else tf.reshape(g, [-1]) for g, size in pieces], axis=0)
        self._statistics = tuple(loss.statistics)
        return flat, tf.stack(list(loss.statistics.values()))
