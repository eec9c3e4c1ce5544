"""The convolutional networks against Keras layers, with layer norm and without."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from shared.config import NetworkConfig
from shared.networks import Head, NetworkOutput
from shared.networks.convolutional import ConvolutionalNetwork
from shared.networks.stored_activations import StoredActivations

HEADS = (Head("policy", 6, 0.01), Head("value", 1, 1.0))
SIZES = {"a3c_cnn": (((16, 8, 4), (32, 4, 2)), 256), "nature_cnn": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512)}
RANDOM = np.random.default_rng(0)
# More than are convolved at a time.
IMAGES = RANDOM.integers(0, 256, (35, 84, 84, 4), np.uint8)
MEAN = RANDOM.uniform(0, 255, (84, 84, 4)).astype(np.float32)


LAYER_NORM = pytest.mark.parametrize("layer_norm", [False, True], ids=["", "layer norm"])


def make(name: str, mean: np.ndarray | None = MEAN, *, layer_norm: bool = False) -> ConvolutionalNetwork:
    config = NetworkConfig(name=name, layer_norm=layer_norm)
    network = ConvolutionalNetwork(config, (84, 84, 4), HEADS, 1, mean)
    random = np.random.default_rng(1)
    for variable in network.trainable_variables:
        if "norm" in variable.path:
            # Trained for a while: at 1 and 0 gains and biases would hide what is wrong about them.
            variable.assign(variable.numpy() + random.normal(0.0, 0.3, variable.shape))
    return network


def loss(output: NetworkOutput) -> tf.Tensor:
    return tf.reduce_mean(tf.square(output.heads["policy"] - 1.0)) + tf.reduce_mean(tf.square(output.heads["value"]))


def gradients(network: ConvolutionalNetwork) -> list[np.ndarray]:
    def compute(images: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            total = loss(network(images))
        return tape.gradient(total, network.trainable_variables)

    return [g.numpy() for g in tf.function(compute, autograph=False)(tf.constant(IMAGES))]


class Rectifier(keras.layers.Layer):
    """A ReLU; once `open` is set, a bool for each unit, a ReLU whose open units are those.

    A last bit decides on which side of 0 some of a million units are, and with it on 1e-3 of the gradient. Two
    computations of the gradient are equal only if they agree about these units.
    """

    open: tf.Tensor | None = None

    def call(self, x: tf.Tensor) -> tf.Tensor:
        if self.open is None:
            return tf.nn.relu(x)
        np.testing.assert_array_less(np.abs(x)[(x > 0) != self.open], 1e-5)
        return tf.where(self.open, x, 0.0)


@pytest.mark.parametrize(
    ("name", "mean", "layer_norm"),
    [("a3c_cnn", MEAN, False), ("a3c_cnn", None, True), ("nature_cnn", None, False), ("nature_cnn", MEAN, True)],
    ids=["a3c_cnn centred", "a3c_cnn layer norm", "nature_cnn", "nature_cnn centred layer norm"],
)
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
    with StoredActivations(1).recording(tf.constant(0)) as layers:
        output = network(tf.constant(IMAGES))
    np.testing.assert_allclose(output.heads["policy"], policy, rtol=0, atol=1e-6)
    np.testing.assert_allclose(output.heads["value"], value, rtol=0, atol=1e-5)
    for i, (rectifier, (kept, *_)) in enumerate(zip(rectifiers, layers, strict=True)):
        rectifier.open = kept * norms[i].gamma + norms[i].beta > 0 if layer_norm else kept > 0
    with tf.GradientTape() as tape:
        policy, value = model(IMAGES)
        total = loss(NetworkOutput({"policy": policy, "value": value}, x, {}))
    expected = [g.numpy() for g in tape.gradient(total, variables)]
    for a, b in zip(gradients(network), expected, strict=True):
        assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


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
