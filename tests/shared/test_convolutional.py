"""The convolutional networks against Keras layers, and what was stored against what is computed again."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from shared.config import NetworkConfig
from shared.convolutional import ConvolutionalNetwork
from shared.networks import Head, NetworkOutput

HEADS = (Head("policy", 6, 0.01), Head("value", 1, 1.0))
SIZES = {
    "a3c_cnn": (((16, 8, 4), (32, 4, 2)), 256),
    "nature_cnn": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
}
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (5, 84, 84, 4), np.uint8)
MEAN = RANDOM.uniform(0, 255, (84, 84, 4)).astype(np.float32)


def make(name: str, mean: np.ndarray | None = MEAN, precision: str = "float32") -> ConvolutionalNetwork:
    return ConvolutionalNetwork(NetworkConfig(name=name, precision=precision), (84, 84, 4), HEADS, 1, mean)


def loss(output: NetworkOutput) -> tf.Tensor:
    return tf.reduce_mean(tf.square(output.heads["policy"] - 1.0)) + tf.reduce_mean(tf.square(output.heads["value"]))


def gradients(network: ConvolutionalNetwork, activations: tuple | None = None) -> list[np.ndarray]:
    def compute(images: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            output = network(images) if activations is None else network.replay(images, activations)
            total = loss(output)
        return tape.gradient(total, network.trainable_variables)

    return [g.numpy() for g in tf.function(compute, autograph=False)(tf.constant(IMAGES))]


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("mean", [None, MEAN], ids=["plain", "centred"])
def test_equals_keras_layers_and_their_gradient_to_1e_5(name: str, mean: np.ndarray | None) -> None:
    """The plain way: scaled images, Keras layers, and a forward pass of its own for the gradient."""
    network = make(name, mean)
    convolutions, units = SIZES[name]
    inputs = keras.Input((84, 84, 4), dtype="uint8")
    scale = 1 / 255 if mean is None else 4 / 255
    x = keras.layers.Rescaling(scale, 0.0 if mean is None else -scale * mean)(inputs)
    for filters, kernel, stride in convolutions:
        x = keras.layers.Conv2D(filters, kernel, stride, activation="relu")(x)
    x = keras.layers.Dense(units, "relu")(keras.layers.Flatten()(x))
    model = keras.Model(inputs, [keras.layers.Dense(head.units)(x) for head in HEADS])
    model.set_weights([v.numpy() for v in network.variables])
    policy, value = model(IMAGES)
    output = network(tf.constant(IMAGES))
    np.testing.assert_allclose(output.heads["policy"], policy, rtol=0, atol=1e-6)
    np.testing.assert_allclose(output.heads["value"], value, rtol=0, atol=1e-5)
    with tf.GradientTape() as tape:
        policy, value = model(IMAGES)
        total = loss(NetworkOutput({"policy": policy, "value": value}, x, {}))
    expected = [g.numpy() for g in tape.gradient(total, model.trainable_variables)]
    for ours in (gradients(network), gradients(network, output.activations)):
        for a, b in zip(ours, expected, strict=True):
            assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_what_was_stored_gives_the_same_output_and_gradient(name: str, precision: str) -> None:
    network = make(name, precision=precision)
    output = network(tf.constant(IMAGES))
    assert [(tuple(x.shape[1:]), x.dtype) for x in output.activations] == network.activations
    replayed = network.replay(tf.constant(IMAGES), output.activations)
    for head in ("policy", "value"):
        np.testing.assert_array_equal(replayed.heads[head], output.heads[head])
    tolerance = 1e-5 if precision == "float32" else 0.02
    for a, b in zip(gradients(network, output.activations), gradients(network), strict=True):
        assert np.abs(a - b).max() <= tolerance * np.abs(b).max()


def test_stored_activations_are_really_used() -> None:
    network = make("a3c_cnn")
    output = network(tf.constant(IMAGES))
    other = tuple(2.0 * x for x in output.activations)
    assert not np.allclose(network.replay(tf.constant(IMAGES), other).heads["value"], output.heads["value"])


@pytest.mark.parametrize("name", SIZES)
def test_bfloat16_gradients_agree_with_float32_within_their_rounding(name: str) -> None:
    """bfloat16 keeps 8 bits. Besides rounding, units near 0 cross their ReLU, which is a discrete change."""
    exact, rounded = gradients(make(name)), gradients(make(name, precision="bfloat16"))
    for a, b in zip(rounded, exact, strict=True):
        assert a.dtype == np.float32
        assert np.linalg.norm(a - b) <= 0.1 * np.linalg.norm(b)
    assert any(not np.array_equal(a, b) for a, b in zip(rounded, exact, strict=True))
