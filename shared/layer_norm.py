"""Layer normalisation whose result can be stored: its gradient needs neither the input nor the forward pass again."""

from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

# CleanRL's, which is PyTorch's default; PQN's own code has 1e-6. It matters only where all units are nearly alike.
EPSILON = 1e-5


class Normalised(NamedTuple):
    """What an observation's units are normalised to.

    `values` [N, …] have mean 0 and variance 1 over all units of an observation, in the dtype of what was normalised.
    `inverse_deviation` is what they were scaled by: float32 [N, 1, …].
    """

    values: tf.Tensor
    inverse_deviation: tf.Tensor


def gain_and_bias(name: str, shape: tuple[int, ...]) -> tuple[keras.Variable, keras.Variable]:
    """One of each for every unit of a layer: ones and zeros float32 of the shape of an observation's units."""
    return (
        keras.Variable(np.ones(shape, np.float32), dtype="float32", name=f"{name}_norm_gain"),
        keras.Variable(np.zeros(shape, np.float32), dtype="float32", name=f"{name}_norm_bias"),
    )


def normalised(x: tf.Tensor) -> Normalised:
    """Layer normalisation (Ba et al. 2016, arXiv 1607.06450, eq. 3), without its gain and bias.

        v = (x - mean(x)) / √(mean((x - mean(x))²) + ε)

    for each observation by itself, over all its units: over positions and channels, where x is an image. So does
    CleanRL's PQN; PQN's own code normalises over the channels of each position alone.

    Args:
        x: float32 or bfloat16 [N, …]. The statistics are float32.

    Returns:
        Normalised. Gradient flows through `values` only.
    """

    @tf.custom_gradient
    def normalise(x: tf.Tensor) -> tuple:
        units = tuple(range(1, x.shape.rank))
        exact = tf.cast(x, tf.float32)
        # Not E[x²] - E[x]²: it loses all digits where the mean is large beside the deviation.
        centred = exact - tf.reduce_mean(exact, units, keepdims=True)
        inverse_deviation = tf.math.rsqrt(tf.reduce_mean(tf.square(centred), units, keepdims=True) + EPSILON)
        values = tf.cast(centred * inverse_deviation, x.dtype)

        def gradient(by_values: tf.Tensor, by_inverse_deviation: tf.Tensor) -> tf.Tensor:  # noqa: ARG001
            return gradient_before(by_values, values, inverse_deviation)

        return (values, inverse_deviation), gradient

    return Normalised(*normalise(x))


def gradient_before(by_values: tf.Tensor, values: tf.Tensor, inverse_deviation: tf.Tensor) -> tf.Tensor:
    """From the gradient by `Normalised.values` [N, …] to that by what was normalised, in the same dtype.

    dx = (dv - mean(dv) - v · mean(dv · v)) / √(variance + ε)
    """
    units = tuple(range(1, values.shape.rank))
    by, v = tf.cast(by_values, tf.float32), tf.cast(values, tf.float32)
    shift = tf.reduce_mean(by, units, keepdims=True)
    slope = tf.reduce_mean(by * v, units, keepdims=True)
    return tf.cast((by - shift - v * slope) * inverse_deviation, by_values.dtype)
