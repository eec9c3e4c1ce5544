"""Networks as Keras models from a batch of observations to policy logits, values and the last hidden layer."""

from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from shared.config import NetworkConfig
from shared.errors import setting_error


class NetworkOutput(NamedTuple):
    """logits float32 [N, A]; values float32 [N]; features float [N, H], the last hidden layer after its ReLU."""

    logits: tf.Tensor
    values: tf.Tensor
    features: tf.Tensor


# (filters, kernel, stride) of each convolution, then the units of the fully connected layer.
_CONVOLUTIONS = {
    "a3c_cnn": (((16, 8, 4), (32, 4, 2)), 256),
    "nature_cnn": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
}


# Centred images vary by a quarter of their range at most; this brings them to about unit range.
_CENTRED_SCALE = 4.0


class ActorCriticNetwork:
    """A Keras model with a policy head and a value head, and its weights in an explicit order.

    Args:
        config: which network, and the precision of its layers.
        observation_shape: of one observation. Images are uint8 [stack, height, width], as ale-py gives them;
            others are float32 [n] vectors.
        actions: A, the number of discrete actions.
        seed: of the initial weights: the same seed gives the same weights in every process.
        observation_mean: of `observation_shape`, subtracted from images; what is left varies little, and is scaled
            up by 4. None: images are scaled to [0, 1] only.

    Layers start orthogonal (gain √2) and the policy head nearly uniform (gain 0.01), so that the first policy does
    not depend on the observation; biases start at 0.
    """

    def __init__(
        self,
        config: NetworkConfig,
        observation_shape: Sequence[int],
        actions: int,
        seed: int,
        observation_mean: npt.NDArray[np.float32] | None = None,
    ) -> None:
        self._policy = "mixed_bfloat16" if config.precision == "bfloat16" else "float32"
        self._seed = seed
        if config.name == "mlp":
            self.model = self._mlp(config.hidden_sizes, tuple(observation_shape), actions)
        else:
            self.model = self._cnn(config.name, tuple(observation_shape), actions, observation_mean)

    @property
    def variables(self) -> list[keras.Variable]:
        """The trainable weights, float32, in the order of the parameter layout."""
        return list(self.model.trainable_variables)

    def __call__(self, observations: tf.Tensor) -> NetworkOutput:
        """Evaluate a batch: [N, *observation_shape] in its own dtype -> NetworkOutput."""
        logits, values, features = self.model(observations)
        return NetworkOutput(logits, tf.squeeze(values, axis=-1), features)

    def _orthogonal(self, gain: float) -> keras.initializers.Initializer:
        self._seed += 1
        return keras.initializers.Orthogonal(gain, seed=self._seed)

    def _dense(self, name: str, units: int, gain: float, activation: str | None, dtype: str) -> keras.layers.Dense:
        return keras.layers.Dense(units, activation, kernel_initializer=self._orthogonal(gain), dtype=dtype, name=name)

    def _cnn(
        self,
        name: str,
        observation_shape: tuple[int, ...],
        actions: int,
        observation_mean: npt.NDArray[np.float32] | None,
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
        logits = self._dense("policy", actions, 0.01, None, "float32")(features)
        values = self._dense("value", 1, 1.0, None, "float32")(features)
        return keras.Model(inputs, (logits, values, features), name=name)

    def _mlp(self, hidden_sizes: Sequence[int], observation_shape: tuple[int, ...], actions: int) -> keras.Model:
        if len(observation_shape) != 1:
            raise setting_error("network.name", "mlp", f"needs vectors, and observations have {observation_shape}")
        inputs = keras.Input(observation_shape, dtype="float32", name="observations")
        trunks = []
        for trunk in ("policy", "value"):
            x = inputs
            for i, units in enumerate(hidden_sizes, start=1):
                x = self._dense(f"{trunk}_hidden{i}", units, 2**0.5, "tanh", self._policy)(x)
            trunks.append(x)
        logits = self._dense("policy", actions, 0.01, None, "float32")(trunks[0])
        values = self._dense("value", 1, 1.0, None, "float32")(trunks[1])
        return keras.Model(inputs, (logits, values, trunks[0]), name="mlp")
