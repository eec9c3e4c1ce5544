"""The network that a run's settings ask for."""

from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from actors.environments import EnvironmentSpec
from shared.config import RunConfig
from shared.errors import setting_error
from shared.graph import Graph
from shared.layout import ParameterLayout
from shared.methods.method import Method
from shared.multi_input import MultiInputNetwork
from shared.names import NETWORKS, class_of
from shared.networks import KerasNetwork, Network, ObservationScale
from shared.recurrent import RecurrentNetwork


def build_network(config: RunConfig, spec: EnvironmentSpec, method: Method) -> Network:
    """The network that a run's settings ask for, with its initial weights."""
    settings, heads, seed = config.network, method.heads(), config.seed
    of_the_trunk = heads if settings.recurrent == "none" else ()
    made = partial(_made, settings.name)
    network: Network
    if spec.parts is not None:
        scale, mean = _observation_scale(config, spec), spec.observation_mean
        network = MultiInputNetwork(settings, spec.parts, of_the_trunk, seed, made, mean, scale)
    else:
        seen_by = spec.observation_mean if spec.images else _observation_scale(config, spec)
        network = made(settings, spec.observation_shape, of_the_trunk, seed, seen_by)
    if settings.recurrent == "lstm":
        network = RecurrentNetwork(network, heads, settings.recurrent_units, seed)
    network.add_parameters(method.parameters(network.features))
    return network


def _made(name: str, *arguments: Any) -> Network:
    """The network of this name, made of its arguments."""
    network = class_of(NETWORKS[name])(*arguments)
    unnamed = network.layers_without_a_name() if isinstance(network, KerasNetwork) else []
    if unnamed:
        raise setting_error(
            "network.name",
            name,
            f"its layer {unnamed[0]} has the name that Keras gave it, which other processes would not; name each layer",
        )
    return network


def assign_graph(network: Network, layout: ParameterLayout) -> Graph:
    """A graph that sets all variables of `network` from a float32 [P]."""

    def assign(parameters: tf.Tensor) -> None:
        # Slices of a vector share its memory where they are aligned, as all large ones are; a split would copy them.
        for variable, offset, size in zip(network.variables, layout.offsets, layout.sizes, strict=True):
            variable.assign(tf.reshape(parameters[offset : offset + size], variable.shape))

    return Graph(assign, [tf.TensorSpec((layout.size,), tf.float32)])


def _observation_scale(config: RunConfig, spec: EnvironmentSpec) -> ObservationScale | None:
    if spec.observation_bounds is None or config.network.observation_scaling != "bounds":
        return None
    low, high = (np.array(bound, np.float32) for bound in spec.observation_bounds)
    # Of a uniform draw: mean (a + b)/2, variance (b - a)²/12.
    return ObservationScale(0.5 * (low + high), (high - low) / np.float32(12**0.5))
