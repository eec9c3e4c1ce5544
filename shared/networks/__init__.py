"""The interface of networks, and the base of networks that are Keras models."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from shared.types import Float32Array


class Head(NamedTuple):
    """A linear output of `units`, whose weights start orthogonal, scaled by `gain`."""

    name: str
    units: int
    gain: float


class NetworkOutput(NamedTuple):
    """The output of a network for N observations.

    `heads` are float32 [N, units] by name; `features` float [N, H] is the last hidden layer of the first head;
    `parameters` are the method's trainable tensors that depend on no observation, by name. `state` is the input of the
    next call, unless an episode ends in between: float32 [N, units] for each of `Network.state_units`.
    """

    heads: dict[str, tf.Tensor]
    features: tf.Tensor
    parameters: dict[str, tf.Tensor]
    state: tuple[tf.Tensor, ...] = ()


class ObservationScale(NamedTuple):
    """Scaling of observations: (x - mean) / deviation, float32 of their shape."""

    mean: Float32Array
    deviation: Float32Array


# Names of the running moments in the parameter layout. The learner writes them; no gradient reaches them.
RUNNING_MEAN = "observation_scaling/mean"
RUNNING_VARIANCE = "observation_scaling/variance"


class Network(ABC):
    """A function with weights in an explicit order.

    Layers start orthogonal with gain √2, heads with their own gain, biases at 0. The same seed gives the same weights
    in every process.
    """

    state_units: tuple[int, ...] = ()
    """Units of each tensor of the state. Empty without a memory. The state at the start of an episode is zeros."""

    # Networks that this one is made of.
    _inner: Sequence["Network"] = ()

    def __init__(self, heads: Sequence[Head]) -> None:
        self._heads = tuple(heads)
        self._parameters: dict[str, keras.Variable] = {}

    @property
    @abstractmethod
    def feature_size(self) -> int:
        """H, the number of units of the last hidden layer of the first head."""

    @property
    @abstractmethod
    def trainable_variables(self) -> list[keras.Variable]:
        """The variables that gradients train, float32."""

    @property
    def untrained_variables(self) -> list[keras.Variable]:
        """The variables that gradients do not train, float32."""
        return [variable for network in self._inner for variable in network.untrained_variables]

    @property
    def variables(self) -> list[keras.Variable]:
        """All variables in the order of the parameter layout: the trainable ones first."""
        return [*self.trainable_variables, *self.untrained_variables]

    @abstractmethod
    def __call__(self, observations: tf.Tensor, state: Sequence[tf.Tensor] = ()) -> NetworkOutput:
        """Evaluate a batch [N, *observation_shape] in its own dtype, with the state at that time."""

    def unroll(self, observations: tf.Tensor, state: Sequence[tf.Tensor], mask: tf.Tensor) -> NetworkOutput:  # noqa: ARG002
        """Evaluate T times of B environments [T, B, …] in sequence. Heads and features have the leading shape [T, B].

        `state` float32 [B, units] each: at time 0; no gradient flows into it. After a step with `mask` 0, float32 [T,
        B], the next state is the initial one.
        """
        steps = observations.shape[:2]
        output = self(tf.reshape(observations, (steps.num_elements(), *observations.shape[2:])))

        def time_major(x: tf.Tensor) -> tf.Tensor:
            return tf.reshape(x, (*steps, x.shape[-1]))

        heads = {name: time_major(head) for name, head in output.heads.items()}
        return NetworkOutput(heads, time_major(output.features), output.parameters)

    @abstractmethod
    def as_keras(self) -> keras.Model:
        """The same function with the current weights as a model of Keras' own layers, which loads without this project.

        Input: observations in their own dtype. Output: the heads as a dict, float32; without heads, the features under
        that name.
        """

    def add_parameters(self, parameters: dict[str, Float32Array]) -> None:
        """Add trainable tensors that depend on no observation, at their initial values."""
        for name, initial in parameters.items():
            self._parameters[name] = keras.Variable(initial, dtype="float32", name=name)

    def parameter_tensors(self) -> dict[str, tf.Tensor]:
        return {name: tf.convert_to_tensor(variable) for name, variable in self._parameters.items()}


def orthogonal_seeds(seed: int) -> Iterator[int]:
    """A seed for each layer: equal seeds would give layers of the same shape equal weights.

    Runs of near seeds have some layers in common: `seed` + 1 to the number of layers.
    """
    return itertools.count(seed + 1)


class KerasNetwork(Network):
    """A network that is a Keras model whose outputs are the heads in order, then the features.

    The base of users' networks (`tributary_rl.register_network`). The constructor sets `model`. Its arguments are

        config: the `NetworkConfig` of the run.
        observation_shape: (size,) of float32 vectors, or (height, width, channels) of uint8 images.
        heads: its linear outputs, see `Head`. Without heads it is a trunk: the model has one output.
        seed: of the initial weights. The same seed gives the same weights in every process.
        observation_mean: to be subtracted from images, float32 of their shape; None if they are not centred.

    Layers with weights need names, and so do the weights of own layers (`add_weight(name=…)`): Keras' default names
    depend on what a process has made before.
    """

    model: keras.Model

    @property
    def feature_size(self) -> int:
        return int(self.model.outputs[-1].shape[-1])

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        return [*self.model.trainable_variables, *self._parameters.values()]

    @property
    def untrained_variables(self) -> list[keras.Variable]:
        # Not `non_trainable_variables`, which has the states of random generators.
        return self.model.non_trainable_weights

    def __call__(self, observations: tf.Tensor, state: Sequence[tf.Tensor] = ()) -> NetworkOutput:  # noqa: ARG002
        # A model with one output returns it without a list.
        *heads, features = tf.nest.flatten(self.model(observations))
        values = dict(zip((head.name for head in self._heads), heads, strict=True))
        return NetworkOutput(values, features, self.parameter_tensors())

    def as_keras(self) -> keras.Model:
        *heads, features = self.model.outputs
        outputs = dict(zip((head.name for head in self._heads), heads, strict=True)) or {"features": features}
        return keras.Model(self.model.input, outputs, name=self.model.name)
