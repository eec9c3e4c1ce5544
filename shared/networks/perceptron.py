"""The multilayer perceptron, for observations that are vectors."""

from collections.abc import Iterator, Sequence

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from shared.config import NetworkConfig
from shared.networks import Head, KerasNetwork, ObservationScale, orthogonal_seeds
from shared.networks.layers import EPSILON, dense

_SCALED_LIMIT = 10.0
_VARIANCE_FLOOR = 1e-8


class MultilayerPerceptron(KerasNetwork):
    """A trunk of fully connected layers for each head; a single trunk without heads."""

    def __init__(
        self,
        config: NetworkConfig,
        observation_shape: Sequence[int],
        heads: Sequence[Head],
        seed: int,
        observation_scale: ObservationScale | None = None,
    ) -> None:
        super().__init__(heads)
        seeds = orthogonal_seeds(seed)
        inputs = keras.Input(tuple(observation_shape), dtype="float32", name="observations")
        scaled = inputs
        if config.observation_scaling == "bounds":
            assert observation_scale is not None, "the environment's bounds are known before its network is built"
            mean, deviation = observation_scale
            scaled = keras.layers.Rescaling(1.0 / deviation, -mean / deviation, dtype="float32", name="scale")(inputs)
        elif config.observation_scaling == "running":
            scaled = _RunningScale(dtype="float32", name="observation_scaling")(inputs)
        trunks = []
        self._trunks: dict[str, list[keras.Layer]] = {}
        for name in [head.name for head in heads] or ["trunk"]:
            x, layers = scaled, list(_trunk(name, config, seeds))
            for layer in layers:
                x = layer(x)
            trunks.append(x)
            self._trunks[name] = layers
        outputs = [dense(head.name, head.units, head.gain, seeds)(x) for head, x in zip(heads, trunks, strict=False)]
        self.model = keras.Model(inputs, (*outputs, trunks[0]), name="mlp")

    def as_keras(self) -> keras.Model:
        inputs = keras.Input(self.model.input_shape[1:], dtype="float32", name="observations")
        x = inputs
        for layer in self.model.layers:
            if isinstance(layer, _RunningScale):
                scale = 1.0 / np.sqrt(layer.variance.numpy() + _VARIANCE_FLOOR)
                # In two steps, as above: their sum would cancel where the mean is large.
                x = _rescaling(np.ones_like(scale), -layer.mean.numpy())(x)
                x = _rescaling(scale, np.zeros_like(scale))(x)
                x = keras.ops.clip(x, -_SCALED_LIMIT, _SCALED_LIMIT)
            elif isinstance(layer, keras.layers.Rescaling):
                x = _rescaling(np.asarray(layer.scale), np.asarray(layer.offset))(x)
        scaled, outputs = x, {}
        for name, trunk in self._trunks.items():
            x = scaled
            for layer in (*trunk, *([self.model.get_layer(name)] if self._heads else [])):
                x = layer(x)
            outputs[name if self._heads else "features"] = x
        return keras.Model(inputs, outputs, name="mlp")


def _trunk(head: str, config: NetworkConfig, seeds: Iterator[int]) -> Iterator[keras.Layer]:
    activation = None if config.layer_norm else config.activation
    for i, units in enumerate(config.hidden_sizes, start=1):
        name = f"{head}_hidden{i}"
        yield dense(name, units, 2**0.5, seeds, activation)
        if config.layer_norm:
            yield keras.layers.LayerNormalization(epsilon=EPSILON, dtype="float32", name=f"{name}_norm")
            yield keras.layers.Activation(config.activation, dtype="float32", name=f"{name}_activation")


class _RunningScale(keras.layers.Layer):
    """Scaling to mean 0 and variance 1 by weights that gradients do not train, clipped to ±10."""

    def build(self, input_shape: tuple[int | None, int]) -> None:
        self.mean = self.add_weight(shape=input_shape[-1:], initializer="zeros", trainable=False, name="mean")
        self.variance = self.add_weight(shape=input_shape[-1:], initializer="ones", trainable=False, name="variance")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        scaled = (inputs - self.mean) * tf.math.rsqrt(self.variance + _VARIANCE_FLOOR)
        return tf.clip_by_value(scaled, -_SCALED_LIMIT, _SCALED_LIMIT)


def _rescaling(scale: npt.NDArray, offset: npt.NDArray) -> keras.layers.Rescaling:
    return keras.layers.Rescaling(scale.tolist(), offset.tolist(), dtype="float32")
