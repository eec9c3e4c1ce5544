"""Layers written out in TensorFlow, in forms chosen for the time that they take on a CPU."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from shared.graph import has_gpu
from shared.networks.stored_activations import hidden

# CleanRL's, which is PyTorch's default; PQN's own code has 1e-6. It matters only where all units are nearly alike.
EPSILON = 1e-5


class LayerWeights(NamedTuple):
    kernel: keras.Variable
    bias: keras.Variable


def initial_weights(name: str, shape: tuple[int, ...], gain: float, seed: int) -> LayerWeights:
    """An orthogonal kernel of this shape, scaled by `gain`, and a bias of zeros for each entry of its last axis."""
    kernel = keras.initializers.Orthogonal(gain, seed=seed)(shape)
    return LayerWeights(
        keras.Variable(kernel, dtype="float32", name=f"{name}_kernel"),
        keras.Variable(np.zeros(shape[-1], np.float32), dtype="float32", name=f"{name}_bias"),
    )


def dense(
    name: str, units: int, gain: float, seeds: Iterator[int], activation: str | None = None
) -> keras.layers.Dense:
    start = keras.initializers.Orthogonal(gain, seed=next(seeds))
    return keras.layers.Dense(units, activation, kernel_initializer=start, dtype="float32", name=name)


def linear(x: tf.Tensor, weights: LayerWeights) -> tf.Tensor:
    """x W + b: float32 [N, inputs] -> float32 [N, units]."""
    kernel, bias = (tf.convert_to_tensor(variable) for variable in weights)
    return tf.nn.bias_add(tf.matmul(x, kernel), bias)


def as_dense(name: str, weights: LayerWeights) -> keras.layers.Dense:
    """Keras' layer with the current values of weights [inputs, units]."""
    kernel, bias = (variable.numpy() for variable in weights)
    layer = keras.layers.Dense(kernel.shape[1], dtype="float32", name=name)
    layer.build((None, kernel.shape[0]))
    layer.set_weights([kernel, bias])
    return layer


def as_layer_norm(norm: tuple[keras.Variable, keras.Variable], x: keras.KerasTensor) -> keras.KerasTensor:
    """Keras' normalisation of `x` over all its units, with the current gain and bias."""
    layer = keras.layers.LayerNormalization(list(range(1, len(x.shape))), EPSILON, dtype="float32")
    result = layer(x)
    layer.set_weights([variable.numpy() for variable in norm])
    return result


class Normalised(NamedTuple):
    """`values` float32 [N, …] have mean 0 and variance 1 over all units of an observation; `inverse_deviation` [N, 1,
    …] is the factor that scaled them."""

    values: tf.Tensor
    inverse_deviation: tf.Tensor


def gain_and_bias(name: str, shape: tuple[int, ...]) -> tuple[keras.Variable, keras.Variable]:
    return (
        keras.Variable(np.ones(shape, np.float32), dtype="float32", name=f"{name}_norm_gain"),
        keras.Variable(np.zeros(shape, np.float32), dtype="float32", name=f"{name}_norm_bias"),
    )


def normalised(x: tf.Tensor) -> Normalised:
    """Layer normalisation (Ba et al. 2016, arXiv 1607.06450, eq. 3), without its gain and bias.

        v = (x - mean(x)) / √(mean((x - mean(x))²) + ε)

    for each observation of x float32 [N, …], over all its units: positions and channels of an image. CleanRL's PQN does
    the same; PQN's own code normalises over the channels of each position. Gradient flows through `values` only.
    """

    @tf.custom_gradient
    def normalise(x: tf.Tensor) -> tuple:
        units = tuple(range(1, x.shape.rank))
        # Not E[x²] - E[x]²: it loses all digits if the mean is large beside the deviation.
        centred = x - tf.reduce_mean(x, units, keepdims=True)
        inverse_deviation = tf.math.rsqrt(tf.reduce_mean(tf.square(centred), units, keepdims=True) + EPSILON)
        values = centred * inverse_deviation

        def gradient(grad_values: tf.Tensor, grad_inverse_deviation: tf.Tensor) -> tf.Tensor:  # noqa: ARG001
            return layer_norm_gradient(grad_values, values, inverse_deviation)

        return (values, inverse_deviation), gradient

    return Normalised(*normalise(x))


def layer_norm_gradient(grad_values: tf.Tensor, values: tf.Tensor, inverse_deviation: tf.Tensor) -> tf.Tensor:
    """The gradient by the input of `normalised`, from that by `Normalised.values` [N, …].

    dx = (dv - mean(dv) - v · mean(dv · v)) / √(variance + ε)
    """
    units = tuple(range(1, values.shape.rank))
    shift = tf.reduce_mean(grad_values, units, keepdims=True)
    slope = tf.reduce_mean(grad_values * values, units, keepdims=True)
    return (grad_values - shift - values * slope) * inverse_deviation


def hidden_dense(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, *, norm: bool) -> tf.Tensor:
    """relu(x · kernel + bias) [N, units] of x [N, inputs]; with `norm`, x · kernel + bias normalised."""

    def gradient(grad_output: tf.Tensor, tensors: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        before = _pre_activation_gradient(grad_output, tensors)
        grad_kernel = tf.matmul(x, before, transpose_a=True)
        return tf.matmul(before, kernel, transpose_b=True), grad_kernel, tf.reduce_sum(before, axis=0)

    return hidden(
        (x, kernel, bias), lambda: _activation(tf.nn.bias_add(tf.matmul(x, kernel), bias), norm=norm), gradient
    )


def hidden_convolution(
    x: tf.Tensor,
    kernel: tf.Tensor,
    bias: tf.Tensor,
    stride: int,
    *,
    norm: bool,
    floats: Callable[[tf.Tensor], tf.Tensor] | None = None,
) -> tf.Tensor:
    """relu(conv(x, kernel) + bias) [N, H', W', C'] of x [N, H, W, C]; with `norm`, conv(x, kernel) + bias normalised.

    Args:
        floats: for uint8 images x: makes their float32 values, a few images at a time.
    """

    def forward() -> tuple[tf.Tensor, ...]:
        if floats is None:
            return _activation(convolution(x, kernel, bias, stride), norm=norm)
        return _activation(convolution_of_images(x, floats, kernel, bias, stride), norm=norm)

    def gradient(
        grad_output: tf.Tensor, tensors: tuple[tf.Tensor, ...]
    ) -> tuple[tf.Tensor | None, tf.Tensor, tf.Tensor]:
        before = _pre_activation_gradient(grad_output, tensors)
        if floats is None:
            return gradients(x, kernel, before, stride)
        return None, *gradients_of_images(x, floats, kernel, before, stride)

    return hidden((x, kernel, bias), forward, gradient)


def _activation(before: tf.Tensor, *, norm: bool) -> tuple[tf.Tensor, ...]:
    return normalised(before) if norm else (tf.nn.relu(before),)


def _pre_activation_gradient(grad_output: tf.Tensor, tensors: tuple[tf.Tensor, ...]) -> tf.Tensor:
    if len(tensors) == 1:
        return tf.raw_ops.ReluGrad(gradients=grad_output, features=tensors[0])
    return layer_norm_gradient(grad_output, *tensors)


# The floats of 32 images of 84 x 84 x 4 are 3.6 MB. Those of the next 32 are written to the same memory, which is then
# still in the cache that cores share; those of a whole minibatch go to main memory and back: a gradient of 256 images
# takes 4 % longer then with AVX-512, 10 % with AVX2 (a3c_cnn, Zen 4, oneDNN).
_IMAGES_AT_ONCE = 32


def convolution(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, stride: int) -> tf.Tensor:
    """conv(x, kernel) + bias [N, H', W', C'] of x [N, H, W, C], without padding."""
    return tf.nn.bias_add(tf.nn.conv2d(x, kernel, stride, "VALID"), bias)


def gradients(
    x: tf.Tensor, kernel: tf.Tensor, grad_output: tf.Tensor, stride: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The gradients of `convolution` by its input, its kernel and its bias."""
    # Computed as a convolution with stride 1 of blocks of 2 x 2 pixels, the gradient by the input is faster with Eigen
    # only (docs/studies/throughput.md).
    grad_input = tf.raw_ops.Conv2DBackpropInput(
        input_sizes=(tf.shape(x)[0], *x.shape[1:]),
        filter=kernel,
        out_backprop=grad_output,
        strides=[1, stride, stride, 1],
        padding="VALID",
    )
    return grad_input, _kernel_gradient(x, kernel, grad_output, stride), tf.reduce_sum(grad_output, axis=(0, 1, 2))


def convolution_of_images(
    images: tf.Tensor, floats: Callable[[tf.Tensor], tf.Tensor], kernel: tf.Tensor, bias: tf.Tensor, stride: int
) -> tf.Tensor:
    """conv(floats(images), kernel) + bias of uint8 images [N, H, W, C], some images at a time."""

    @tf.custom_gradient
    def layer(kernel: tf.Tensor, bias: tf.Tensor) -> tuple:
        def gradient(grad_output: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return gradients_of_images(images, floats, kernel, grad_output, stride)

        pieces = _in_turn(images, lambda some: convolution(floats(images[some]), kernel, bias, stride))
        return tf.concat(pieces, axis=0), gradient

    return layer(kernel, bias)


def gradients_of_images(
    images: tf.Tensor, floats: Callable[[tf.Tensor], tf.Tensor], kernel: tf.Tensor, grad_output: tf.Tensor, stride: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """The gradients of `convolution_of_images` by its kernel and its bias."""
    pieces = _in_turn(images, lambda some: _kernel_gradient(floats(images[some]), kernel, grad_output[some], stride))
    return tf.add_n(pieces), tf.reduce_sum(grad_output, axis=(0, 1, 2))


def _in_turn(images: tf.Tensor, work: Callable[[slice], tf.Tensor]) -> list[tf.Tensor]:
    """Results of `work` for a few images at a time, in sequence; for all at once on a GPU or for a dynamic batch."""
    count = images.shape[0]
    if count is None or has_gpu():
        return [work(slice(None))]
    done: list[tf.Tensor] = []
    for start in range(0, count, _IMAGES_AT_ONCE):
        with tf.control_dependencies(done[-1:]):
            done.append(work(slice(start, start + _IMAGES_AT_ONCE)))
    return done


def _kernel_gradient(x: tf.Tensor, kernel: tf.Tensor, grad_output: tf.Tensor, stride: int) -> tf.Tensor:
    return tf.raw_ops.Conv2DBackpropFilter(
        input=x, filter_sizes=kernel.shape, out_backprop=grad_output, strides=[1, stride, stride, 1], padding="VALID"
    )
