"""A network with a memory: an LSTM between a trunk and the heads."""

from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from shared.networks import Head, Network, NetworkOutput, orthogonal_seeds
from shared.networks.layers import as_dense, initial_weights

LSTM_UNITS = 256

# The trunk uses the seeds from the run's seed up.
_AFTER_THE_TRUNK = 1_000


class RecurrentNetwork(Network):
    """An LSTM over the features of a trunk. Its output is the features of this network, and the input of the heads.

    Its state is (h, c). Kernels start orthogonal; biases start at 0, the forget gate's at 1 (Jozefowicz et al. 2015).
    """

    def __init__(self, trunk: Network, heads: Sequence[Head], units: int, seed: int) -> None:
        super().__init__(heads)
        self._trunk, self._units, self.state_units = trunk, units, (units, units)
        self._inner = (trunk,)
        seeds = orthogonal_seeds(seed + _AFTER_THE_TRUNK)

        def orthogonal(name: str, inputs: int) -> keras.Variable:
            values = keras.initializers.Orthogonal(1.0, seed=next(seeds))((inputs, 4 * units))
            return keras.Variable(values, dtype="float32", name=name)

        self._kernel = orthogonal("lstm_kernel", trunk.feature_size)
        self._recurrent_kernel = orthogonal("lstm_recurrent_kernel", units)
        bias = np.repeat(np.array([0, 1, 0, 0], np.float32), units)
        self._bias = keras.Variable(bias, dtype="float32", name="lstm_bias")
        self._head_weights = [initial_weights(head.name, (units, head.units), head.gain, next(seeds)) for head in heads]

    @property
    def feature_size(self) -> int:
        return self._units

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        weights = [self._kernel, self._recurrent_kernel, self._bias, *(v for pair in self._head_weights for v in pair)]
        return [*self._trunk.trainable_variables, *weights, *self._parameters.values()]

    def __call__(self, observations: tf.Tensor, state: Sequence[tf.Tensor] = ()) -> NetworkOutput:
        trunk = self._trunk(observations)
        recurrent_kernel = tf.convert_to_tensor(self._recurrent_kernel)
        hidden, cell = state
        next_state, _ = _next(_gates(self._projected(trunk.features), hidden, recurrent_kernel), cell)
        return self._output(next_state.hidden)._replace(state=next_state)

    def unroll(self, observations: tf.Tensor, state: Sequence[tf.Tensor], mask: tf.Tensor) -> NetworkOutput:
        features = self._trunk.unroll(observations, (), mask).features
        recurrent_kernel = tf.convert_to_tensor(self._recurrent_kernel)
        return self._output(lstm_unroll(self._projected(features), State(*state), recurrent_kernel, mask))

    def as_keras(self) -> keras.Model:
        """See `Network.as_keras`. `hidden` and `cell`, the state, are inputs and outputs too."""
        trunk = self._trunk.as_keras()
        by_name = trunk.input if isinstance(trunk.input, dict) else {"observations": trunk.input}
        inputs = {name: keras.Input(x.shape[1:], dtype=x.dtype, name=name) for name, x in by_name.items()}
        states = [keras.Input((self._units,), dtype="float32", name=name) for name in ("hidden", "cell")]
        lstm = keras.layers.LSTM(self._units, return_state=True, dtype="float32", name="lstm")
        output = trunk(inputs if isinstance(trunk.input, dict) else inputs["observations"])
        one_time = keras.layers.Reshape((1, self._trunk.feature_size), dtype="float32")(output["features"])
        features, hidden, cell = lstm(one_time, initial_state=states)
        lstm.set_weights([v.numpy() for v in (self._kernel, self._recurrent_kernel, self._bias)])
        outputs = {"hidden": hidden, "cell": cell}
        for head, weights in zip(self._heads, self._head_weights, strict=True):
            outputs[head.name] = as_dense(head.name, weights)(features)
        return keras.Model({**inputs, "hidden": states[0], "cell": states[1]}, outputs, name="recurrent")

    def _projected(self, features: tf.Tensor) -> tf.Tensor:
        """The input of the gates from features [..., H]: float32 [..., 4 U], all times in one product."""
        projected = tf.tensordot(features, tf.convert_to_tensor(self._kernel), axes=1)
        return projected + tf.convert_to_tensor(self._bias)

    def _output(self, features: tf.Tensor) -> NetworkOutput:
        heads = {
            head.name: tf.tensordot(features, tf.convert_to_tensor(kernel), axes=1) + tf.convert_to_tensor(bias)
            for head, (kernel, bias) in zip(self._heads, self._head_weights, strict=True)
        }
        return NetworkOutput(heads, features, self.parameter_tensors())


class State(NamedTuple):
    """State of an LSTM of U units: h and c, float32 [B, U]. Zeros at the start."""

    hidden: tf.Tensor
    cell: tf.Tensor


def lstm_unroll(projected: tf.Tensor, state: State, recurrent_kernel: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """T times of an LSTM in sequence: h'_t float32 [T, B, U] (Hochreiter and Schmidhuber 1997).

    With the forget gate of Gers et al. 2000, and no peepholes:

        i, f, g, o = σ(z_i), σ(z_f), tanh(z_g), σ(z_o),    z = W x + b + U h
        c' = f · c + i · g,    h' = o · tanh(c')

    `projected` is W x + b, float32 [T, B, 4 U] with a static T, the gates in Keras' order i, f, g, o;
    `recurrent_kernel` is U, [U, 4 U].

    The state that time t + 1 begins with is that after time t, and 0 after a step that only reset. It is selected, not
    multiplied by the mask: the input of such a step need not be finite.

    The gradient is truncated backpropagation through time: none flows into the state at time 0. The gradient of the
    kernel is one product over all times; automatic differentiation would sum T tensors of the kernel's size.
    """
    hidden, cell, mask = (tf.stop_gradient(x) for x in (*state, mask))

    @tf.custom_gradient
    def unroll(projected: tf.Tensor, recurrent_kernel: tf.Tensor) -> tuple:
        h, c, times = hidden, cell, []
        keeps, nothing = tf.unstack(mask[:, :, None] > 0.5), tf.zeros_like(cell)
        # Unrolled, like the returns: a while loop takes several times as long per iteration.
        for z, keep in zip(tf.unstack(projected), keeps, strict=True):
            gates = _gates(z, h, recurrent_kernel)
            (output, new_cell), activated = _next(gates, c)
            times.append((gates, h, c, activated, output))
            h, c = tf.where(keep, output, nothing), tf.where(keep, new_cell, nothing)

        def gradient(grad_output: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            grad_hidden = grad_cell = nothing
            reversed_grad_gates = []
            for grad_out, keep, ((i, f, g, o), _, c, activated, _) in zip(
                reversed(tf.unstack(grad_output)), reversed(keeps), reversed(times), strict=True
            ):
                grad_h = grad_out + tf.where(keep, grad_hidden, nothing)
                grad_c = grad_h * o * (1.0 - tf.square(activated)) + tf.where(keep, grad_cell, nothing)
                grad_gates = tf.concat(
                    [
                        grad_c * g * i * (1.0 - i),
                        grad_c * c * f * (1.0 - f),
                        grad_c * i * (1.0 - tf.square(g)),
                        grad_h * activated * o * (1.0 - o),
                    ],
                    axis=-1,
                )
                grad_hidden, grad_cell = tf.matmul(grad_gates, recurrent_kernel, transpose_b=True), grad_c * f
                reversed_grad_gates.append(grad_gates)
            grad_projected = tf.stack(reversed_grad_gates[::-1])
            before = tf.concat([h for _, h, *_ in times], axis=0)
            of_all_times = tf.reshape(grad_projected, (-1, recurrent_kernel.shape[-1]))
            return grad_projected, tf.matmul(before, of_all_times, transpose_a=True)

        return tf.stack([output for *_, output in times]), gradient

    return unroll(projected, recurrent_kernel)


def _gates(projected: tf.Tensor, hidden: tf.Tensor, recurrent_kernel: tf.Tensor) -> tuple[tf.Tensor, ...]:
    i, f, g, o = tf.split(projected + tf.matmul(hidden, recurrent_kernel), 4, axis=-1)
    return tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)


def _next(gates: tuple[tf.Tensor, ...], cell: tf.Tensor) -> tuple[State, tf.Tensor]:
    i, f, g, o = gates
    new_cell = f * cell + i * g
    activated = tf.tanh(new_cell)
    return State(o * activated, new_cell), activated
