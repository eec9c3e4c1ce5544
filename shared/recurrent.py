"""A network with a memory: an LSTM between a trunk and the heads."""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from shared.linear import as_dense, initial_weights
from shared.lstm import State, lstm_step, lstm_unroll
from shared.networks import Head, Network, NetworkOutput, orthogonal_seeds

# The trunk draws its seeds from the run's upwards.
_AFTER_THE_TRUNK = 1_000


class RecurrentNetwork(Network):
    """An LSTM over the features of a trunk; heads over what it gives, which are the features of this network.

    Its state is (h, c). Kernels start orthogonal; biases start at 0, those of the forget gate at 1 (Jozefowicz et al.
    2015). The LSTM's arithmetic is float32 whatever the trunk's precision. What is stored of acting is the trunk's: the
    LSTM is computed again for the gradient.

    Args:
        trunk: a network without heads.
        heads: see `Network`.
        units: U, of the LSTM.
        seed: of the initial weights.
    """

    def __init__(self, trunk: Network, heads: Sequence[Head], units: int, seed: int) -> None:
        super().__init__(heads)
        self._trunk, self._units = trunk, units
        seeds = orthogonal_seeds(seed + _AFTER_THE_TRUNK)

        def orthogonal(name: str, inputs: int) -> keras.Variable:
            values = keras.initializers.Orthogonal(1.0, seed=next(seeds))((inputs, 4 * units))
            return keras.Variable(values, dtype="float32", name=name)

        self._kernel = orthogonal("lstm_kernel", trunk.features)
        self._recurrent_kernel = orthogonal("lstm_recurrent_kernel", units)
        bias = np.repeat(np.array([0, 1, 0, 0], np.float32), units)
        self._bias = keras.Variable(bias, dtype="float32", name="lstm_bias")
        self._head_weights = [initial_weights(head.name, (units, head.units), head.gain, next(seeds)) for head in heads]

    @property
    def features(self) -> int:
        return self._units

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        own = [self._kernel, self._recurrent_kernel, self._bias, *(v for pair in self._head_weights for v in pair)]
        return [*self._trunk.trainable_variables, *own, *self._parameters.values()]

    @property
    def variables(self) -> list[keras.Variable]:
        return [*self.trainable_variables, *self._trunk.untrained_variables]

    @property
    def activations(self) -> list[tuple[tuple[int, ...], tf.DType]]:
        return self._trunk.activations

    @property
    def state_units(self) -> tuple[int, ...]:
        return self._units, self._units

    def __call__(self, observations: tf.Tensor, state: Sequence[tf.Tensor] = ()) -> NetworkOutput:
        trunk = self._trunk(observations)
        recurrent_kernel = tf.convert_to_tensor(self._recurrent_kernel)
        next_state = lstm_step(self._projected(trunk.features), State(*state), recurrent_kernel)
        return self._output(next_state.hidden)._replace(activations=trunk.activations, state=next_state)

    def unroll(
        self,
        observations: tf.Tensor,
        state: Sequence[tf.Tensor],
        mask: tf.Tensor,
        activations: Sequence[tf.Tensor] = (),
    ) -> NetworkOutput:
        features = self._trunk.unroll(observations, (), mask, activations).features
        recurrent_kernel = tf.convert_to_tensor(self._recurrent_kernel)
        return self._output(lstm_unroll(self._projected(features), State(*state), recurrent_kernel, mask))

    def as_keras(self) -> keras.Model:
        """See `Network.as_keras`. Takes the state as inputs `hidden` and `cell` too, and gives the next one so."""
        trunk = self._trunk.as_keras()
        by_name = trunk.input if isinstance(trunk.input, dict) else {"observations": trunk.input}
        inputs = {name: keras.Input(x.shape[1:], dtype=x.dtype, name=name) for name, x in by_name.items()}
        states = [keras.Input((self._units,), dtype="float32", name=name) for name in ("hidden", "cell")]
        lstm = keras.layers.LSTM(self._units, return_state=True, dtype="float32", name="lstm")
        seen = trunk(inputs if isinstance(trunk.input, dict) else inputs["observations"])
        one_time = keras.layers.Reshape((1, self._trunk.features), dtype="float32")(seen["features"])
        features, hidden, cell = lstm(one_time, initial_state=states)
        lstm.set_weights([v.numpy() for v in (self._kernel, self._recurrent_kernel, self._bias)])
        outputs = {"hidden": hidden, "cell": cell}
        for head, weights in zip(self._heads, self._head_weights, strict=True):
            outputs[head.name] = as_dense(head.name, weights)(features)
        return keras.Model({**inputs, "hidden": states[0], "cell": states[1]}, outputs, name="recurrent")

    def _projected(self, features: tf.Tensor) -> tf.Tensor:
        """What the gates get of the trunk's features [..., H]: float32 [..., 4 U], of all times in one product."""
        projected = tf.tensordot(tf.cast(features, tf.float32), tf.convert_to_tensor(self._kernel), axes=1)
        return projected + tf.convert_to_tensor(self._bias)

    def _output(self, features: tf.Tensor) -> NetworkOutput:
        heads = {
            head.name: tf.tensordot(features, tf.convert_to_tensor(kernel), axes=1) + tf.convert_to_tensor(bias)
            for head, (kernel, bias) in zip(self._heads, self._head_weights, strict=True)
        }
        return NetworkOutput(heads, features, self.parameter_tensors())
