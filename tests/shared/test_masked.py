"""What is masked need not be finite: in returns, losses, standardisation, policies, memories and gradients."""

import numpy as np
import pytest
import tensorflow as tf

from shared.distributions import categorical_entropy
from shared.losses import (
    clipped_surrogate_loss,
    masked_mean,
    policy_gradient_loss,
    squared_errors,
    standardised,
    standardised_by_recent,
    values_of_actions,
)
from shared.moments import Moments
from shared.networks.recurrent import State, lstm_unroll
from shared.returns import lambda_returns

BAD = (float("nan"), float("inf"), -float("inf"))
MASK = tf.constant([[1.0], [0.0], [1.0]])


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("n_step", [None, 2])
def test_returns_select_what_they_need(bad: float, n_step: int | None) -> None:
    def returns(masked: float) -> np.ndarray:
        return lambda_returns(
            tf.constant([[1.0], [masked], [2.0]]),
            tf.constant([[0.0], [0.9], [0.0]]),
            tf.constant([[0.5], [masked], [0.7]]),
            tf.constant([masked]),
            MASK,
            return_lambda=0.9,
            n_step=n_step,
        ).numpy()

    np.testing.assert_array_equal(returns(bad)[[0, 2]], returns(0.0)[[0, 2]])
    np.testing.assert_array_equal(returns(bad)[[0, 2]], [[1.0], [2.0]])


@pytest.mark.parametrize("bad", BAD)
def test_losses_and_their_gradients_select_agent_steps(bad: float) -> None:
    x = tf.constant([[0.3], [bad], [-0.2]])
    q = tf.stack([x, x], axis=-1)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, q])
        losses = [
            policy_gradient_loss(x, x, MASK),
            clipped_surrogate_loss(x, x, x, MASK, 0.2)[0],
            tf.reduce_sum(squared_errors(x, x, MASK)),
            masked_mean(x, MASK),
        ]
        of_actions = tf.reduce_sum(squared_errors(values_of_actions(q, tf.zeros((3, 1), tf.int32)), x, MASK))
    assert np.isfinite([*losses, of_actions]).all()
    for gradient in (*(tape.gradient(loss, x) for loss in losses), tape.gradient(of_actions, q)):
        assert np.isfinite(gradient).all()
        assert not np.any(gradient[1])
    assert masked_mean(x, MASK).numpy() == pytest.approx(0.05)
    np.testing.assert_allclose(standardised(x, MASK), [[1.0], [0.0], [-1.0]], atol=1e-5)


def test_equal_advantages_are_standardised_to_zero_and_a_single_one_is_kept() -> None:
    single = standardised(tf.constant([[np.nan], [3.0]]), tf.constant([[0.0], [1.0]]))
    np.testing.assert_array_equal(single, [[0.0], [3.0]])
    np.testing.assert_array_equal(standardised(tf.constant([[3.0], [np.nan], [3.0]]), MASK), np.zeros((3, 1)))
    found, _ = standardised_by_recent(tf.constant([[0.0], [np.nan], [0.0]]), MASK, np.zeros(3))
    np.testing.assert_array_equal(found, np.zeros((3, 1)))


def test_impossible_actions_add_nothing_to_the_entropy() -> None:
    logits = tf.constant([[0.0, 0.0, -np.inf]])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        entropy = categorical_entropy(logits)
    assert entropy.numpy() == pytest.approx([np.log(2.0)])
    assert np.isfinite(tape.gradient(entropy, logits)).all()


def test_a_memory_forgets_the_state_after_a_reset_by_selection() -> None:
    projected = tf.constant(np.array([[0.1] * 4, [np.nan] * 4, [0.2] * 4], np.float32)[:, None])
    state = State(tf.zeros((1, 1)), tf.zeros((1, 1)))
    hidden = lstm_unroll(projected, state, tf.ones((1, 4)), MASK)
    assert np.isfinite(hidden.numpy()[[0, 2]]).all()


def test_moments_leave_out_vectors_that_are_not_finite() -> None:
    rows = np.array([[1.0, 2.0], [np.nan, 5.0], [3.0, np.inf], [3.0, 4.0]])
    moments = Moments.of(rows)
    assert moments.number == 2
    np.testing.assert_array_equal(moments.mean, [2.0, 3.0])
    assert Moments.of(rows[1:3]).number == 0


def test_pieces_make_the_moments_of_the_whole() -> None:
    rows = np.random.default_rng(0).normal(3.0, 2.0, (40, 2))
    moments = Moments.zero(2)
    for piece in (rows[:0], rows[:7], rows[7:7], rows[7:]):
        moments = moments.merge(Moments.of(piece))
    assert moments.number == 40
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0))
    np.testing.assert_allclose(moments.variance, rows.var(axis=0))
