"""The networks for images: of the A3C and DQN papers in plain TensorFlow, and IMPALA's residual network."""

from collections.abc import Iterator, Sequence

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from shared.config import NetworkConfig
from shared.errors import setting_error
from shared.networks import Head, KerasNetwork, Network, NetworkOutput, orthogonal_seeds
from shared.networks.layers import (
    EPSILON,
    LayerWeights,
    as_dense,
    as_layer_norm,
    dense,
    gain_and_bias,
    hidden_convolution,
    hidden_dense,
    initial_weights,
    linear,
)

# (filters, kernel, stride) of each convolution, then the units of the fully connected layer.
_CONVOLUTIONS = {
    "a3c_cnn": (((16, 8, 4), (32, 4, 2)), 256),
    "nature_cnn": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
}

# Centred images vary by at most a quarter of their range; this scales them to about unit range.
_CENTRED_SCALE = 4.0

# IMPALA's filters of each stage, residual blocks of a stage, and units of the fully connected layer.
_FILTERS, _BLOCKS, _UNITS = (16, 32, 32), 2, 256


class ConvolutionalNetwork(Network):
    """Convolutions and one fully connected layer, all with ReLU, shared by the heads.

    With layer norm each layer is normalised before its ReLU, see `shared.networks.layers`. Images are scaled by 1 /
    255; with an `observation_mean` it is subtracted, and the rest scaled by 4 / 255.
    """

    def __init__(
        self,
        config: NetworkConfig,
        observation_shape: Sequence[int],
        heads: Sequence[Head],
        seed: int,
        observation_mean: npt.NDArray[np.float32] | None = None,
    ) -> None:
        super().__init__(heads)
        self._observation_shape = tuple(observation_shape)
        convolutions, units = _CONVOLUTIONS[config.name]
        seeds = orthogonal_seeds(seed)
        self._mean = None if observation_mean is None else tf.constant(observation_mean)
        self._scale = (1.0 if observation_mean is None else _CENTRED_SCALE) / 255.0
        self._strides = tuple(stride for _, _, stride in convolutions)
        self._layers: list[LayerWeights] = []
        self._norms: list[tuple[keras.Variable, keras.Variable]] = []
        self._shapes: list[tuple[int, ...]] = []
        height, width, channels = observation_shape
        for i, (filters, kernel, stride) in enumerate(convolutions, start=1):
            if min(height, width) < kernel:
                raise setting_error("network.name", config.name, f"needs larger images than {observation_shape[:2]}")
            kernel_shape = kernel, kernel, channels, filters
            self._layers.append(initial_weights(f"conv{i}", kernel_shape, 2**0.5, next(seeds)))
            height, width, channels = (height - kernel) // stride + 1, (width - kernel) // stride + 1, filters
            self._shapes.append((height, width, channels))
        self._layers.append(initial_weights("hidden", (height * width * channels, units), 2**0.5, next(seeds)))
        self._shapes.append((units,))
        for i, shape in enumerate(self._shapes if config.layer_norm else (), start=1):
            name = f"conv{i}" if i <= len(convolutions) else "hidden"
            self._norms.append(gain_and_bias(name, shape))
        for head in heads:
            self._layers.append(initial_weights(head.name, (units, head.units), head.gain, next(seeds)))

    @property
    def feature_size(self) -> int:
        return self._shapes[-1][0]

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        pairs = (*self._layers, *self._norms)
        return [*(variable for pair in pairs for variable in pair), *self._parameters.values()]

    def __call__(self, observations: tf.Tensor, state: Sequence[tf.Tensor] = ()) -> NetworkOutput:  # noqa: ARG002
        x = observations
        norm = bool(self._norms)
        for i, stride in enumerate(self._strides):
            kernel, bias = self._weights(i)
            floats = self._centred if i == 0 else None
            x = self._activated(i, hidden_convolution(x, kernel, bias, stride, norm=norm, floats=floats))
        i = len(self._strides)
        kernel, bias = self._weights(i)
        features = self._activated(i, hidden_dense(_flat(x), kernel, bias, norm=norm))
        of_heads = self._layers[len(self._shapes) :]
        heads = {head.name: linear(features, weights) for head, weights in zip(self._heads, of_heads, strict=True)}
        return NetworkOutput(heads, features, self.parameter_tensors())

    def as_keras(self) -> keras.Model:
        inputs = keras.Input(self._observation_shape, dtype="uint8", name="observations")
        offset = 0.0 if self._mean is None else (-self._mean.numpy()).tolist()
        x = keras.layers.Rescaling(1.0, offset, dtype="float32")(inputs)
        for i, stride in enumerate(self._strides):
            kernel, bias = (variable.numpy() for variable in self._layers[i])
            side, filters = kernel.shape[0], kernel.shape[-1]
            layer = keras.layers.Conv2D(filters, side, stride, dtype="float32", name=f"conv{i + 1}")
            x = layer(x)
            # The scale is part of the first kernel here too: the same products to the last bit.
            layer.set_weights([kernel if i else kernel * np.float32(self._scale), bias])
            x = self._activated_by_keras(i, x)
        i = len(self._strides)
        x = self._activated_by_keras(i, as_dense("hidden", self._layers[i])(keras.layers.Flatten()(x)))
        of_heads = zip(self._heads, self._layers[len(self._shapes) :], strict=True)
        outputs = {head.name: as_dense(head.name, weights)(x) for head, weights in of_heads}
        return keras.Model(inputs, outputs or {"features": x}, name="cnn")

    def _centred(self, images: tf.Tensor) -> tf.Tensor:
        # The scale of images is part of the first kernel, which saves a pass over the pixels. The mean is not: folded
        # into the bias it saved 3 to 4 µs per agent step, but put gradients off by 3e-5.
        x = tf.cast(images, tf.float32)
        return x if self._mean is None else x - self._mean

    def _weights(self, i: int) -> tuple[tf.Tensor, tf.Tensor]:
        kernel, bias = (tf.convert_to_tensor(variable) for variable in self._layers[i])
        return kernel * self._scale if i == 0 else kernel, bias

    def _activated(self, i: int, x: tf.Tensor) -> tf.Tensor:
        """The output of layer `i`: with layer norm, gain, bias and ReLU of the normalised values `x`."""
        if not self._norms:
            return x
        gain, bias = (tf.convert_to_tensor(variable) for variable in self._norms[i])
        return tf.nn.relu(x * gain + bias)

    def _activated_by_keras(self, i: int, x: keras.KerasTensor) -> keras.KerasTensor:
        x = as_layer_norm(self._norms[i], x) if self._norms else x
        return keras.layers.ReLU(dtype="float32")(x)


class ResidualNetwork(KerasNetwork):
    """The large network of IMPALA (Espeholt et al. 2018, arXiv 1802.01561, Fig. 3, without its LSTM).

    Three stages: a convolution, a max-pooling that halves each side, and two residual blocks of ReLU, convolution,
    ReLU, convolution. Then ReLU, a fully connected layer and ReLU. All convolutions are 3 x 3 and keep the size. With
    layer norm, the input of each ReLU is normalised, over positions and channels.
    """

    def __init__(
        self,
        config: NetworkConfig,
        observation_shape: Sequence[int],
        heads: Sequence[Head],
        seed: int,
        observation_mean: npt.NDArray[np.float32] | None = None,
    ) -> None:
        super().__init__(heads)
        seeds = orthogonal_seeds(seed)
        self._layer_norm = config.layer_norm
        inputs = keras.Input(tuple(observation_shape), dtype="uint8", name="observations")
        scale = (1.0 if observation_mean is None else _CENTRED_SCALE) / 255.0
        offset = 0.0 if observation_mean is None else (-scale * observation_mean).tolist()
        x = keras.layers.Rescaling(scale, offset, name="scale")(inputs)
        for stage, filters in enumerate(_FILTERS, start=1):
            x = _convolution(f"stage{stage}_conv", filters, seeds)(x)
            x = keras.layers.MaxPooling2D(3, 2, "same", name=f"stage{stage}_pool")(x)
            for block in range(1, _BLOCKS + 1):
                name, before = f"stage{stage}_block{block}", x
                for half in (1, 2):
                    x = self._activated(f"{name}_{half}", x)
                    x = _convolution(f"{name}_conv{half}", filters, seeds)(x)
                x = keras.layers.Add(name=f"{name}_add")([before, x])
        x = keras.layers.Flatten(name="flat")(self._activated("trunk", x))
        x = self._activated("hidden", dense("hidden", _UNITS, 2**0.5, seeds)(x))
        outputs = [dense(head.name, head.units, head.gain, seeds)(x) for head in self._heads]
        self.model = keras.Model(inputs, (*outputs, x), name="impala_resnet")

    def _activated(self, name: str, x: keras.KerasTensor) -> keras.KerasTensor:
        if self._layer_norm:
            axes = list(range(1, len(x.shape)))
            x = keras.layers.LayerNormalization(axes, EPSILON, name=f"{name}_norm")(x)
        return keras.layers.ReLU(name=f"{name}_relu")(x)


def _flat(x: tf.Tensor) -> tf.Tensor:
    return tf.reshape(x, (-1, x.shape[1:].num_elements()))


def _convolution(name: str, filters: int, seeds: Iterator[int]) -> keras.layers.Conv2D:
    start = keras.initializers.Orthogonal(2**0.5, seed=next(seeds))
    return keras.layers.Conv2D(filters, 3, padding="same", kernel_initializer=start, name=name)
