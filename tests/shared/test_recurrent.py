"""The LSTM and the network around it, against TensorFlow written out: outputs, resets, gradients."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import network, observations

from shared.networks.recurrent import State, lstm_unroll

U = 3


def by_hand(projected: tf.Tensor, state: Sequence[tf.Tensor], kernel: tf.Tensor, mask: np.ndarray) -> tf.Tensor:
    """Outputs [T, B, U]."""
    (hidden, cell), outputs = state, []
    for gates, keep in zip(tf.unstack(projected), mask, strict=True):
        i, f, g, o = tf.split(gates + hidden @ kernel, 4, axis=-1)
        cell = tf.sigmoid(f) * cell + tf.sigmoid(i) * tf.tanh(g)
        hidden = tf.sigmoid(o) * tf.tanh(cell)
        outputs.append(hidden)
        hidden, cell = (keep[:, None] * part for part in (hidden, cell))
    return tf.stack(outputs)


@st.composite
def rollouts(draw: st.DrawFn):
    times, count = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    mask = draw(st.lists(st.sampled_from([0.0, 1.0, 1.0]), min_size=times * count, max_size=times * count))
    random = np.random.default_rng(draw(st.integers(0, 1_000)))
    shapes = ((times, count, 4 * U), (count, U), (count, U), (U, 4 * U))
    arrays = [random.normal(0.0, 0.7, shape).astype(np.float32) for shape in shapes]
    return (*arrays, np.array(mask, np.float32).reshape(times, count))


@settings(max_examples=40, deadline=None)
@given(rollouts())
def test_the_lstm_and_its_gradient_are_those_written_out(rollout) -> None:
    """Beside float64. Resets on the way, at the first and at the last time, T = 1, and everything masked."""
    *arrays, mask = rollout
    weights = np.random.default_rng(1).normal(size=(*mask.shape, U))

    def outputs_and_gradients(lstm: Callable[..., tf.Tensor], dtype: str) -> tuple[tf.Tensor, list[tf.Tensor]]:
        projected, hidden, cell, kernel = tensors = [tf.constant(array, dtype) for array in arrays]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            outputs = lstm(projected, State(hidden, cell), kernel, mask.astype(dtype))
            total = tf.reduce_sum(outputs * weights.astype(dtype))
        return outputs, tape.gradient(total, tensors)

    outputs, (grad_projected, *grad_state, grad_kernel) = outputs_and_gradients(lstm_unroll, "float32")
    expected, (grad_projected_too, _, _, grad_kernel_too) = outputs_and_gradients(by_hand, "float64")
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(grad_projected, grad_projected_too, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(grad_kernel, grad_kernel_too, rtol=1e-4, atol=1e-5)
    # Truncated: what came before the rollout learns nothing from it.
    assert grad_state == [None, None]


MASK = np.array([[1, 1], [0, 1], [1, 1], [1, 0], [1, 1]], np.float32)


@pytest.mark.parametrize("kind", ["mlp", "a3c_cnn", "impala_resnet"])
def test_a_rollout_at_once_is_its_times_one_by_one_and_its_two_halves(kind: str) -> None:
    memory, random = network(kind, recurrent=True), np.random.default_rng(3)
    seen = tf.constant(observations(kind, *MASK.shape))
    state = [tf.constant(random.normal(size=(2, units)).astype(np.float32)) for units in memory.state_units]
    whole = memory.unroll(seen, state, tf.constant(MASK))
    carried, states = state, [state]
    for t, keep in enumerate(MASK):
        output = memory(seen[t], carried)
        for name, head in output.heads.items():
            np.testing.assert_allclose(whole.heads[name][t], head, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(whole.features[t], output.features, rtol=1e-4, atol=1e-5)
        carried = [part * keep[:, None] for part in output.state]
        states.append(carried)
    for cut in (1, 2, 4):
        second = memory.unroll(seen[cut:], states[cut], tf.constant(MASK[cut:]))
        np.testing.assert_allclose(whole.heads["policy"][cut:], second.heads["policy"], rtol=1e-4, atol=1e-5)


def test_weights_start_orthogonal_with_open_forget_gates() -> None:
    weights = {v.name: v.numpy() for v in network("mlp", recurrent=True, trained=False).variables}
    kernel = weights["lstm_recurrent_kernel"].astype(np.float64)
    np.testing.assert_allclose(kernel @ kernel.T, np.eye(7), atol=1e-5)
    np.testing.assert_array_equal(weights["lstm_bias"], np.repeat([0.0, 1.0, 0.0, 0.0], 7))
