"""The LSTM and the network around it, against NumPy written out: outputs, resets, gradients."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import network, observations

from shared.networks.recurrent import State, lstm_unroll

U = 3


def by_hand(projected, hidden, cell, kernel, mask):
    """Outputs [T, B, U], one environment after another, in float64."""
    times, count = mask.shape
    outputs = np.zeros((times, count, kernel.shape[0]))
    for b in range(count):
        h, c = hidden[b].astype(np.float64), cell[b].astype(np.float64)
        for t in range(times):
            i, f, g, o = np.split(projected[t, b] + h @ kernel, 4)
            i, f, o = (1 / (1 + np.exp(-x)) for x in (i, f, o))
            c = f * c + i * np.tanh(g)
            h = o * np.tanh(c)
            outputs[t, b] = h
            if mask[t, b] == 0:
                h, c = np.zeros_like(h), np.zeros_like(c)
    return outputs


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
    """Resets on the way, at the first and at the last time, T = 1, everything masked; finite differences in float64."""
    projected, hidden, cell, kernel, mask = rollout
    weights = np.random.default_rng(1).normal(size=(*mask.shape, U))
    expected = by_hand(*rollout)
    with tf.GradientTape() as tape:
        inputs = [tf.constant(projected), tf.constant(kernel)]
        state = [tf.constant(hidden), tf.constant(cell)]
        tape.watch([*inputs, *state])
        outputs = lstm_unroll(inputs[0], State(*state), inputs[1], tf.constant(mask))
        total = tf.reduce_sum(outputs * weights.astype(np.float32))
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
    by_projected, by_kernel, *by_state = tape.gradient(total, [*inputs, *state])
    # Truncated: what came before the rollout learns nothing from it.
    assert by_state == [None, None]

    def loss(of_projected: np.ndarray, of_kernel: np.ndarray) -> float:
        return float((by_hand(of_projected, hidden, cell, of_kernel, mask) * weights).sum())

    for gradient, array, at in ((by_projected, projected, 0), (by_kernel, kernel, 1)):
        direction = np.random.default_rng(2).normal(size=array.shape)
        moved = [[x.astype(np.float64) for x in (projected, kernel)] for _ in range(2)]
        moved[0][at] += 1e-6 * direction
        moved[1][at] -= 1e-6 * direction
        slope = (loss(*moved[0]) - loss(*moved[1])) / 2e-6
        assert float((gradient.numpy() * direction).sum()) == pytest.approx(slope, rel=1e-3, abs=1e-4)


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
