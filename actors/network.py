"""The network that a run's settings ask for."""

import numpy as np
import tensorflow as tf

from actors.environments import EnvironmentSpec
from shared.config import RunConfig
from shared.convolutional import ConvolutionalNetwork
from shared.graph import Graph
from shared.layout import ParameterLayout
from shared.methods.method import Method
from shared.networks import Network, ObservationScale
from shared.perceptron import MultilayerPerceptron
from shared.recurrent import RecurrentNetwork
from shared.residual import ResidualNetwork


def build_network(config: RunConfig, spec: EnvironmentSpec, method: Method) -> Network:
    """The network that a run's settings ask for, with its initial weights."""
    settings, heads = config.network, method.heads()
    of_the_trunk = heads if settings.recurrent == "none" else ()
    shape, seed = spec.observation_shape, config.seed
    network: Network
    if settings.name == "mlp":
        network = MultilayerPerceptron(settings, shape, of_the_trunk, seed, _observation_scale(config, spec))
    elif settings.name == "impala_resnet":
        network = ResidualNetwork(settings, shape, of_the_trunk, seed, spec.observation_mean)
    else:
        network = ConvolutionalNetwork(settings, shape, of_the_trunk, seed, spec.observation_mean)
    if settings.recurrent == "lstm":
        network = RecurrentNetwork(network, heads, settings.recurrent_units, seed)
    network.add_parameters(method.parameters(network.features))
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
