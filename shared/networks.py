"""Networks as Keras models from a batch of observations to the heads of a method and the last hidden layer."""

from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from shared.config import NetworkConfig
from shared.errors import setting_error
from shared.types import Float32Array


class Head(NamedTuple):
    """A linear output of `units`, whose weights start orthogonal, scaled by `gain`."""

    name: str
    units: int
    gain: float


class NetworkOutput(NamedTuple):
    """What a network gives for N observations.

    `heads` are float32 [N, units] by name; `features` float [N, H] is the last hidden layer that the first head sees;
    `parameters` are the method's trainable tensors that depend on no observation, by name.
    """

    heads: dict[str, tf.Tensor]
    features: tf.Tensor
    parameters: dict[str, tf.Tensor]


class ObservationScale(NamedTuple):
    """Observations are shifted by `mean` and divided by `deviation`, float32 of their shape."""

    mean: Float32Array
    deviation: Float32Array


# Names of what a running scale holds in the parameter layout. The learner writes them; no gradient reaches them.
RUNNING_MEAN = "observation_scaling/mean"
RUNNING_VARIANCE = "observation_scaling/variance"
_SCALED_LIMIT = 10.0

# (filters, kernel, stride) of each convolution, then the units of the fully connected layer.
_CONVOLUTIONS = {
    "a3c_cnn": (((16, 8, 4), (32, 4, 2)), 256),
    "nature_cnn": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
}


# Centred images vary by a quarter of their range at most; this brings them to about unit range.
_CENTRED_SCALE = 4.0


class Network:
    """A Keras model with the heads of a method, and its weights in an explicit order.

    Args:
        config: which network, and the precision of its layers.
        observation_shape: of one observation. Images are uint8 [stack, height, width], as ale-py gives them;
            others are float32 [n] vectors.
        heads: what it gives. A CNN's share their hidden layers; an MLP has a trunk for each.
        seed: of the initial weights: the same seed gives the same weights in every process.
        observation_mean: of `observation_shape`, subtracted from images; what is left varies little, and is scaled
            up by 4. None: images are scaled to [0, 1] only.
        observation_scale: of vectors, where the scaling is "bounds".

    Layers start orthogonal (gain √2) and the heads as they say; biases start at 0.
    """

    def __init__(
        self,
        config: NetworkConfig,
        observation_shape: Sequence[int],
        heads: Sequence[Head],
        seed: int,
        *,
        observation_mean: npt.NDArray[np.float32] | None = None,
        observation_scale: ObservationScale | None = None,
    ) -> None:
        self._policy = "mixed_bfloat16" if config.precision == "bfloat16" else "float32"
        self._seed = seed
        self._heads = tuple(heads)
        if config.name == "mlp":
            self.model = self._mlp(config, tuple(observation_shape), observation_scale)
        else:
            self.model = self._cnn(config.name, tuple(observation_shape), observation_mean)
        self._parameters: dict[str, keras.Variable] = {}

    @property
    def features(self) -> int:
        """H, the units of the last hidden layer of the first head."""
        return int(self.model.output_shape[-1][-1])

    def add_parameters(self, parameters: dict[str, Float32Array]) -> None:
        """Add trainable tensors that depend on no observation, at their initial values."""
        for name, initial in parameters.items():
            self._parameters[name] = keras.Variable(initial, dtype="float32", name=name)

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """What a gradient is taken by, float32."""
        return [*self.model.trainable_variables, *self._parameters.values()]

    @property
    def variables(self) -> list[keras.Variable]:
        """All that the network needs to act, float32, in the order of the parameter layout: the trainable first."""
        return [*self.trainable_variables, *self.model.non_trainable_variables]

    def __call__(self, observations: tf.Tensor) -> NetworkOutput:
        """Evaluate a batch: [N, *observation_shape] in its own dtype -> NetworkOutput."""
        *heads, features = self.model(observations)
        values = dict(zip((head.name for head in self._heads), heads, strict=True))
        return NetworkOutput(values, features, {n: tf.convert_to_tensor(v) for n, v in self._parameters.items()})

    def _orthogonal(self, gain: float) -> keras.initializers.Initializer:
        self._seed += 1
        return keras.initializers.Orthogonal(gain, seed=self._seed)

    def _dense(self, name: str, units: int, gain: float, activation: str | None, dtype: str) -> keras.layers.Dense:
        return keras.layers.Dense(units, activation, kernel_initializer=self._orthogonal(gain), dtype=dtype, name=name)

    def _head(self, head: Head, features: keras.KerasTensor) -> keras.KerasTensor:
        return self._dense(head.name, head.units, head.gain, None, "float32")(features)

    def _cnn(
        self, name: str, observation_shape: tuple[int, ...], observation_mean: npt.NDArray[np.float32] | None
    ) -> keras.Model:
        if len(observation_shape) != 3:
            raise setting_error("network.name", name, f"needs images, and observations have shape {observation_shape}")
        convolutions, units = _CONVOLUTIONS[name]
        inputs = keras.Input(observation_shape, dtype="uint8", name="observations")
        # ale-py stacks frames first, and TensorFlow's CPU convolutions want channels last. Scaling comes first:
        # oneDNN transposes floats, not bytes.
        if observation_mean is None:
            rescaling = keras.layers.Rescaling(1 / 255, dtype=self._policy, name="scale")
        else:
            scale = _CENTRED_SCALE / 255
            rescaling = keras.layers.Rescaling(scale, -scale * observation_mean, dtype=self._policy, name="scale")
        x = rescaling(inputs)
        x = keras.layers.Permute((2, 3, 1), dtype=self._policy, name="channels_last")(x)
        for i, (filters, kernel, stride) in enumerate(convolutions, start=1):
            if min(x.shape[1:3]) < kernel:
                raise setting_error("network.name", name, f"needs larger images than {observation_shape[1:]}")
            x = keras.layers.Conv2D(
                filters,
                kernel,
                stride,
                activation="relu",
                kernel_initializer=self._orthogonal(2**0.5),
                dtype=self._policy,
                name=f"conv{i}",
            )(x)
        x = keras.layers.Flatten(dtype=self._policy, name="flatten")(x)
        features = self._dense("hidden", units, 2**0.5, "relu", self._policy)(x)
        return keras.Model(inputs, (*(self._head(head, features) for head in self._heads), features), name=name)

    def _mlp(
        self, config: NetworkConfig, observation_shape: tuple[int, ...], scale: ObservationScale | None
    ) -> keras.Model:
        if len(observation_shape) != 1:
            raise setting_error("network.name", "mlp", f"needs vectors, and observations have {observation_shape}")
        inputs = keras.Input(observation_shape, dtype="float32", name="observations")
        scaled = inputs
        if config.observation_scaling == "bounds":
            assert scale is not None, "the environment's bounds are known before its network is built"
            scaled = keras.layers.Rescaling(1.0 / scale.deviation, -scale.mean / scale.deviation, name="scale")(inputs)
        elif config.observation_scaling == "running":
            scaled = _RunningScale(name="observation_scaling")(inputs)
        trunks = []
        for head in self._heads:
            x = scaled
            for i, units in enumerate(config.hidden_sizes, start=1):
                x = self._dense(f"{head.name}_hidden{i}", units, 2**0.5, config.activation, self._policy)(x)
            trunks.append(x)
        outputs = [self._head(head, trunk) for head, trunk in zip(self._heads, trunks, strict=True)]
        return keras.Model(inputs, (*outputs, trunks[0]), name="mlp")


class _RunningScale(keras.layers.Layer):
    """Shift and scale to mean 0 and variance 1 by weights that no gradient changes, clipped to ±10."""

    def build(self, input_shape: tuple[int | None, int]) -> None:
        self.mean = self.add_weight(shape=input_shape[-1:], initializer="zeros", trainable=False, name="mean")
        self.variance = self.add_weight(shape=input_shape[-1:], initializer="ones", trainable=False, name="variance")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        scaled = (inputs - self.mean) * tf.math.rsqrt(self.variance + 1e-8)
        return tf.clip_by_value(scaled, -_SCALED_LIMIT, _SCALED_LIMIT)
