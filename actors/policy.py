"""A network that acts: flat weights in, actions out."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from actors.environments import EnvironmentSpec
from shared.config import RunConfig
from shared.convolutional import ConvolutionalNetwork
from shared.graph import Graph
from shared.layout import ParameterLayout
from shared.methods.method import Method, method_class
from shared.networks import MultilayerPerceptron, Network, NetworkOutput, ObservationScale
from shared.types import Float32Array


class Acted(NamedTuple):
    """What one call of a policy gives for a batch of B observations.

    `actions` are int32 [B] or float32 [B, D]. `values` and `log_probs` are float32 [B]: `Method.value`, and log π of
    the actions as they were drawn. They are there for an actor that differentiates its rollouts more than once; log π
    also only where π has a density. `state` is the network's for the next call, one array [B, …] each: empty for
    networks without one.
    """

    actions: npt.NDArray[np.generic]
    values: Float32Array | None = None
    log_probs: Float32Array | None = None
    state: tuple[npt.NDArray[np.generic], ...] = ()


class Policy:
    """The network of a method, and its ways to act. Each way is one graph call, traced once.

    Args:
        config: of the run.
        spec: of its environment.
        environments: B, whose exploration may each have its own state.
        seed: of the sampled actions.
        training: False for an evaluator.
        unroll_length: T, to store the network's activations for the gradient of a rollout. None: they are not stored.
    """

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        *,
        environments: int = 1,
        seed: int = 0,
        training: bool = True,
        unroll_length: int | None = None,
    ) -> None:
        self.method = method_class(config.method.name)(config, spec.actions)
        self.network = build_network(config, spec, self.method)
        self.layout = ParameterLayout.of(self.network.variables)
        self._explorer = self.method.explorer(environments, seed, training=training)
        observations = tf.TensorSpec((None, *spec.observation_shape), spec.observation_dtype)
        self._assign = assign_graph(self.network, self.layout)
        self._stored: list[tf.Variable] = []
        reuses = config.actor.gradients_per_rollout > 1
        self._gives_values = training and reuses
        # The first action of a rollout that carries one over was taken with other weights. And of a rollout that is
        # reused, acting's activations would serve only the first of its gradients: storing them costs what they save.
        if unroll_length is not None and not self.method.needs_next_actions and not reuses:
            for shape, dtype in self.network.activations:
                zeros = tf.zeros((unroll_length, environments, *shape), dtype)
                self._stored.append(tf.Variable(zeros, trainable=False, name="activations"))
        step = tf.TensorSpec((), tf.int32)
        stored = tf.TensorSpec((environments, *spec.observation_shape), spec.observation_dtype)
        self._act_and_store = Graph(self._act_and_store_graph, [stored, step])
        self._act = Graph(self._act_graph, [observations])
        self._greedy = Graph(self._greedy_graph, [observations])
        self._values = Graph(self._values_graph, [observations])
        self._preferences = Graph(self._preferences_graph, [observations])

    @property
    def traces(self) -> int:
        """How often its graphs were traced."""
        graphs = (self._assign, self._act, self._act_and_store, self._greedy, self._values, self._preferences)
        return sum(graph.traces for graph in graphs)

    @property
    def activations(self) -> tuple[tf.Tensor, ...]:
        """What was stored in a rollout, [T, B, …] each: graph code. Empty if nothing is."""
        return tuple(tf.convert_to_tensor(variable) for variable in self._stored)

    def initial_parameters(self) -> Float32Array:
        """The weights it holds, float32 [P]: the initial ones before the first `assign`."""
        return self.layout.flatten([variable.numpy() for variable in self.network.variables])

    def assign(self, parameters: Float32Array, frames: int = 0) -> None:
        """Set all weights from a float32 [P], and the time, in global frames, that exploration follows."""
        self._assign(parameters)
        self._explorer.begin(frames)

    def exploration_state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Arrays that `restore_exploration` takes."""
        return self._explorer.state()

    def restore_exploration(self, state: dict[str, npt.NDArray[np.generic]]) -> None:
        """Go on with the random stream where it was. Comes before the first sample."""
        self._explorer.restore(state)

    def act(self, observations: npt.NDArray[np.generic], t: int | None = None) -> Acted:
        """Draw an action for each of observations [B, …], with exploration.

        With a time `t` of a rollout, the network's activations are stored for the rollout's gradient.
        """
        output = self._act(observations) if t is None else self._act_and_store(observations, np.int32(t))
        # What the graph does not compute it does not return.
        return Acted(*(tensor.numpy() for tensor in output))

    def greedy(self, observations: npt.NDArray[np.generic]) -> Acted:
        """Take the action that the method holds best for each of observations [B, …], without exploration."""
        return Acted(self._greedy(observations)[0].numpy())

    def values(self, observations: npt.NDArray[np.generic]) -> Float32Array:
        """What the network expects from observations [B, …]: float32 [B], see `Method.value`."""
        return self._values(observations)[0].numpy()

    def preferences(self, observations: npt.NDArray[np.generic]) -> Float32Array | None:
        """How the method weighs its actions in observations [B, …]: float32 [B, A], see `Method.preferences`."""
        output = self._preferences(observations)
        return output[0].numpy() if output else None

    def _act_graph(self, observations: tf.Tensor) -> tuple[tf.Tensor | None, ...]:
        return self._sample(self.network(observations))

    def _act_and_store_graph(self, observations: tf.Tensor, t: tf.Tensor) -> tuple[tf.Tensor | None, ...]:
        output = self.network(observations)
        for variable, activation in zip(self._stored, output.activations, strict=False):
            tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=t, updates=activation)
        return self._sample(output)

    def _sample(self, output: NetworkOutput) -> tuple[tf.Tensor | None, ...]:
        actions = self._explorer.sample(output)
        if not self._gives_values:
            # They take a tenth of the time of a small network's call.
            return (actions,)
        return actions, self.method.value(output), self.method.log_prob(output, actions)

    def _greedy_graph(self, observations: tf.Tensor) -> tf.Tensor:
        return self.method.greedy(self.network(observations))

    def _preferences_graph(self, observations: tf.Tensor) -> tf.Tensor | None:
        return self.method.preferences(self.network(observations))

    def _values_graph(self, observations: tf.Tensor) -> tf.Tensor:
        return self.method.value(self.network(observations))


def build_network(config: RunConfig, spec: EnvironmentSpec, method: Method) -> Network:
    """The network that a run's settings ask for, with its initial weights."""
    scale = None
    if spec.observation_bounds is not None and config.network.observation_scaling == "bounds":
        low, high = (np.array(bound, np.float32) for bound in spec.observation_bounds)
        # Of a uniform draw: mean (a + b)/2, variance (b - a)²/12.
        scale = ObservationScale(0.5 * (low + high), (high - low) / np.float32(12**0.5))
    network: Network
    if config.network.name == "mlp":
        network = MultilayerPerceptron(config.network, spec.observation_shape, method.heads(), config.seed, scale)
    else:
        network = ConvolutionalNetwork(
            config.network, spec.observation_shape, method.heads(), config.seed, spec.observation_mean
        )
    network.add_parameters(method.parameters(network.features))
    return network


def assign_graph(network: Network, layout: ParameterLayout) -> Graph:
    """A graph that sets all variables of `network` from a float32 [P]."""

    def assign(parameters: tf.Tensor) -> None:
        # Slices of a vector share its memory where they are aligned, as all large ones are; a split would copy them.
        for variable, offset, size in zip(network.variables, layout.offsets, layout.sizes, strict=True):
            variable.assign(tf.reshape(parameters[offset : offset + size], variable.shape))

    return Graph(assign, [tf.TensorSpec((layout.size,), tf.float32)])
