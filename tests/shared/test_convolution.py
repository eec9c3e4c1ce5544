"""Convolutions some images at a time, and by blocks of pixels, against TensorFlow's own."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from shared.networks.layers import convolution, convolution_of_images

Convolution = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


def random_floats(*shape: int) -> tf.Tensor:
    return tf.constant(np.random.default_rng(0).normal(size=shape).astype(np.float32))


def random_images(count: int) -> tf.Tensor:
    return tf.constant(np.random.default_rng(1).integers(0, 256, (count, 16, 16, 4), np.uint8))


def halves(images: tf.Tensor) -> tf.Tensor:
    return tf.cast(images, tf.float32) / 255.0 - 0.5


def plain(stride: int) -> Convolution:
    return lambda x, kernel, bias: tf.nn.bias_add(tf.nn.conv2d(x, kernel, stride, "VALID"), bias)


def value_and_gradients(layer: Convolution, *arguments: tf.Tensor) -> list[np.ndarray]:
    """Gradients of a weighted sum of all outputs, for the arguments that are floats."""
    sources = [x for x in arguments if x.dtype.is_floating]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        value = layer(*arguments)
        weights = np.random.default_rng(2).normal(size=value.shape).astype(np.float32)
        total = tf.reduce_sum(value * weights)
    return [x.numpy() for x in (value, *tape.gradient(total, sources))]


@pytest.mark.parametrize(
    ("height", "width", "kernel", "stride"),
    [(20, 20, (4, 4), 2), (20, 12, (6, 4), 2), (84, 84, (8, 8), 4), (9, 9, (3, 3), 1), (21, 20, (4, 4), 2),
     (20, 20, (5, 4), 2), (20, 20, (4, 2), 2)],
)  # fmt: skip
def test_a_convolution_and_its_gradients_are_those_of_tensorflow(
    height: int, width: int, kernel: tuple[int, int], stride: int
) -> None:
    arguments = random_floats(3, height, width, 5), random_floats(*kernel, 5, 7), random_floats(7)
    ours = value_and_gradients(lambda *x: convolution(*x, stride), *arguments)
    for mine, theirs in zip(ours, value_and_gradients(plain(stride), *arguments), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("count", [1, 32, 33, 70])
def test_images_some_at_a_time_give_what_all_of_them_give(count: int) -> None:
    images = random_images(count)
    kernel, bias = random_floats(8, 8, 4, 6), random_floats(6)
    ours = value_and_gradients(lambda x, k, b: convolution_of_images(x, halves, k, b, 4), images, kernel, bias)
    theirs = value_and_gradients(lambda x, k, b: plain(4)(halves(x), k, b), images, kernel, bias)
    for mine, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-3)


def operations(count: int | None, kind: str, *, gradient: bool = False) -> list[tf.Operation]:
    """Those of a kind in the graph of a convolution of images, in the order in which they were made."""

    def layer(images: tf.Tensor) -> tf.Tensor:
        kernel = tf.ones((8, 8, 4, 6))
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            output = convolution_of_images(images, halves, kernel, tf.zeros(6), 4)
        return tape.gradient(output, kernel) if gradient else output

    graph = tf.function(layer, autograph=False).get_concrete_function(tf.TensorSpec((count, 16, 16, 4), tf.uint8)).graph
    return [operation for operation in graph.get_operations() if operation.type == kind]


def comes_after(operation: tf.Operation, other: tf.Operation) -> bool:
    """Whether one operation of a graph waits for another."""
    before = [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
    return other in before or any(comes_after(earlier, other) for earlier in before)


@pytest.mark.parametrize(("kind", "gradient"), [("Conv2D", False), ("Conv2DBackpropFilter", True)])
def test_images_have_their_turn_one_after_another(kind: str, gradient: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Side by side their floats would all be in memory at the same time."""
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [])  # noqa: ARG005
    first, second, third = operations(70, kind, gradient=gradient)
    assert comes_after(second, first)
    assert comes_after(third, second)


def test_a_batch_of_any_size_and_a_gpu_take_all_images_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [])  # noqa: ARG005
    assert len(operations(None, "Conv2D")) == 1
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [kind])
    assert len(operations(70, "Conv2D")) == 1


@pytest.mark.parametrize(("stride", "expected"), [(1, 0), (2, 1)])
def test_only_a_stride_is_differentiated_by_blocks(stride: int, expected: int) -> None:
    def gradient(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = convolution(x, tf.ones((4, 4, 5, 7)), tf.zeros(7), stride)
        return tape.gradient(output, x)

    graph = tf.function(gradient, autograph=False).get_concrete_function(tf.TensorSpec((3, 20, 20, 5))).graph
    assert sum(operation.type == "DepthToSpace" for operation in graph.get_operations()) == expected
