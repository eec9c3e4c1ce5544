"""Layers of networks that are written out, not built of Keras' own: their variables, and what they compute."""

from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf


class Weights(NamedTuple):
    """Of one layer, float32."""

    kernel: keras.Variable
    bias: keras.Variable


def initial_weights(name: str, shape: tuple[int, ...], gain: float, seed: int) -> Weights:
    """An orthogonal kernel of this shape, scaled by `gain`, and a bias of zeros for each entry of its last axis."""
    kernel = keras.initializers.Orthogonal(gain, seed=seed)(shape)
    return Weights(
        keras.Variable(kernel, dtype="float32", name=f"{name}_kernel"),
        keras.Variable(np.zeros(shape[-1], np.float32), dtype="float32", name=f"{name}_bias"),
    )


def linear(x: tf.Tensor, weights: Weights) -> tf.Tensor:
    """x W + b: float32 [N, inputs] -> float32 [N, units]."""
    kernel, bias = (tf.convert_to_tensor(variable) for variable in weights)
    return tf.nn.bias_add(tf.matmul(x, kernel), bias)


def as_dense(name: str, weights: Weights) -> keras.layers.Dense:
    """Keras' layer with the present values of weights [inputs, units]."""
    kernel, bias = (variable.numpy() for variable in weights)
    layer = keras.layers.Dense(kernel.shape[1], dtype="float32", name=name)
    layer.build((None, kernel.shape[0]))
    layer.set_weights([kernel, bias])
    return layer
