"""The network for images and numbers, against NumPy written out and Keras' layers.

With layer norm and without.
"""

from collections.abc import Sequence

import keras
import numpy as np
import pytest
import tensorflow as tf

from shared.config import NetworkConfig
from shared.layout import ParameterLayout
from shared.networks import Head, KerasNetwork, Network
from shared.networks.composed import MultiInputNetwork
from shared.networks.convolutional import ConvolutionalNetwork
from shared.networks.recurrent import RecurrentNetwork
from shared.types import ImagePart, ObservationParts

HEADS = (Head("policy", 3, 0.01), Head("value", 1, 1.0))
# Rows of 12 + 2,592 + 1,296 bytes, and one of a length that four does not divide.
PARTS = ObservationParts(
    (("speed", 1), ("gear", 2)), (ImagePart("image_left", (36, 36, 2)), ImagePart("image_right", (36, 36, 1)))
)
TINY = ObservationParts((("speed", 2),), (ImagePart("image_camera", (3, 1, 1)),))
LAYER_NORM = pytest.mark.parametrize("layer_norm", [False, True], ids=["", "layer norm"])


class OneLayer(KerasNetwork):
    """A trunk that can be written out: ReLU of a linear function of the pixels less their mean."""

    def __init__(
        self, config: NetworkConfig, shape: Sequence[int], heads: Sequence[Head], seed: int, mean=None
    ) -> None:
        super().__init__(heads)
        assert config.hidden_sizes == (4,)
        assert not heads
        inputs = keras.Input(shape, dtype="uint8", name="observations")
        x = keras.layers.Rescaling(1.0, 0.0 if mean is None else (-mean).tolist())(inputs)
        start = keras.initializers.Orthogonal(1.0, seed=seed)
        layer = keras.layers.Dense(5, "relu", kernel_initializer=start, name="pixels")
        self.model = keras.Model(inputs, (layer(keras.layers.Flatten()(x)),), name="one_layer")


def observed(parts: ObservationParts, count: int = 6) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Rows of bytes, and the numbers and images that are in them."""
    random = np.random.default_rng(0)
    rows = random.integers(0, 256, (count, parts.row_size), np.uint8)
    numbers = random.normal(0, 3, (count, parts.vector_size)).astype(np.float32)
    parts.vectors(rows)[...] = numbers
    images = [rows[:, where].reshape(count, *image.shape) for image, where in parts.image_bytes()]
    return rows, numbers, images


def make(*, layer_norm: bool = False, heads: Sequence[Head] = HEADS, **settings: str) -> MultiInputNetwork:
    config = NetworkConfig(name="a3c_cnn", layer_norm=layer_norm, **settings)
    mean = np.random.default_rng(2).uniform(0, 255, PARTS.row_size).astype(np.float32)
    network = MultiInputNetwork(config, PARTS, heads, 1, ConvolutionalNetwork, mean)
    random = np.random.default_rng(1)
    for variable in network.trainable_variables:
        # Trained for a while: at 0 and 1 biases and gains would hide what is wrong about them.
        if "norm" in variable.path or "bias" in variable.path:
            variable.assign(variable.numpy() + random.normal(0.0, 0.3, variable.shape))
    return network


def test_the_forward_pass_is_what_numpy_makes_of_the_bytes() -> None:
    config = NetworkConfig(name="a3c_cnn", hidden_sizes=(4,))
    mean = np.arange(TINY.row_size, dtype=np.float32)
    network = MultiInputNetwork(config, TINY, HEADS, 1, OneLayer, mean)
    rows, numbers, (image,) = observed(TINY)
    assert rows.shape == (6, 11)
    weights = {variable.path: variable.numpy().astype(np.float64) for variable in network.variables}
    for name, value in weights.items():
        if name.endswith("bias"):
            value += 0.1
    for variable in network.variables:
        variable.assign(weights[variable.path])

    def linear(x: np.ndarray, name: str, between: str = "_") -> np.ndarray:
        return x @ weights[f"{name}{between}kernel"] + weights[f"{name}{between}bias"]

    pixels = image.reshape(6, 3) - mean[8:]
    of_image = np.maximum(linear(pixels, "image_camera/pixels", "/"), 0)
    of_numbers = np.tanh(linear(numbers, "trunk_hidden1", "/"))
    features = np.maximum(linear(np.concatenate([of_image, of_numbers], axis=1), "joint"), 0)
    output = network(tf.constant(rows))
    np.testing.assert_allclose(output.features, features, rtol=1e-4, atol=1e-4)
    for head in HEADS:
        np.testing.assert_allclose(output.heads[head.name], linear(features, head.name), rtol=1e-4, atol=1e-4)
    assert sum(value.size for value in weights.values()) == ParameterLayout.of(network.variables).size


@LAYER_NORM
@pytest.mark.parametrize("scaling", ["none", "running"])
def test_the_exported_layers_take_each_part_by_its_name(layer_norm: bool, scaling: str) -> None:
    network = make(layer_norm=layer_norm, observation_scaling=scaling)
    for variable in network.variables[len(network.trainable_variables) :]:
        variable.assign(np.linspace(0.5, 2, 3))
    rows, numbers, (left, right) = observed(PARTS)
    exported = network.as_keras()({"image_left": left, "image_right": right, "vector": numbers})
    for name, head in network(tf.constant(rows)).heads.items():
        np.testing.assert_allclose(exported[name], head, rtol=1e-4, atol=1e-5)


def test_a_memory_comes_after_it() -> None:
    network = RecurrentNetwork(make(heads=()), HEADS, 7, 1)
    rows, numbers, (left, right) = observed(PARTS)
    state = [tf.fill((6, 7), 0.3)] * 2
    output = network(tf.constant(rows), state)
    named = {"image_left": left, "image_right": right, "vector": numbers}
    inputs = {name: tf.constant(part) for name, part in named.items()}
    exported = network.as_keras()({**inputs, "hidden": state[0], "cell": state[1]})
    for name, value in {**output.heads, "hidden": output.state[0], "cell": output.state[1]}.items():
        np.testing.assert_allclose(exported[name], value, rtol=1e-4, atol=1e-5)


def test_trunks_start_with_weights_of_their_own_that_are_alike_in_every_process() -> None:
    two = ObservationParts((), (ImagePart("image_0", (36, 36, 1)), ImagePart("image_1", (36, 36, 1))))
    one, other = (MultiInputNetwork(NetworkConfig(), two, HEADS, 1, ConvolutionalNetwork) for _ in range(2))
    layouts = [ParameterLayout.of(network.variables) for network in (one, other)]
    assert layouts[0].fingerprint == layouts[1].fingerprint
    weights = {variable.path: variable.numpy() for variable in one.variables}
    for variable in other.variables:
        np.testing.assert_array_equal(weights[variable.path], variable.numpy())
    assert np.abs(weights["image_0/conv1_kernel"] - weights["image_1/conv1_kernel"]).max() > 0.01


def test_running_moments_stay_the_last_in_the_layout() -> None:
    network: Network = make(observation_scaling="running")
    assert [v.path for v in network.variables[-2:]] == ["observation_scaling/mean", "observation_scaling/variance"]
    assert len(network.trainable_variables) == len(network.variables) - 2
