"""The LSTM, in plain TensorFlow: one time, and T times of B environments with a gradient of its own."""

from typing import NamedTuple

import tensorflow as tf


class State(NamedTuple):
    """What an LSTM of U units carries from one time to the next: h and c, float32 [B, U]. Zeros at the start."""

    hidden: tf.Tensor
    cell: tf.Tensor


def lstm_step(projected: tf.Tensor, state: State, recurrent_kernel: tf.Tensor) -> State:
    """One time of an LSTM (Hochreiter and Schmidhuber 1997; with the forget gate of Gers et al. 2000, no peepholes).

        i, f, g, o = σ(z_i), σ(z_f), tanh(z_g), σ(z_o),    z = W x + b + U h
        c' = f · c + i · g,    h' = o · tanh(c')

    Args:
        projected: W x + b, float32 [B, 4 U], the gates in the order i, f, g, o, which is Keras'.
        state: h and c.
        recurrent_kernel: U, float32 [U, 4 U].

    Returns:
        h' and c'.
    """
    return _next(_gates(projected, state.hidden, recurrent_kernel), state.cell)[0]


def lstm_unroll(projected: tf.Tensor, state: State, recurrent_kernel: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """T times of it, one after another: h'_t float32 [T, B, U].

    The state that time t + 1 begins with is that after time t times mask_t: 0 after a step that only reset.

    Its gradient is backpropagation through the T times, and ends there: none flows into the state at time 0 (truncated
    backpropagation through time). That of the kernel is one product over all times, where automatic differentiation
    would add up T of the kernel's size.

    Args:
        projected: float32 [T, B, 4 U], see `lstm_step`. T is static.
        state: at time 0.
        recurrent_kernel: float32 [U, 4 U].
        mask: float32 [T, B].
    """
    hidden, cell, mask = (tf.stop_gradient(x) for x in (*state, mask))

    @tf.custom_gradient
    def unroll(projected: tf.Tensor, recurrent_kernel: tf.Tensor) -> tuple:
        h, c, times = hidden, cell, []
        kept = tf.unstack(mask[:, :, None])
        # Unrolled, as the returns are: a while loop takes several times as long for each of its rounds.
        for z, keep in zip(tf.unstack(projected), kept, strict=True):
            gates = _gates(z, h, recurrent_kernel)
            (output, new_cell), activated = _next(gates, c)
            times.append((gates, h, c, activated, output))
            h, c = output * keep, new_cell * keep

        def gradient(by_output: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            by_hidden = by_cell = tf.zeros_like(cell)
            reversed_by_gates = []
            for by_out, keep, ((i, f, g, o), _, c, activated, _) in zip(
                reversed(tf.unstack(by_output)), reversed(kept), reversed(times), strict=True
            ):
                by_h = by_out + keep * by_hidden
                by_c = by_h * o * (1.0 - tf.square(activated)) + keep * by_cell
                by_gates = tf.concat(
                    [
                        by_c * g * i * (1.0 - i),
                        by_c * c * f * (1.0 - f),
                        by_c * i * (1.0 - tf.square(g)),
                        by_h * activated * o * (1.0 - o),
                    ],
                    axis=-1,
                )
                by_hidden, by_cell = tf.matmul(by_gates, recurrent_kernel, transpose_b=True), by_c * f
                reversed_by_gates.append(by_gates)
            by_projected = tf.stack(reversed_by_gates[::-1])
            before = tf.concat([h for _, h, *_ in times], axis=0)
            of_all_times = tf.reshape(by_projected, (-1, recurrent_kernel.shape[-1]))
            return by_projected, tf.matmul(before, of_all_times, transpose_a=True)

        return tf.stack([output for *_, output in times]), gradient

    return unroll(projected, recurrent_kernel)


def _gates(projected: tf.Tensor, hidden: tf.Tensor, recurrent_kernel: tf.Tensor) -> tuple[tf.Tensor, ...]:
    i, f, g, o = tf.split(projected + tf.matmul(hidden, recurrent_kernel), 4, axis=-1)
    return tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)


def _next(gates: tuple[tf.Tensor, ...], cell: tf.Tensor) -> tuple[State, tf.Tensor]:
    """The next state, and tanh(c')."""
    i, f, g, o = gates
    new_cell = f * cell + i * g
    activated = tf.tanh(new_cell)
    return State(o * activated, new_cell), activated
