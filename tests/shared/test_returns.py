"""Returns against arithmetic that is written out and a naive recursion."""

import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.returns import lambda_returns


def naive_lambda_returns(rewards, discounts, values, bootstrap_value, mask, lam, n_step=None):
    """As in the mathematics: each return by its own recursion, no reuse."""
    steps, batch = rewards.shape
    all_values = np.concatenate([values, bootstrap_value[None]])

    def naive_return(t, b, n):
        if t == steps or n == 0 or not mask[t, b]:
            return all_values[t, b]
        ahead = naive_return(t + 1, b, n - 1)
        return rewards[t, b] + discounts[t, b] * ((1 - lam) * all_values[t + 1, b] + lam * ahead)

    return np.array([[naive_return(t, b, n_step or steps) for b in range(batch)] for t in range(steps)])


def column(*numbers: float) -> tf.Tensor:
    return tf.constant(numbers, tf.float32, (len(numbers), 1))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [1 + 0.9 * (2 + 0.9 * (3 + 0.9 * 40)), 2 + 0.9 * (3 + 0.9 * 40), 3 + 0.9 * 40]),
        # Two rewards, then the value two steps on; the last ones are cut short by the end of the rollout.
        ({"n_step": 2}, [1 + 0.9 * (2 + 0.9 * 30), 2 + 0.9 * (3 + 0.9 * 40), 3 + 0.9 * 40]),
        ({"n_step": 1}, [1 + 0.9 * 20, 2 + 0.9 * 30, 3 + 0.9 * 40]),
        ({"return_lambda": 0.0}, [1 + 0.9 * 20, 2 + 0.9 * 30, 3 + 0.9 * 40]),
        (
            {"return_lambda": 0.5},
            [1 + 0.9 * (0.5 * 20 + 0.5 * (2 + 0.9 * (0.5 * 30 + 0.5 * 39))), 2 + 0.9 * (0.5 * 30 + 0.5 * 39), 39],
        ),
        # An episode ends at t = 0, and t = 1 resets: a truncated one is bootstrapped, and a terminated one is not.
        ({"mask": column(1, 0, 1)}, [1 + 0.9 * 20, 20, 3 + 0.9 * 40]),
        ({"mask": column(1, 0, 1), "discounts": column(0, 0.9, 0.9)}, [1, 20, 3 + 0.9 * 40]),
        # Where all ends are terminal the rewards are left, and where all is masked the values.
        ({"discounts": column(0, 0, 0), "return_lambda": 0.7}, [1, 2, 3]),
        ({"mask": column(0, 0, 0), "return_lambda": 0.7}, [10, 20, 30]),
    ],
)
def test_returns_in_written_out_arithmetic(changes: dict[str, Any], expected: list[float]) -> None:
    arguments = {
        "rewards": column(1, 2, 3),
        "discounts": column(0.9, 0.9, 0.9),
        "values": column(10, 20, 30),
        "bootstrap_value": tf.constant([40.0]),
        "mask": column(1, 1, 1),
        "return_lambda": 1.0,
    }
    np.testing.assert_allclose(lambda_returns(**arguments | changes)[:, 0], expected, rtol=1e-6)


@settings(deadline=None, max_examples=30)
@given(
    steps=st.integers(1, 6),
    batch=st.integers(1, 3),
    lam=st.sampled_from([0.0, 0.3, 0.95, 1.0]),
    n_step=st.integers(0, 6),
    seed=st.integers(0, 999),
)
def test_equals_the_naive_recursion_eager_and_graph(steps: int, batch: int, lam: float, n_step: int, seed: int) -> None:
    settings = {"return_lambda": lam, "n_step": min(n_step, steps) or None}
    random = np.random.default_rng(seed)
    shape = (steps, batch)
    rewards, values = random.normal(size=(2, *shape)).astype(np.float32)
    discounts = random.choice([0.0, 0.9, 0.99], shape).astype(np.float32)
    mask = random.choice([0.0, 1.0], shape, p=[0.2, 0.8]).astype(np.float32)
    bootstrap = random.normal(size=batch).astype(np.float32)
    expected = naive_lambda_returns(rewards, discounts, values, bootstrap, mask, lam, settings["n_step"])
    arguments = [tf.constant(x) for x in (rewards, discounts, values, bootstrap, mask)]
    eager = lambda_returns(*arguments, **settings)
    np.testing.assert_allclose(eager, expected, rtol=1e-5, atol=1e-6)
    unknown_batch = [tf.TensorSpec((steps, None), tf.float32)] * 3
    signature = [*unknown_batch, tf.TensorSpec((None,), tf.float32), tf.TensorSpec((steps, None), tf.float32)]
    graph = tf.function(lambda *a: lambda_returns(*a, **settings), input_signature=signature)(*arguments)
    np.testing.assert_allclose(graph, eager, rtol=1e-6, atol=1e-6)


def test_wrong_ranks_and_unknown_lengths_are_refused() -> None:
    ones, one = column(1.0, 1.0), tf.constant([1.0])
    returns = functools.partial(lambda_returns, return_lambda=1.0)
    for n_step in (0, 3):
        with pytest.raises(ValueError, match=f"n_step must be from 1 to the unroll length 2, got {n_step}"):
            returns(ones, ones, ones, one, ones, n_step=n_step)
    with pytest.raises(ValueError, match=r"mask of shape \(2, 2\) do not fit rewards of shape \(2, 1\)"):
        returns(ones, ones, ones, one, tf.ones((2, 2)))
    with pytest.raises(ValueError, match=r"bootstrap_value of shape \(2, 1\) do not fit"):
        returns(ones, ones, ones, ones, ones)
    graph = tf.function(lambda x: returns(x, x, x, one, x), input_signature=[tf.TensorSpec((None, 1), tf.float32)])
    with pytest.raises(ValueError, match="static T"):
        graph(ones)
