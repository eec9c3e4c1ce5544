"""The convolutional networks against Keras layers, and what was stored against what is computed again.

With layer norm and without.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from shared.config import NetworkConfig
from shared.networks import Head, NetworkOutput
from shared.networks.convolutional import ConvolutionalNetwork

HEADS = (Head("policy", 6, 0.01), Head("value", 1, 1.0))
SIZES = {
    "a3c_cnn": (((16, 8, 4), (32, 4, 2)), 256),
    "nature_cnn": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
}
RANDOM = np.random.default_rng(0)
# More than are convolved at a time.
IMAGES = RANDOM.integers(0, 256, (35, 84, 84, 4), np.uint8)
MEAN = RANDOM.uniform(0, 255, (84, 84, 4)).astype(np.float32)


LAYER_NORM = pytest.mark.parametrize("layer_norm", [False, True], ids=["", "layer norm"])


def make(
    name: str, mean: np.ndarray | None = MEAN, precision: str = "float32", *, layer_norm: bool = False
) -> ConvolutionalNetwork:
    config = NetworkConfig(name=name, precision=precision, layer_norm=layer_norm)
    network = ConvolutionalNetwork(config, (84, 84, 4), HEADS, 1, mean)
    random = np.random.default_rng(1)
    for variable in network.trainable_variables:
        if "norm" in variable.path:
            # Trained for a while: at 1 and 0 gains and biases would hide what is wrong about them.
            variable.assign(variable.numpy() + random.normal(0.0, 0.3, variable.shape))
    return network


def loss(output: NetworkOutput) -> tf.Tensor:
    return tf.reduce_mean(tf.square(output.heads["policy"] - 1.0)) + tf.reduce_mean(tf.square(output.heads["value"]))


def gradients(network: ConvolutionalNetwork, activations: tuple | None = None) -> list[np.ndarray]:
    def compute(images: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            output = network(images) if activations is None else network.replay(images, activations)
            total = loss(output)
        return tape.gradient(total, network.trainable_variables)

    return [g.numpy() for g in tf.function(compute, autograph=False)(tf.constant(IMAGES))]


class Rectifier(keras.layers.Layer):
    """A ReLU, or once `open` is set, a bool for each unit, one whose units are open where that says so.

    Of a million units some are so near to 0 that a last bit decides on which side of it they are, and with it on 1e-3
    of the gradient: two computations of it are only the same where they agree about these.
    """

    open: tf.Tensor | None = None

    def call(self, x: tf.Tensor) -> tf.Tensor:
        if self.open is None:
            return tf.nn.relu(x)
        np.testing.assert_array_less(np.abs(x)[(x > 0) != self.open], 1e-5)
        return tf.where(self.open, x, 0.0)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("mean", [None, MEAN], ids=["plain", "centred"])
@LAYER_NORM
def test_equals_keras_layers_and_their_gradient_to_1e_5(name: str, mean: np.ndarray | None, layer_norm: bool) -> None:
    """The plain way: scaled images, Keras layers, and a forward pass of its own for the gradient."""
    network = make(name, mean, layer_norm=layer_norm)
    convolutions, units = SIZES[name]
    norms: list[keras.Layer] = []
    rectifiers: list[Rectifier] = []

    def activated(x: keras.KerasTensor) -> keras.KerasTensor:
        if layer_norm:
            norms.append(keras.layers.LayerNormalization(list(range(1, len(x.shape))), epsilon=1e-5))
            x = norms[-1](x)
        rectifiers.append(Rectifier())
        return rectifiers[-1](x)

    inputs = keras.Input((84, 84, 4), dtype="uint8")
    scale = 1 / 255 if mean is None else 4 / 255
    x = keras.layers.Rescaling(scale, 0.0 if mean is None else -scale * mean)(inputs)
    for filters, kernel, stride in convolutions:
        x = activated(keras.layers.Conv2D(filters, kernel, stride)(x))
    x = activated(keras.layers.Dense(units)(keras.layers.Flatten()(x)))
    model = keras.Model(inputs, [keras.layers.Dense(head.units)(x) for head in HEADS])
    # Gains and biases come last in our layout.
    of_norms = [variable for norm in norms for variable in norm.trainable_variables]
    variables = [v for v in model.trainable_variables if all(v is not own for own in of_norms)] + of_norms
    for variable, own in zip(variables, network.variables, strict=True):
        variable.assign(own.numpy())
    policy, value = model(IMAGES)
    output = network(tf.constant(IMAGES))
    np.testing.assert_allclose(output.heads["policy"], policy, rtol=0, atol=1e-6)
    np.testing.assert_allclose(output.heads["value"], value, rtol=0, atol=1e-5)
    stored = output.activations[:: len(output.activations) // len(rectifiers)]
    for i, rectifier in enumerate(rectifiers):
        rectifier.open = network._activated(i, stored[i]) > 0
    with tf.GradientTape() as tape:
        policy, value = model(IMAGES)
        total = loss(NetworkOutput({"policy": policy, "value": value}, x, {}))
    expected = [g.numpy() for g in tape.gradient(total, variables)]
    for ours in (gradients(network), gradients(network, output.activations)):
        for a, b in zip(ours, expected, strict=True):
            assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@LAYER_NORM
def test_what_was_stored_gives_the_same_output_and_gradient(name: str, precision: str, layer_norm: bool) -> None:
    network = make(name, precision=precision, layer_norm=layer_norm)
    output = network(tf.constant(IMAGES))
    assert [(tuple(x.shape[1:]), x.dtype) for x in output.activations] == network.activations
    replayed = network.replay(tf.constant(IMAGES), output.activations)
    for head in ("policy", "value"):
        np.testing.assert_array_equal(replayed.heads[head], output.heads[head])
    tolerance = 1e-5 if precision == "float32" else 0.02
    for a, b in zip(gradients(network, output.activations), gradients(network), strict=True):
        assert np.abs(a - b).max() <= tolerance * np.abs(b).max()


@LAYER_NORM
def test_stored_activations_are_really_used(layer_norm: bool) -> None:
    network = make("a3c_cnn", layer_norm=layer_norm)
    output = network(tf.constant(IMAGES))
    other = tuple(2.0 * x for x in output.activations)
    assert not np.allclose(network.replay(tf.constant(IMAGES), other).heads["value"], output.heads["value"])


@pytest.mark.parametrize("name", SIZES)
@LAYER_NORM
def test_bfloat16_gradients_agree_with_float32_within_their_rounding(name: str, layer_norm: bool) -> None:
    """bfloat16 keeps 8 bits. Besides rounding, units near 0 cross their ReLU, which is a discrete change."""
    exact = gradients(make(name, layer_norm=layer_norm))
    rounded = gradients(make(name, precision="bfloat16", layer_norm=layer_norm))
    for a, b in zip(rounded, exact, strict=True):
        assert a.dtype == np.float32
        assert np.linalg.norm(a - b) <= 0.1 * np.linalg.norm(b)
    assert any(not np.array_equal(a, b) for a, b in zip(rounded, exact, strict=True))


@pytest.mark.parametrize("name", SIZES)
@LAYER_NORM
def test_the_exported_layers_give_the_same_outputs(name: str, layer_norm: bool) -> None:
    network = make(name, layer_norm=layer_norm)
    exported, heads = network.as_keras()(IMAGES), network(tf.constant(IMAGES)).heads
    for head in heads:
        np.testing.assert_allclose(exported[head], heads[head], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", SIZES)
def test_layer_norm_adds_its_tensors_after_all_others_and_starts_from_the_same_weights(name: str) -> None:
    plain, normalised = (ConvolutionalNetwork(NetworkConfig(name=name, layer_norm=on), (84, 84, 4), HEADS, 1)
                         for on in (False, True))  # fmt: skip
    layers = [*(f"conv{i}" for i in range(1, len(SIZES[name][0]) + 1)), "hidden"]
    added = [f"{layer}_norm_{part}" for layer in layers for part in ("gain", "bias")]
    names = [variable.path for variable in plain.variables]
    assert [variable.path for variable in normalised.variables] == [*names, *added]
    for a, b in zip(plain.variables, normalised.variables, strict=False):
        np.testing.assert_array_equal(a, b)
