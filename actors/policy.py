"""The policy of an actor: the network of a run, from `build_network`, and its ways to act, each one graph call."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from actors.environments import EnvironmentSpec
from shared.config import NetworkConfig, RunConfig
from shared.config.task import options_of
from shared.errors import ConfigurationError, setting_error
from shared.graph import Graph
from shared.layout import ParameterLayout
from shared.methods.method import Method, make_explorer, make_method
from shared.networks import Head, KerasNetwork, Network, NetworkOutput, ObservationScale
from shared.networks.composed import MaskedNetwork, MultiInputNetwork, WholeNetwork
from shared.networks.recurrent import LSTM_UNITS, RecurrentNetwork
from shared.networks.stored_activations import StoredActivations
from shared.registry import NETWORKS, import_modules, make_registered
from shared.types import Float32Array

State = tuple[Float32Array, ...]


class PolicyOutput(NamedTuple):
    """Result of a policy for a batch of B observations.

    `actions` are int32 [B(, C)] or float32 [B, D]. `values` and `log_probs` float32 [B] are `Method.value` and log π of
    the actions; they are None unless `ActorConfig.needs_behaviour`, and log π also if π has no density. `state`: of the
    network, for the next call, float32 [B, U] each, empty without a memory; see `reset_ended_states`.
    """

    actions: npt.NDArray[np.generic]
    values: Float32Array | None = None
    log_probs: Float32Array | None = None
    state: State = ()


def reset_ended_states(state: State, resets: npt.NDArray[np.bool_]) -> State:
    """The state [B, U] each before the next time: zeros where the step, bool [B], only reset."""
    if not state or not resets.any():
        return state
    return tuple(np.where(resets[:, None], np.float32(0), part) for part in state)


class Policy:
    """The network of a method, and its ways to act for B `environments`. Each is one graph call, traced once.

    `unroll_length` is T of the rollouts whose activations are stored for the gradient; None stores nothing. `network`
    is the network of another policy of the same settings; both then act with the weights that either was given last.
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
        network: Network | None = None,
        compiled: bool = False,
    ) -> None:
        self.compiled = compiled
        """True if XLA compiles the graphs that are called for each rollout on a GPU."""
        # A process without environments, like the learner, has not imported the modules yet.
        import_modules(config.environment.modules)
        self.method = make_method(config, spec.actions)
        self.network = network or build_network(config, spec, self.method)
        self.layout = ParameterLayout.of(self.network.variables)
        self._make_explorer = partial(make_explorer, config, spec.actions, self.method, environments, training=training)
        self.explorer = self._make_explorer(seed=seed)
        # The actor whose exploration the explorer has, and those of other actors that share this policy.
        self._explores_as: int | None = None
        self._explorations: dict[int, dict[str, npt.NDArray[np.generic]]] = {}
        units = self.network.state_units
        signature = [tf.TensorSpec((None, *spec.row_shape), spec.observation_dtype)]
        signature += [tf.TensorSpec((None, n), tf.float32) for n in units]
        self._assign = assign_graph(self.network, self.layout)
        needs_behaviour = config.actor.needs_behaviour
        self._gives_values = training and needs_behaviour
        # Stored activations serve one gradient at the weights of all actions of the rollout. So there are none where a
        # rollout gives several gradients, has newer weights for them, or took its first action from the last rollout.
        stores = unroll_length is not None and not self.method.needs_next_actions and not needs_behaviour
        self._stored = StoredActivations(unroll_length or 0) if stores else None
        step = tf.TensorSpec((), tf.int32)
        # Made once: with cold caches a tensor of a number takes 190 µs, a tenth of a call.
        self._times = [tf.constant(t) for t in range(unroll_length or 0)]
        batch = [tf.TensorSpec((environments, *tensor.shape[1:]), tensor.dtype) for tensor in signature]
        if self._stored is not None:
            # A graph whose first trace makes variables is traced twice: they are made here.
            with self._stored.recording(tf.constant(0)):
                self._forward(*(tf.zeros(tensor.shape, tensor.dtype) for tensor in batch))
        self._act_and_store = Graph(self._act_and_store_graph, [step, *batch])
        self._act = Graph(self.sampled, signature)
        self._greedy = Graph(self._greedy_graph, signature)
        self._values = Graph(lambda *inputs: self.method.value(self._forward(*inputs)), signature)
        self._preferences = Graph(lambda *inputs: self.method.preferences(self._forward(*inputs)), signature)

    def stored_activations(self) -> AbstractContextManager[None]:
        """Graph code: within the block the network gives its activations of acting, if they are stored."""
        return nullcontext() if self._stored is None else self._stored.replaying()

    def initial_parameters(self) -> Float32Array:
        """The current weights, float32 [P]: the initial ones before the first `assign`."""
        return self.layout.flatten([variable.numpy() for variable in self.network.variables])

    def assign(self, parameters: Float32Array, frames: int = 0) -> None:
        """Set all weights from a float32 [P], and the global frames of the schedules of exploration and loss."""
        self._assign(parameters)
        self.method.begin(frames)
        self.explorer.begin(frames)

    def add_exploration(self, actor_id: int, seed: int) -> None:
        """Begin the exploration of one more actor, with random streams of its own."""
        self._explorations[actor_id] = self._make_explorer(seed=seed).state()

    def explore_as(self, actor_id: int) -> None:
        """Go on with the exploration of an actor, and keep the previous actor's. The first actor needs no
        `add_exploration`."""
        if self._explores_as is not None and self._explores_as != actor_id:
            self._explorations[self._explores_as] = self.explorer.state()
            self.explorer.restore(self._explorations.pop(actor_id))
        self._explores_as = actor_id

    def first_state(self, environments: int) -> State:
        """The state at the start of an episode: zeros float32 [B, U] each; empty without a memory."""
        return tuple(np.zeros((environments, units), np.float32) for units in self.network.state_units)

    def act(self, observations: npt.NDArray[np.generic], state: State = (), t: int | None = None) -> PolicyOutput:
        """Draw an action for each of observations [B, …], with exploration.

        With a time `t` of a rollout, below `unroll_length`, activations are stored if the gradient will reuse them.
        """
        if t is None:
            return self._policy_output(self._act(observations, *state))
        return self._policy_output(self._act_and_store(self._times[t], observations, *state))

    def greedy(self, observations: npt.NDArray[np.generic], state: State = ()) -> PolicyOutput:
        """The greedy action for each of observations [B, …]."""
        return self._policy_output(self._greedy(observations, *state))

    def values(self, observations: npt.NDArray[np.generic], state: State = ()) -> Float32Array:
        """`Method.value` for observations [B, …]: float32 [B]."""
        return self._values(observations, *state)[0].numpy()

    def preferences(self, observations: npt.NDArray[np.generic], state: State = ()) -> Float32Array | None:
        """`Method.preferences` for observations [B, …]: float32 [B, A], or None."""
        output = self._preferences(observations, *state)
        return output[0].numpy() if output else None

    def _policy_output(self, output: Sequence[tf.Tensor]) -> PolicyOutput:
        # None outputs are not returned; the state is last.
        count = len(output) - len(self.network.state_units)
        arrays = [tensor.numpy() for tensor in output]
        return PolicyOutput(*arrays[:count])._replace(state=tuple(arrays[count:]))

    def sampled(self, *inputs: tf.Tensor) -> tuple[tf.Tensor | None, ...]:
        """Graph code: the tensors of `PolicyOutput`, from observations and the state."""
        return self._sample(self._forward(*inputs))

    def _act_and_store_graph(self, t: tf.Tensor, *inputs: tf.Tensor) -> tuple[tf.Tensor | None, ...]:
        with nullcontext() if self._stored is None else self._stored.recording(t):
            output = self._forward(*inputs)
        return self._sample(output)

    def _sample(self, output: NetworkOutput) -> tuple[tf.Tensor | None, ...]:
        actions = self.explorer.sample(output)
        if not self._gives_values:
            # Values and log π would take a tenth of the time of a small network's call.
            return actions, *output.state
        return actions, self.method.value(output), self.method.log_prob(output, actions), *output.state

    def _greedy_graph(self, *inputs: tf.Tensor) -> tuple[tf.Tensor, ...]:
        output = self._forward(*inputs)
        return self.method.greedy(output), *output.state

    def _forward(self, observations: tf.Tensor, *state: tf.Tensor) -> NetworkOutput:
        return self.network(observations, state)


def build_network(config: RunConfig, spec: EnvironmentSpec, method: Method) -> Network:
    """The network of a run, with initial weights.

    Raises:
        ConfigurationError: a network of the user does not fit its heads or observations, or cannot be made.
    """
    settings, heads, seed = config.network, method.heads(), config.seed
    of_the_trunk = heads if settings.recurrent == "none" else ()
    network: Network
    if spec.parts is not None and NETWORKS[settings.name].whole:
        shapes, means = spec.parts.shapes, spec.parts.images_of(spec.observation_mean)
        try:
            inner = _network_of(settings, shapes, of_the_trunk, seed, means)
        except ConfigurationError as error:
            raise ConfigurationError(f"{error}; the parts of an observation are {', '.join(shapes)}") from error
        assert isinstance(inner, KerasNetwork)
        network = WholeNetwork(of_the_trunk, inner.model, spec.parts)
    elif spec.parts is not None:
        scale, mean = _observation_scale(config, spec), spec.observation_mean
        network = MultiInputNetwork(settings, spec.parts, of_the_trunk, seed, _network_of, mean, scale)
    else:
        seen_by = spec.observation_mean if spec.images else _observation_scale(config, spec)
        network = _network_of(settings, spec.observation_shape, of_the_trunk, seed, seen_by)
    if settings.recurrent == "lstm":
        network = RecurrentNetwork(network, heads, LSTM_UNITS, seed)
    network.add_parameters(method.parameters(network.feature_size))
    return MaskedNetwork(network, spec.observation_shape, spec.actions, method.action_head) if spec.masked else network


def _network_of(settings: NetworkConfig, shape: Any, heads: Sequence[Head], *more: Any) -> Network:
    name = settings.name
    base = KerasNetwork if NETWORKS[name].whole else Network
    settings = replace(settings, options=options_of("network.options", name, NETWORKS, settings.options))
    network: Network = make_registered("network.name", name, NETWORKS, base, settings, shape, heads, *more)
    if not isinstance(network, KerasNetwork):
        return network
    model: Any = getattr(network, "model", None)
    problem = ""
    outputs = [] if model is None else [(str(output.dtype), *output.shape[1:]) for output in model.outputs]
    wanted = [("float32", head.units) for head in heads]
    if outputs[:-1] != wanted or not outputs or len(outputs[-1]) != 2:
        expected = ", ".join([*(f"{head.name} with {head.units} units" for head in heads), "the last hidden layer"])
        problem = f"its model has outputs {outputs}; expected are, in float32, {expected}"
    elif base is Network and not _takes(model.inputs, shape):
        problem = f"its model has inputs {[tuple(x.shape[1:]) for x in model.inputs]}; observations are {tuple(shape)}"
    elif NETWORKS[name].is_own:
        # Keras numbers the layers without names of a process.
        again: Network = make_registered("network.name", name, NETWORKS, base, settings, shape, heads, *more)
        paths = zip(network.variables, again.variables, strict=True)
        if unnamed := [one.path for one, other in paths if one.path != other.path]:
            problem = f"its weight {unnamed[0]} has another name in each process; name layers, and weights of own ones"
    if problem:
        raise setting_error("network.name", name, problem)
    return network


def _takes(inputs: Sequence[Any], shape: Sequence[int]) -> bool:
    """True if the only input of a model has this shape; None stands for any size."""
    return len(inputs) == 1 and tf.TensorShape(inputs[0].shape[1:]).is_compatible_with(tuple(shape))


def assign_graph(network: Network, layout: ParameterLayout) -> Graph:
    """A graph that sets all variables of a network from float32 [P]."""

    def assign(parameters: tf.Tensor) -> None:
        # Aligned slices of a vector share its memory; `tf.split` would copy them.
        for variable, offset, size in zip(network.variables, layout.offsets, layout.sizes, strict=True):
            variable.assign(tf.reshape(parameters[offset : offset + size], variable.shape))

    return Graph(assign, [tf.TensorSpec((layout.size,), tf.float32)])


def _observation_scale(config: RunConfig, spec: EnvironmentSpec) -> ObservationScale | None:
    if spec.observation_bounds is None or config.network.observation_scaling != "bounds":
        return None
    low, high = (np.array(bound, np.float32) for bound in spec.observation_bounds)
    # A uniform draw has mean (a + b)/2 and variance (b - a)²/12.
    return ObservationScale(0.5 * (low + high), (high - low) / np.float32(12**0.5))
