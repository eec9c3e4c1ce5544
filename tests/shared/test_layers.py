"""Convolutions and layer normalisation against TensorFlow's own and NumPy; gradients from the activations of acting."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import network, observations

from shared.networks import Network, NetworkOutput
from shared.networks.layers import EPSILON, convolution_of_images, layer_norm_gradient, normalised
from shared.networks.stored_activations import StoredActivations


def random_floats(*shape: int) -> tf.Tensor:
    return tf.constant(np.random.default_rng(0).normal(size=shape).astype(np.float32))


def random_images(count: int) -> tf.Tensor:
    return tf.constant(np.random.default_rng(1).integers(0, 256, (count, 16, 16, 4), np.uint8))


def halves(images: tf.Tensor) -> tf.Tensor:
    return tf.cast(images, tf.float32) / 255.0 - 0.5


@pytest.mark.parametrize("count", [1, 32, 33, 70])
def test_images_some_at_a_time_give_what_all_of_them_give(count: int) -> None:
    images, kernel, bias = random_images(count), random_floats(8, 8, 4, 6), random_floats(6)
    weights = random_floats(count, 3, 3, 6)

    def value_and_gradients(layer: Callable[[], tf.Tensor]) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([kernel, bias])
            value = layer()
            total = tf.reduce_sum(weights * value)
        return [value, *tape.gradient(total, [kernel, bias])]

    ours = value_and_gradients(lambda: convolution_of_images(images, halves, kernel, bias, 4))
    theirs = value_and_gradients(lambda: tf.nn.conv2d(halves(images), kernel, 4, "VALID") + bias)
    for mine, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-3)


def comes_after(operation: tf.Operation, other: tf.Operation) -> bool:
    before = [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
    return other in before or any(comes_after(earlier, other) for earlier in before)


@pytest.mark.parametrize("kind", ["Conv2D", "Conv2DBackpropFilter"])
def test_images_have_their_turn_one_after_another(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Side by side their floats would all be in memory at the same time."""
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [])  # noqa: ARG005

    def layer(images: tf.Tensor) -> tf.Tensor:
        kernel = tf.ones((8, 8, 4, 6))
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            output = convolution_of_images(images, halves, kernel, tf.zeros(6), 4)
        return output, tape.gradient(output, kernel)

    graph = tf.function(layer, autograph=False).get_concrete_function(random_images(70)).graph
    first, second, third = (operation for operation in graph.get_operations() if operation.type == kind)
    assert comes_after(second, first)
    assert comes_after(third, second)


SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)


def plainly(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Values and inverse deviations as TensorFlow computes and differentiates them."""
    mean, variance = tf.nn.moments(x, axes=range(1, x.shape.rank), keepdims=True)
    inverse_deviation = 1.0 / tf.sqrt(variance + EPSILON)
    return (x - mean) * inverse_deviation, inverse_deviation


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), shape=SHAPES, offset=st.floats(-100, 100), graph=st.booleans())
def test_an_observation_is_normalised_over_units(seed: int, shape: tuple[int, ...], offset: float, graph: bool) -> None:
    """Beside float64: values, inverse deviations, and the gradient, which is the same from what was stored."""
    random = np.random.default_rng(seed)
    x, weights = (random.normal(size=(3, *shape)).astype(np.float32) for _ in range(2))
    x += np.float32(offset)

    def with_gradient(function: Callable, dtype: tf.DType) -> tuple[tf.Tensor, ...]:
        tensor = tf.constant(x, dtype)
        with tf.GradientTape() as tape:
            tape.watch(tensor)
            result = function(tensor)
            total = tf.reduce_sum(tf.cast(weights, dtype) * result[0])
        return *result, tape.gradient(total, tensor)

    found = with_gradient(tf.function(normalised, autograph=False) if graph else normalised, tf.float32)
    expected = with_gradient(plainly, tf.float64)
    stored = layer_norm_gradient(tf.constant(weights), *found[:2])
    # A mean of 100 leaves five digits of what is around it.
    tolerance = 2e-3 * max(1.0, float(np.max(expected[1])))
    for result, other in zip((*found, stored), (*expected, expected[2]), strict=True):
        np.testing.assert_allclose(result, other, rtol=2e-3, atol=tolerance)


def test_an_observation_whose_units_are_all_alike_becomes_0() -> None:
    result = normalised(tf.fill((2, 3, 3, 4), 7.0))
    assert not np.any(result.values)
    np.testing.assert_allclose(np.ravel(result.inverse_deviation), [EPSILON**-0.5] * 2, rtol=1e-5)


T, B = 3, 2
# A reset at time 1 of environment 0.
MASK = np.array([[1, 1], [0, 1], [1, 1]], np.float32)


def start(network: Network) -> tuple[tf.Tensor, ...]:
    return tuple(tf.zeros((B, units)) for units in network.state_units)


def act(network: Network, stored: StoredActivations, observations: np.ndarray) -> list[NetworkOutput]:
    """The outputs at each time, stored as an actor stores them."""
    state, outputs = start(network), []
    for t in range(T):
        with stored.recording(tf.constant(t)):
            outputs.append(network(tf.constant(observations[t]), state))
        state = tuple(part * MASK[t][:, None] for part in outputs[-1].state)
    return outputs


def gradients(network: Network, observations: np.ndarray, stored: StoredActivations | None) -> list[np.ndarray]:
    def compute() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            arguments = tf.constant(observations), start(network), tf.constant(MASK)
            if stored is None:
                output = network.unroll(*arguments)
            else:
                with stored.replaying():
                    output = network.unroll(*arguments)
            loss = tf.reduce_mean(tf.square(output.heads["policy"] - 1.0)) + tf.reduce_mean(output.heads["value"])
        return [*output.heads.values(), *tape.gradient(loss, network.trainable_variables)]

    return [tensor.numpy() for tensor in tf.function(compute, autograph=False)()]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("a3c_cnn", {"layer_norm": True}),
        ("nature_cnn", {}),
        ("multi_input", {"layer_norm": True}),
        ("a3c_cnn", {"recurrent": True}),
    ],
)
def test_the_activations_of_acting_give_the_same_output_and_gradient(kind: str, settings: dict) -> None:
    made, seen, stored = network(kind, **settings), observations(kind, T, B), StoredActivations(T)
    outputs = act(made, stored, seen)
    known = gradients(made, seen, stored)
    assert all(map(np.any, known)), "each part learns"
    for computed, again in zip(known, gradients(made, seen, None), strict=True):
        assert np.abs(computed - again).max() <= 1e-4 * np.abs(again).max()
    for t, output in enumerate(outputs):
        np.testing.assert_allclose(known[0][t], output.heads["policy"], rtol=1e-4, atol=1e-6)
    # No forward pass of images is computed: for others, it would give another output.
    other = observations(kind, T, B, seed=1)
    assert not np.allclose(gradients(made, other, stored)[0], gradients(made, other, None)[0], rtol=1e-3)
