"""Each method's loss against written-out arithmetic, by networks whose outputs are scripted; and that it trains."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tensorflow as tf
from networks import Scripted, loss_of, targets_of
from rollouts import make_policy
from sessions import train_inline

from shared.config import EnvironmentConfig, ExplorationConfig, MethodConfig, RunConfig
from shared.methods.method import Method, RolloutTensors, make_method
from shared.networks import NetworkOutput
from shared.registry import METHODS, MethodEntry
from shared.types import ActionSpec

# Observations are the time index, and networks look their outputs up: Q(s_t, ·) = table[t].
ONLINE = np.array([[1.0, 2.0], [4.0, 3.0], [5.0, 9.0], [8.0, 7.0]], np.float32)
TARGET = np.array([[10.0, 20.0], [30.0, 25.0], [50.0, 40.0], [60.0, 70.0]], np.float32)


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
    return make_method(replace(config, method=MethodConfig(name=name, **settings)), ActionSpec(2))


def column(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)[:, None]


@pytest.mark.parametrize(
    ("name", "settings", "changes", "returns", "asked"),
    [
        ("q_learning", {}, {}, (1 + 0.5 * (2 + 0.5 * 38), 2 + 0.5 * 38, 3 + 0.5 * 70), 1),
        ("q_learning", {"n_step": 1}, {}, (1 + 0.5 * 30, 2 + 0.5 * 50, 3 + 0.5 * 70), 4),
        (
            "q_learning",
            {"return_lambda": 0.5},
            {},
            (1 + 0.5 * (0.5 * 30 + 0.5 * 24), 2 + 0.5 * (0.5 * 50 + 0.5 * 38), 3 + 0.5 * 70),
            4,
        ),
        # Not from the best action, but from the one that was taken, or will be.
        ("sarsa", {"n_step": 1}, {}, (1 + 0.5 * 25, 2 + 0.5 * 50, 3 + 0.5 * 70), 4),
        ("sarsa", {}, {}, (1 + 0.5 * (2 + 0.5 * 38), 2 + 0.5 * 38, 3 + 0.5 * 70), 1),
        ("sarsa", {}, {"next_actions": [0]}, (1 + 0.5 * (2 + 0.5 * 33), 2 + 0.5 * 33, 3 + 0.5 * 60), 1),
        # Truncated at t = 0, and reset by t = 1: bootstrapped from the last observation. Terminated: from nothing.
        ("q_learning", {}, {"mask": column(1, 0, 1)}, (1 + 0.5 * 30, None, 3 + 0.5 * 70), 4),
        ("q_learning", {}, {"mask": column(1, 0, 1), "discounts": column(0, 0.5, 0.5)}, (1, None, 3 + 0.5 * 70), 4),
        # Without a target network: by the network that acted.
        ("q_learning", {"target_network": False}, {"mask": column(1, 0, 1)}, (1 + 0.5 * 4, None, 3 + 0.5 * 8), 0),
        (
            "q_learning",
            {"target_network": False, "return_lambda": 0.5},
            {},
            (1 + 0.5 * (0.5 * 4 + 0.5 * 6), 2 + 0.5 * (0.5 * 9 + 0.5 * 7), 3 + 0.5 * 8),
            0,
        ),
        ("sarsa", {"target_network": False, "n_step": 1}, {}, (1 + 0.5 * 3, 2 + 0.5 * 5, 3 + 0.5 * 7), 0),
        *((name, {}, {"mask": column(0, 0, 0)}, (None, None, None), 4) for name in ("q_learning", "sarsa")),
    ],
)
def test_the_loss_is_the_mean_square_of_what_is_left_to_the_returns(
    name: str, settings: dict, changes: dict, returns: tuple, asked: int, cartpole: RunConfig
) -> None:
    """The target network is asked for the last observation only where that is enough. None: the step is masked."""
    squares = [(r - q) ** 2 for r, q in zip(returns, (1.0, 3.0, 5.0), strict=True) if r is not None]
    for reduction, expected in (("sum", sum(squares)), ("mean", sum(squares) / max(len(squares), 1))):
        method, target = made(name, cartpole, reduction=reduction, **settings), Scripted(TARGET)
        loss = loss_of(method, Scripted(ONLINE), target if asked else None, rollout(**changes))
        assert float(loss.total) == pytest.approx(expected)
        assert target.asked == asked
        live = [
            (r, r - q, v) for r, q, v in zip(returns, (1.0, 3.0, 5.0), (2.0, 4.0, 9.0), strict=True) if r is not None
        ]
        if len(live) > 1:
            found, (spread, left, _) = loss.statistics, np.var(live, axis=0)
            assert float(found["explained_variance"]) == pytest.approx(1.0 - left / spread, rel=1e-4)
            assert float(found["mean_action_value"]) == pytest.approx(np.mean(live, axis=0)[2])


@pytest.mark.parametrize("target_network", [True, False])
@pytest.mark.parametrize("name", ["q_learning", "sarsa"])
def test_taken_actions_have_a_gradient_and_targets_none(name: str, target_network: bool, cartpole: RunConfig) -> None:
    method = made(name, cartpole, target_network=target_network, return_lambda=0.65)
    online, target = Scripted(ONLINE), Scripted(TARGET) if target_network else None
    with tf.GradientTape() as tape:
        total = loss_of(method, online, target, rollout()).total
    grad_online, *grad_target = tape.gradient(total, [online.table, *([target.table] if target else [])])
    assert all(gradient is None for gradient in grad_target)
    values = tf.constant([[2.0], [4.0], [9.0]])
    returns, advantages = targets_of(method, Scripted(ONLINE), target, rollout(), values)
    assert not np.any(advantages)
    expected = np.zeros((4, 2), np.float32)
    for t, action in enumerate((0, 1, 0)):
        expected[t, action] = 2 / 3 * (ONLINE[t, action] - returns[t, 0])
    np.testing.assert_allclose(tf.convert_to_tensor(grad_online), expected, rtol=1e-5)


def untrained(config: RunConfig, updates: int) -> set[str]:
    """The names of the parameters that are as they were after some updates: no gradient reaches them."""
    learner = train_inline(config, lambda learner: learner.version == updates, actors=2)
    policy = make_policy(config)
    before, after = policy.initial_parameters(), learner.snapshot().parameters
    assert np.isfinite(after).all()
    ledger = learner.account.ledger
    assert (ledger.dropped, ledger.applied) == ({}, ledger.sampled)
    parts = {name: policy.layout.range_of(name) for name in policy.layout.names}
    return {name for name, part in parts.items() if np.array_equal(before[part], after[part])}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_cartpole_inline(name: str, cartpole: RunConfig) -> None:
    assert untrained(replace(cartpole, method=MethodConfig(name=name, n_step=2)), updates=20) == set()


@pytest.mark.parametrize(
    ("noise", "scaling"), [("independent", "running"), ("spherical", "none"), ("state_dependent", "bounds")]
)
def test_gaussian_policies_train_pendulum_inline(noise: str, scaling: str, cartpole: RunConfig) -> None:
    config = replace(
        cartpole,
        environment=EnvironmentConfig(id="Pendulum-v1", frame_skip=1, clip_rewards=False),
        exploration=replace(cartpole.exploration, noise=noise),
        network=replace(cartpole.network, observation_scaling=scaling),
    )
    assert untrained(config, updates=20) == set()


def test_the_method_in_contributing_is_one_file(cartpole: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    section = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text().split("## Add a method")[1]
    source, entry = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[:2]
    module = ModuleType("shared.methods.luck")
    exec(compile(source, "luck.py", "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "shared.methods.luck", module)
    for name, value in eval(f"{{{entry}}}", {"MethodEntry": MethodEntry}).items():
        monkeypatch.setitem(METHODS, name, value)
    untouched = untrained(replace(cartpole, method=MethodConfig(name="luck")), updates=10)
    assert all(name.startswith("value") for name in untouched)


def test_noise_has_the_deviation_and_the_persistence_of_the_settings(cartpole: RunConfig) -> None:
    exploration = ExplorationConfig(noise="state_dependent", noise_persistence_agent_steps=4, initial_log_std=-1.5)
    method = make_method(replace(cartpole, exploration=exploration), ActionSpec(2, continuous=True))
    log_std = method.parameters(3)["log_std"]
    np.testing.assert_array_equal(log_std, np.full((3, 2), -1.5, np.float32))
    explorer = method.explorer(2_000, 1, training=True)
    output = NetworkOutput({"policy": tf.zeros((2_000, 2))}, tf.ones((2_000, 3)), {"log_std": tf.constant(log_std)})
    before, after = (explorer.sample(output).numpy() for _ in range(2))
    assert (before == after).all(axis=1).mean() == pytest.approx(0.75, abs=0.04)


def test_a_spherical_policy_plays_its_mean_and_has_the_entropy_of_all_dimensions(cartpole: RunConfig) -> None:
    config = replace(cartpole, exploration=ExplorationConfig(noise="spherical"))
    method = make_method(config, ActionSpec(2, continuous=True))
    output = NetworkOutput({"policy": tf.constant([[0.3, -2.0, 1.5]])}, tf.ones((1, 3)), {})
    np.testing.assert_allclose(method.greedy(output), [[0.3, -2.0]])
    variance = np.log1p(np.exp(1.5))
    np.testing.assert_allclose(method.entropy(output), [np.log(2 * np.pi * np.e * variance)], rtol=1e-5)
