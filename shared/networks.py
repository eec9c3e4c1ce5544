"""What a network is: a batch of observations in, the heads of a method out. And the multilayer perceptron."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from shared.config import NetworkConfig
from shared.layer_norm import EPSILON
from shared.types import Float32Array


class Head(NamedTuple):
    """A linear output of `units`, whose weights start orthogonal, scaled by `gain`."""

    name: str
    units: int
    gain: float


class NetworkOutput(NamedTuple):
    """What a network gives for N observations.

    `heads` are float32 [N, units] by name; `features` float [N, H] is the last hidden layer that the first head sees;
    `parameters` are the method's trainable tensors that depend on no observation, by name. `activations` are what
    `Network.replay` takes: one tensor [N, …] for each of `Network.activations`.
    """

    heads: dict[str, tf.Tensor]
    features: tf.Tensor
    parameters: dict[str, tf.Tensor]
    activations: tuple[tf.Tensor, ...] = ()


class ObservationScale(NamedTuple):
    """Observations are shifted by `mean` and divided by `deviation`, float32 of their shape."""

    mean: Float32Array
    deviation: Float32Array


# Names of what a running scale holds in the parameter layout. The learner writes them; no gradient reaches them.
RUNNING_MEAN = "observation_scaling/mean"
RUNNING_VARIANCE = "observation_scaling/variance"
_SCALED_LIMIT = 10.0
_VARIANCE_FLOOR = 1e-8


class Network(ABC):
    """A function with weights in an explicit order. Layers start orthogonal (gain √2), heads as they say, biases at 0.

    The same seed gives the same weights in every process.

    Args:
        heads: what it gives.
    """

    def __init__(self, heads: Sequence[Head]) -> None:
        self._heads = tuple(heads)
        self._parameters: dict[str, keras.Variable] = {}

    @property
    @abstractmethod
    def features(self) -> int:
        """H, the units of the last hidden layer of the first head."""

    @property
    @abstractmethod
    def trainable_variables(self) -> list[keras.Variable]:
        """What a gradient is taken by, float32."""

    @property
    @abstractmethod
    def variables(self) -> list[keras.Variable]:
        """All that the network needs to act, float32, in the order of the parameter layout: the trainable first."""

    @property
    def activations(self) -> list[tuple[tuple[int, ...], tf.DType]]:
        """Shape, for one observation, and dtype of each stored activation. Empty: nothing is worth storing."""
        return []

    @abstractmethod
    def __call__(self, observations: tf.Tensor) -> NetworkOutput:
        """Evaluate a batch: [N, *observation_shape] in its own dtype -> NetworkOutput."""

    @abstractmethod
    def as_keras(self) -> keras.Model:
        """The same function, with the present weights, of Keras' own layers: it loads where this project is not.

        Takes observations in their own dtype, and gives the heads as a dict, float32. Its arithmetic is float32
        whatever the network's precision.
        """

    def replay(self, observations: tf.Tensor, activations: Sequence[tf.Tensor]) -> NetworkOutput:
        """The output for `observations` whose activations, under the present weights, are known.

        Its value and its gradient by the weights are those of a call, and the forward pass is not computed again. For
        networks that name activations.
        """
        raise NotImplementedError(f"{type(self).__name__} stores no activations")

    def add_parameters(self, parameters: dict[str, Float32Array]) -> None:
        """Add trainable tensors that depend on no observation, at their initial values."""
        for name, initial in parameters.items():
            self._parameters[name] = keras.Variable(initial, dtype="float32", name=name)

    def parameter_tensors(self) -> dict[str, tf.Tensor]:
        """The values of the added parameters, by name."""
        return {name: tf.convert_to_tensor(variable) for name, variable in self._parameters.items()}


def orthogonal_seeds(seed: int) -> Iterator[int]:
    """A seed for each layer: equal seeds would give layers of one shape equal weights."""
    return itertools.count(seed + 1)


class MultilayerPerceptron(Network):
    """A trunk of fully connected layers for each head.

    Args:
        config: hidden sizes, activation, precision and scaling; and whether layers are normalised before they activate.
        observation_shape: (n,) of float32 vectors.
        heads: see `Network`.
        seed: of the initial weights.
        observation_scale: where the scaling is "bounds".
    """

    def __init__(
        self,
        config: NetworkConfig,
        observation_shape: Sequence[int],
        heads: Sequence[Head],
        seed: int,
        observation_scale: ObservationScale | None = None,
    ) -> None:
        super().__init__(heads)
        self._seeds = orthogonal_seeds(seed)
        policy = "mixed_bfloat16" if config.precision == "bfloat16" else "float32"
        inputs = keras.Input(tuple(observation_shape), dtype="float32", name="observations")
        scaled = inputs
        if config.observation_scaling == "bounds":
            assert observation_scale is not None, "the environment's bounds are known before its network is built"
            mean, deviation = observation_scale
            scaled = keras.layers.Rescaling(1.0 / deviation, -mean / deviation, name="scale")(inputs)
        elif config.observation_scaling == "running":
            scaled = _RunningScale(name="observation_scaling")(inputs)
        trunks = []
        self._trunks: dict[str, list[keras.Layer]] = {}
        for head in heads:
            x, layers = scaled, list(self._trunk(head.name, config, policy))
            for layer in layers:
                x = layer(x)
            trunks.append(x)
            self._trunks[head.name] = layers
        outputs = [
            self._dense(head.name, head.units, head.gain, None, "float32")(trunk)
            for head, trunk in zip(heads, trunks, strict=True)
        ]
        self.model = keras.Model(inputs, (*outputs, trunks[0]), name="mlp")

    @property
    def features(self) -> int:
        return int(self.model.output_shape[-1][-1])

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        return [*self.model.trainable_variables, *self._parameters.values()]

    @property
    def variables(self) -> list[keras.Variable]:
        return [*self.trainable_variables, *self.model.non_trainable_variables]

    def __call__(self, observations: tf.Tensor) -> NetworkOutput:
        *heads, features = self.model(observations)
        values = dict(zip((head.name for head in self._heads), heads, strict=True))
        return NetworkOutput(values, features, self.parameter_tensors())

    def as_keras(self) -> keras.Model:
        inputs = keras.Input(self.model.input_shape[1:], dtype="float32", name="observations")
        x = inputs
        for layer in self.model.layers:
            if isinstance(layer, _RunningScale):
                scale = 1.0 / np.sqrt(layer.variance.numpy() + _VARIANCE_FLOOR)
                x = _rescaling(scale, -layer.mean.numpy() * scale)(x)
                x = keras.ops.clip(x, -_SCALED_LIMIT, _SCALED_LIMIT)
            elif isinstance(layer, keras.layers.Rescaling):
                x = _rescaling(np.asarray(layer.scale), np.asarray(layer.offset))(x)
        scaled, outputs = x, {}
        for head in self._heads:
            x = scaled
            for layer in (*self._trunks[head.name], self.model.get_layer(head.name)):
                x = _copy(layer)(x)
            outputs[head.name] = x
        return _with_weights(keras.Model(inputs, outputs, name="mlp"), self.model)

    def _trunk(self, head: str, config: NetworkConfig, dtype: str) -> Iterator[keras.Layer]:
        activation = None if config.layer_norm else config.activation
        for i, units in enumerate(config.hidden_sizes, start=1):
            name = f"{head}_hidden{i}"
            yield self._dense(name, units, 2**0.5, activation, dtype)
            if config.layer_norm:
                # Keras' statistics are float32 in any precision.
                yield keras.layers.LayerNormalization(epsilon=EPSILON, dtype=dtype, name=f"{name}_norm")
                yield keras.layers.Activation(config.activation, dtype=dtype, name=f"{name}_activation")

    def _dense(self, name: str, units: int, gain: float, activation: str | None, dtype: str) -> keras.layers.Dense:
        start = keras.initializers.Orthogonal(gain, seed=next(self._seeds))
        return keras.layers.Dense(units, activation, kernel_initializer=start, dtype=dtype, name=name)


class _RunningScale(keras.layers.Layer):
    """Shift and scale to mean 0 and variance 1 by weights that no gradient changes, clipped to ±10."""

    def build(self, input_shape: tuple[int | None, int]) -> None:
        self.mean = self.add_weight(shape=input_shape[-1:], initializer="zeros", trainable=False, name="mean")
        self.variance = self.add_weight(shape=input_shape[-1:], initializer="ones", trainable=False, name="variance")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        scaled = (inputs - self.mean) * tf.math.rsqrt(self.variance + _VARIANCE_FLOOR)
        return tf.clip_by_value(scaled, -_SCALED_LIMIT, _SCALED_LIMIT)


def _rescaling(scale: npt.NDArray, offset: npt.NDArray) -> keras.layers.Rescaling:
    return keras.layers.Rescaling(scale.tolist(), offset.tolist(), dtype="float32")


def _copy(layer: keras.Layer) -> keras.Layer:
    return type(layer).from_config(layer.get_config() | {"dtype": "float32"})


def _with_weights(model: keras.Model, source: keras.Model) -> keras.Model:
    """`model` with the weights of the layers of `source` that have the same names."""
    for layer in model.layers:
        if layer.weights:
            layer.set_weights(source.get_layer(layer.name).get_weights())
    return model
