"""Each method's loss against written-out arithmetic, with networks whose outputs are scripted."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.config import MethodConfig, RunConfig
from shared.losses import action_value_loss
from shared.methods.method import Method, RolloutTensors, method_class
from shared.networks import Network, NetworkOutput
from shared.types import ActionSpec

# Observations are the time index, and networks look their outputs up: Q(s_t, ·) = table[t].
ONLINE = np.array([[1.0, 2.0], [4.0, 3.0], [5.0, 9.0], [8.0, 7.0]], np.float32)
TARGET = np.array([[10.0, 20.0], [30.0, 25.0], [50.0, 40.0], [60.0, 70.0]], np.float32)


class Scripted:
    """A network that gives `table[observation]`, and counts the observations it was asked for."""

    state_units = ()
    unroll = Network.unroll

    def __init__(self, table: np.ndarray) -> None:
        self.table = tf.Variable(table)
        self.asked = 0

    def __call__(self, observations: tf.Tensor, state: tuple = ()) -> NetworkOutput:  # noqa: ARG002
        self.asked += observations.shape[0]
        values = tf.gather(self.table, tf.cast(observations[:, 0], tf.int32))
        return NetworkOutput({"action_values": values}, tf.ones((observations.shape[0], 2)), {})


def rollout(**changes) -> RolloutTensors:
    """Three steps of one environment: actions 0, 1, 0, rewards 1, 2, 3, and action 1 next."""
    column = np.ones((3, 1), np.float32)
    tensors = {
        "observations": np.arange(4, dtype=np.float32).reshape(4, 1, 1),
        "actions": np.array([[0], [1], [0]], np.int32),
        "rewards": np.array([[1.0], [2.0], [3.0]], np.float32),
        "discounts": 0.5 * column,
        "mask": column,
        "next_actions": np.array([1], np.int32),
    }
    return RolloutTensors(**{name: tf.constant(value) for name, value in (tensors | changes).items()})


def made(name: str, config: RunConfig, **settings) -> Method:
    return method_class(name)(replace(config, method=MethodConfig(name=name, **settings)), ActionSpec(2))


def loss(name: str, config: RunConfig, tensors: RolloutTensors, **settings) -> tuple[float, Scripted]:
    target = Scripted(TARGET)
    return float(made(name, config, **settings).loss(Scripted(ONLINE), target, tensors).total), target


def mean_square(returns: list[float], values: list[float]) -> float:
    return float(np.mean([(r - v) ** 2 for r, v in zip(returns, values, strict=True)]))


def test_n_step_q_bootstraps_from_the_best_action_of_the_target_network(cartpole: RunConfig) -> None:
    r2 = 3 + 0.5 * 70
    r1 = 2 + 0.5 * r2
    r0 = 1 + 0.5 * r1
    total, _ = loss("q_learning", cartpole, rollout())
    assert total == pytest.approx(mean_square([r0, r1, r2], [1.0, 3.0, 5.0]))
    total, _ = loss("q_learning", cartpole, rollout(), reduction="sum")
    assert total == pytest.approx(3 * mean_square([r0, r1, r2], [1.0, 3.0, 5.0]))


def test_one_step_q(cartpole: RunConfig) -> None:
    returns = [1 + 0.5 * 30, 2 + 0.5 * 50, 3 + 0.5 * 70]
    total, _ = loss("q_learning", cartpole, rollout(), n_step=1)
    assert total == pytest.approx(mean_square(returns, [1.0, 3.0, 5.0]))


def test_sarsa_bootstraps_from_the_action_that_was_taken(cartpole: RunConfig) -> None:
    one_step = [1 + 0.5 * 25, 2 + 0.5 * 50, 3 + 0.5 * 70]
    total, _ = loss("sarsa", cartpole, rollout(), n_step=1)
    assert total == pytest.approx(mean_square(one_step, [1.0, 3.0, 5.0]))
    other = rollout(next_actions=np.array([0], np.int32))
    r2 = 3 + 0.5 * 60
    r1 = 2 + 0.5 * r2
    total, _ = loss("sarsa", cartpole, other)
    assert total == pytest.approx(mean_square([1 + 0.5 * r1, r1, r2], [1.0, 3.0, 5.0]))


def test_an_episode_truncated_on_the_way_bootstraps_from_its_last_observation(cartpole: RunConfig) -> None:
    """Truncated at t = 0; t = 1 resets. Terminated instead: nothing to bootstrap from."""
    mask = np.array([[1.0], [0.0], [1.0]], np.float32)
    r2 = 3 + 0.5 * 70
    total, _ = loss("q_learning", cartpole, rollout(mask=mask))
    assert total == pytest.approx(mean_square([1 + 0.5 * 30, r2], [1.0, 5.0]))
    discounts = np.array([[0.0], [0.5], [0.5]], np.float32)
    total, _ = loss("q_learning", cartpole, rollout(mask=mask, discounts=discounts))
    assert total == pytest.approx(mean_square([1.0, r2], [1.0, 5.0]))


def test_the_target_network_is_asked_for_the_last_observation_only_where_that_is_enough(cartpole: RunConfig) -> None:
    assert loss("q_learning", cartpole, rollout())[1].asked == 1
    assert loss("q_learning", cartpole, rollout(), n_step=1)[1].asked == 4
    masked = np.array([[1.0], [0.0], [1.0]], np.float32)
    assert loss("q_learning", cartpole, rollout(mask=masked))[1].asked == 4


def test_without_a_target_network_an_episode_truncated_on_the_way_bootstraps_from_the_network_that_acted(
    cartpole: RunConfig,
) -> None:
    method = made("q_learning", cartpole, target_network=False)
    mask = np.array([[1.0], [0.0], [1.0]], np.float32)
    total = float(method.loss(Scripted(ONLINE), None, rollout(mask=mask)).total)
    assert total == pytest.approx(mean_square([1 + 0.5 * 4, 3 + 0.5 * 8], [1.0, 5.0]))


def test_without_a_target_network_sarsa_bootstraps_from_the_acting_networks_value_of_the_action_taken(
    cartpole: RunConfig,
) -> None:
    method = made("sarsa", cartpole, target_network=False, n_step=1)
    total = float(method.loss(Scripted(ONLINE), None, rollout()).total)
    assert total == pytest.approx(mean_square([1 + 0.5 * 3, 2 + 0.5 * 5, 3 + 0.5 * 7], [1.0, 3.0, 5.0]))


def pqn_returns(
    rewards: np.ndarray, ended: np.ndarray, values: np.ndarray, discount: float, return_lambda: float
) -> np.ndarray:
    """λ-returns as PQN's own code forms them, from float64 [T, B], and values [T + 1, B]."""
    returns = [rewards[-1] + discount * (1 - ended[-1]) * values[-1]]
    for t in reversed(range(len(rewards) - 1)):
        bootstrapped = rewards[t] + discount * (1 - ended[t]) * values[t + 1]
        ahead = bootstrapped + discount * return_lambda * (returns[-1] - values[t + 1])
        returns.append((1 - ended[t]) * ahead + ended[t] * rewards[t])
    return np.stack(returns[::-1])


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(1, 6), return_lambda=st.floats(0.0, 1.0))
def test_targets_without_a_target_network_are_pqns(seed: int, steps: int, return_lambda: float) -> None:
    random = np.random.default_rng(seed)
    table = random.normal(size=(steps + 1, 2)).astype(np.float32)
    # Acting's values are given; the network is asked for the last observation only.
    values = random.normal(size=(steps, 3)).astype(np.float32)
    rewards, ended = random.normal(size=(steps, 3)), random.random((steps, 3)) < 0.3
    tensors = RolloutTensors(
        tf.constant(np.tile(np.arange(steps + 1, dtype=np.float32)[:, None, None], (1, 3, 1))),
        tf.zeros((steps, 3), tf.int32),
        tf.constant(rewards, tf.float32),
        tf.constant(0.9 * ~ended, tf.float32),
        tf.ones((steps, 3)),
        tf.zeros(3, tf.int32),
    )
    method = made("q_learning", RunConfig(), target_network=False, return_lambda=return_lambda)
    network = Scripted(table)
    targets = method.targets(network, None, tensors, tf.constant(values))
    last = np.full((1, 3), table[-1].max())
    expected = pqn_returns(rewards, ended, np.concatenate([values, last]), 0.9, return_lambda)
    np.testing.assert_allclose(targets.returns, expected, rtol=1e-5, atol=1e-5)
    assert not np.any(targets.advantages)
    assert network.asked == 3


@pytest.mark.parametrize("name", ["q_learning", "sarsa"])
def test_a_wholly_masked_rollout_has_no_loss(name: str, cartpole: RunConfig) -> None:
    assert loss(name, cartpole, rollout(mask=np.zeros((3, 1), np.float32)))[0] == 0.0


@pytest.mark.parametrize("name", ["q_learning", "sarsa"])
def test_targets_receive_no_gradient_and_the_taken_actions_do(name: str, cartpole: RunConfig) -> None:
    method = method_class(name)(replace(cartpole, method=MethodConfig(name=name)), ActionSpec(2))
    online, target = Scripted(ONLINE), Scripted(TARGET)
    with tf.GradientTape() as tape:
        total = method.loss(online, target, rollout()).total
    by_online, by_target = tape.gradient(total, [online.table, target.table])
    assert by_target is None
    reached = tf.convert_to_tensor(by_online).numpy() != 0
    np.testing.assert_array_equal(reached, [[True, False], [False, True], [True, False], [False, False]])


@pytest.mark.parametrize("name", ["q_learning", "sarsa"])
def test_where_the_acting_network_gives_the_targets_they_receive_no_gradient_either(
    name: str, cartpole: RunConfig
) -> None:
    method = made(name, cartpole, target_network=False, return_lambda=0.65)
    online = Scripted(ONLINE)
    with tf.GradientTape() as tape:
        total = method.loss(online, None, rollout()).total
    returns = method.targets(Scripted(ONLINE), None, rollout(), tf.constant([[2.0], [4.0], [9.0]])).returns
    expected = np.zeros((4, 2), np.float32)
    for t, action in enumerate((0, 1, 0)):
        expected[t, action] = 2 / 3 * (ONLINE[t, action] - returns[t, 0])
    np.testing.assert_allclose(tf.convert_to_tensor(tape.gradient(total, online.table)), expected, rtol=1e-5)


def test_actions_of_another_shape_are_refused_with_both_shapes() -> None:
    arguments = {"reduction": "mean"}
    with pytest.raises(ValueError, match=r"actions of shape \(3, 1, 1\) do not fit action values of shape \(3, 1, 2\)"):
        action_value_loss(tf.zeros((3, 1, 2)), tf.zeros((3, 1, 1), tf.int32), tf.zeros(3), tf.zeros(3), **arguments)
    with pytest.raises(ValueError, match=r"returns of shape \(3,\) do not fit values of shape \(3, 1\)"):
        action_value_loss(tf.zeros((3, 1, 2)), tf.zeros((3, 1), tf.int32), tf.zeros(3), tf.zeros((3, 1)), **arguments)
