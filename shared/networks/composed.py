"""Networks made of other networks: for observations of images beside numbers, and for masks of allowed actions."""

import itertools
from collections.abc import Callable, Sequence

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from shared.config import NetworkConfig
from shared.distributions import MASKED, masked_logits
from shared.networks import Head, KerasNetwork, Network, NetworkOutput, ObservationScale, orthogonal_seeds
from shared.networks.layers import as_dense, as_layer_norm, gain_and_bias, initial_weights, linear, normalised
from shared.networks.perceptron import MultilayerPerceptron
from shared.types import ActionSpec, ObservationParts

_UNITS = 256
# Number of seeds reserved for each trunk.
_SEEDS_OF_A_TRUNK = 100


class MultiInputNetwork(Network):
    """A trunk for each image, one for the numbers, and a fully connected layer with ReLU, shared by the heads.

        h = ReLU(W [f_1(image_1); …; f_n(image_n); g(numbers)] + b)

    Each f is `image_network(config, image shape, no heads, seed, mean)` and g a multilayer perceptron, all without
    heads. Without the joint layer a linear head would be a sum over the parts: the meaning of an image could not depend
    on a number. `observation_mean`: of whole rows, float32 [R].
    """

    feature_size = _UNITS

    def __init__(
        self,
        config: NetworkConfig,
        parts: ObservationParts,
        heads: Sequence[Head],
        seed: int,
        image_network: Callable[..., Network],
        observation_mean: npt.NDArray[np.float32] | None = None,
        observation_scale: ObservationScale | None = None,
    ) -> None:
        super().__init__(heads)
        self._parts = parts
        self._inner = self._trunks = list[Network]()
        seeds = itertools.count(seed, _SEEDS_OF_A_TRUNK)
        means = parts.images_of(observation_mean) or {}
        for image in parts.images:
            # Trunks have equal names of weights; the scope makes them unique.
            with keras.name_scope(image.name):
                self._trunks.append(image_network(config, image.shape, (), next(seeds), means.get(image.name)))
        if parts.numbers:
            self._trunks.append(MultilayerPerceptron(config, (parts.vector_size,), (), next(seeds), observation_scale))
        own_seeds = orthogonal_seeds(next(seeds))
        inputs = sum(trunk.feature_size for trunk in self._trunks)
        self._joint = initial_weights("joint", (inputs, _UNITS), 2**0.5, next(own_seeds))
        self._norm = gain_and_bias("joint", (_UNITS,)) if config.layer_norm else None
        self._head_weights = [
            initial_weights(head.name, (_UNITS, head.units), head.gain, next(own_seeds)) for head in heads
        ]

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        of_trunks = [variable for trunk in self._trunks for variable in trunk.trainable_variables]
        of_heads = [variable for pair in self._head_weights for variable in pair]
        return [*of_trunks, *self._joint, *(self._norm or ()), *of_heads, *self._parameters.values()]

    def __call__(self, observations: tf.Tensor, state: Sequence[tf.Tensor] = ()) -> NetworkOutput:  # noqa: ARG002
        inputs = zip(self._trunks, _split(observations, self._parts), strict=True)
        x = linear(tf.concat([trunk(part).features for trunk, part in inputs], axis=-1), self._joint)
        if self._norm:
            gain, bias = (tf.convert_to_tensor(variable) for variable in self._norm)
            x = normalised(x).values * gain + bias
        x = tf.nn.relu(x)
        heads = {head.name: linear(x, weights) for head, weights in zip(self._heads, self._head_weights, strict=True)}
        return NetworkOutput(heads, x, self.parameter_tensors())

    def as_keras(self) -> keras.Model:
        """See `Network.as_keras`. The input is a dict of uint8 images by name and the float32 numbers as `vector`."""
        inputs = {image.name: keras.Input(image.shape, dtype="uint8", name=image.name) for image in self._parts.images}
        if self._parts.numbers:
            inputs["vector"] = keras.Input((self._parts.vector_size,), dtype="float32", name="vector")
        features = []
        for trunk, (name, x) in zip(self._trunks, inputs.items(), strict=True):
            model = trunk.as_keras()
            model.name = f"{name}_trunk"
            features.append(model(x)["features"])
        x = keras.layers.Concatenate(dtype="float32")(features) if len(features) > 1 else features[0]
        x = as_dense("joint", self._joint)(x)
        if self._norm:
            x = as_layer_norm(self._norm, x)
        x = keras.layers.ReLU(dtype="float32", name="joint_activation")(x)
        of_heads = zip(self._heads, self._head_weights, strict=True)
        outputs = {head.name: as_dense(head.name, weights)(x) for head, weights in of_heads}
        return keras.Model(inputs, outputs or {"features": x}, name="multi_input")


class WholeNetwork(KerasNetwork):
    """A model of the user's whose inputs are the images and the numbers, `vector`, by name."""

    def __init__(self, heads: Sequence[Head], model: keras.Model, parts: ObservationParts) -> None:
        super().__init__(heads)
        self.model, self._parts = model, parts

    def __call__(self, observations: tf.Tensor, state: Sequence[tf.Tensor] = ()) -> NetworkOutput:
        return super().__call__(dict(zip(self._parts.shapes, _split(observations, self._parts), strict=True)), state)


def _split(rows: tf.Tensor, parts: ObservationParts) -> list[tf.Tensor]:
    """The parts of rows uint8 [N, R]: images uint8 [N, H, W, C], then numbers float32 [N, size]."""
    pieces = [tf.reshape(rows[:, where], (-1, *image.shape)) for image, where in parts.image_bytes()]
    if parts.numbers:
        four = tf.reshape(rows[:, parts.vector_bytes], (-1, parts.vector_size, 4))
        pieces.append(tf.bitcast(four, tf.float32))
    return pieces


class MaskedNetwork(Network):
    """Another network with a mask for its head `head`, see `shared.distributions.masked_logits`.

    This is the only place where logits and action values are masked: acting, evaluation, bootstrapping, learning and
    export read this head.
    """

    def __init__(self, network: Network, observation_shape: Sequence[int], actions: ActionSpec, head: str) -> None:
        super().__init__(())
        self._network, self._head, self.state_units = network, head, network.state_units
        self._inner = (network,)
        self._observation_shape, self._actions = tuple(observation_shape), actions.size

    @property
    def feature_size(self) -> int:
        return self._network.feature_size

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        return self._network.trainable_variables

    def __call__(self, observations: tf.Tensor, state: Sequence[tf.Tensor] = ()) -> NetworkOutput:
        """Evaluate rows [N, size + A]: an observation, flat, and its mask, in one dtype."""
        observations, mask = self._split(observations)
        return self._masked(self._network(observations, state), mask)

    def unroll(self, observations: tf.Tensor, state: Sequence[tf.Tensor], mask: tf.Tensor) -> NetworkOutput:
        observations, allowed = self._split(observations)
        return self._masked(self._network.unroll(observations, state, mask), allowed)

    def as_keras(self) -> keras.Model:
        """See `Network.as_keras`. The input is a dict with the mask, bool, as `action_mask`."""
        model = self._network.as_keras()
        inputs = dict(model.input) if isinstance(model.input, dict) else {"observations": model.input}
        mask = keras.Input((self._actions,), dtype="bool", name="action_mask")
        outputs = {**model.output, self._head: keras.ops.where(mask, model.output[self._head], MASKED)}
        return keras.Model({**inputs, "action_mask": mask}, outputs, name=model.name)

    def _split(self, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        observations, mask = rows[..., : -self._actions], rows[..., -self._actions :]
        leading = [-1 if size is None else size for size in rows.shape[:-1]]
        return tf.reshape(observations, (*leading, *self._observation_shape)), tf.not_equal(mask, 0)

    def _masked(self, output: NetworkOutput, mask: tf.Tensor) -> NetworkOutput:
        return output._replace(heads={**output.heads, self._head: masked_logits(output.heads[self._head], mask)})
