"""Masks of the allowed actions: no other action is played, learned from, or bootstrapped from."""

import re
from dataclasses import replace
from typing import Any

import gymnasium
import masked_tasks
import numpy as np
import pytest
import tensorflow as tf
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
from networks import Scripted, loss_of
from sessions import train_inline

from actors.environments import StepResult, VectorEnvironment, environment_spec, measure_observation_mean
from actors.environments.spaces import random_actions
from actors.environments.values import as_mask
from actors.evaluator import Evaluator
from shared.config import ActorConfig, EnvironmentConfig, MethodConfig, NetworkConfig, RunConfig
from shared.distributions import MASKED
from shared.errors import ConfigurationError, EnvironmentFailedError
from shared.exploration import EpsilonGreedy
from shared.methods.method import RolloutTensors, make_method
from shared.networks import NetworkOutput
from shared.networks.composed import MaskedNetwork
from shared.types import ActionSpec

PICKY = EnvironmentConfig(id="Picky-v0", frame_skip=1, clip_rewards=False, action_mask="action_mask")


def picky(cartpole: RunConfig, method: MethodConfig | None = None, **options: bool) -> RunConfig:
    environment = replace(PICKY, options=dict(options))
    return replace(cartpole, environment=environment, method=method or MethodConfig())


LSTM = NetworkConfig(name="mlp", hidden_sizes=(16,), recurrent="lstm")
REUSE = ActorConfig(4, 8, epochs=2, minibatches=2)
Q = MethodConfig(name="q_learning")


@pytest.mark.parametrize(
    ("method", "options", "changes"),
    [
        (MethodConfig(return_lambda=0.9), {}, {}),
        (MethodConfig(), {"several": True, "in_observation": True}, {"actor": REUSE}),
        (Q, {"in_observation": True}, {"network": LSTM}),
        (replace(Q, target_network=False, return_lambda=0.65), {}, {"actor": ActorConfig(4, 8, fresh_gradients=True)}),
        (MethodConfig(name="sarsa"), {}, {}),
    ],
)  # fmt: skip
def test_only_allowed_actions_are_played(
    method: MethodConfig, options: dict[str, bool], changes: dict[str, Any], cartpole: RunConfig
) -> None:
    """The environment raises at any other. Two actors share their graphs."""
    config = replace(picky(cartpole, method, **options), **changes)
    snapshot = train_inline(config, lambda learner: learner.account.ledger.applied >= 500, actors=2).snapshot()
    assert np.isfinite(snapshot.parameters).all()
    evaluator = Evaluator(config, environment_spec(config.environment), config.evaluation)
    for policy in ("sampled", "greedy"):
        assert sum(len(part.order) for part in evaluator.run(snapshot, policy)) == config.evaluation.episodes
    evaluator.close()


# At times 0, 1, 2 and 3: three logits or action values, and V. The largest logit is often masked.
TABLE = np.array([[9.0, 1.0, 2.0, 0.5], [0.0, 3.0, 7.0, 1.5], [1.0, 2.0, 3.0, -1.0], [8.0, 4.0, 6.0, 2.0]], np.float32)
MASKS = np.array([[0, 1, 1], [1, 1, 0], [1, 0, 0], [0, 1, 1]], np.float32)
ACTIONS, REWARDS, DISCOUNT = np.array([2, 0, 0]), np.array([1.0, 2.0, 3.0], np.float32), 0.5


def masked_rollout() -> RolloutTensors:
    times = np.arange(4, dtype=np.float32)[:, None]
    column = np.ones((3, 1), np.float32)
    return RolloutTensors(
        observations=tf.constant(np.concatenate([times, MASKS], axis=1)[:, None]),
        actions=tf.constant(ACTIONS[:, None], tf.int32),
        rewards=tf.constant(REWARDS[:, None]),
        discounts=tf.constant(DISCOUNT * column),
        mask=tf.constant(column),
        next_actions=tf.constant([1]),
    )


def test_loss_and_gradient_over_allowed_actions(cartpole: RunConfig) -> None:
    config = replace(
        cartpole, environment=PICKY, method=MethodConfig(entropy_cost=0.1, value_cost=0.5, reduction="sum")
    )
    network, actions = Scripted(TABLE, "policy", value=True), ActionSpec(3)
    table = tf.Variable(TABLE, dtype=tf.float64)
    with tf.GradientTape(persistent=True) as tape:
        masked = MaskedNetwork(network, (1,), actions, "policy")
        loss = loss_of(make_method(config, actions), masked, None, masked_rollout())
        expected, entropies, targets = 0.0, 0.0, []
        value = float(TABLE[3, 3])
        for t in reversed(range(3)):
            value = REWARDS[t] + DISCOUNT * value
            advantage = value - TABLE[t, 3]
            targets.append((value, advantage))
            possible = np.flatnonzero(MASKS[t])
            log_probs = tf.nn.log_softmax(tf.gather(table[t], possible))
            entropy = -tf.reduce_sum(tf.exp(log_probs) * log_probs)
            chosen = list(possible).index(ACTIONS[t])
            expected += -log_probs[chosen] * advantage + 0.5 * (value - table[t, 3]) ** 2 - 0.1 * entropy
            entropies += float(entropy)
    assert float(loss.total) == pytest.approx(float(expected), rel=1e-5)
    assert float(loss.statistics["entropy"]) == pytest.approx(entropies / 3, rel=1e-5)
    spread, left = np.var(targets, axis=0)
    assert float(loss.statistics["explained_variance"]) == pytest.approx(1.0 - left / spread, rel=1e-4)
    gradient = tf.convert_to_tensor(tape.gradient(loss.total, network.table)).numpy()
    np.testing.assert_allclose(gradient, tape.gradient(expected, table), rtol=1e-5, atol=1e-6)
    assert (gradient[:3, :3][MASKS[:3] == 0] == 0).all()


@pytest.mark.parametrize(("target_network", "scale"), [(True, 10), (False, 1)])
def test_action_values_bootstrap_from_the_best_allowed_action(
    target_network: bool, scale: int, cartpole: RunConfig
) -> None:
    settings = MethodConfig(name="q_learning", n_step=1, target_network=target_network, reduction="sum")
    actions = ActionSpec(3)
    method = make_method(replace(cartpole, environment=PICKY, method=settings), actions)
    online, target = (
        MaskedNetwork(Scripted(factor * TABLE, value=True), (1,), actions, "action_values") for factor in (1, 10)
    )
    best = scale * np.where(MASKS > 0, TABLE[:, :3], -np.inf).max(axis=1)
    expected = np.square(REWARDS + DISCOUNT * best[1:] - TABLE[np.arange(3), ACTIONS]).sum()
    loss = loss_of(method, online, target if target_network else None, masked_rollout())
    assert float(loss.total) == pytest.approx(expected, rel=1e-5)


def test_random_exploration_is_uniform_among_the_allowed_actions(cartpole: RunConfig) -> None:
    count = 6_000
    explorer = EpsilonGreedy(cartpole.exploration, count, 5, 1, training=True, masked=True)
    row = [MASKED, 1.0, 2.0, MASKED, 3.0]
    values = tf.constant([row] * count)
    actions = explorer.sample(NetworkOutput({"action_values": values}, tf.zeros((count, 1)), {})).numpy()
    shares = np.bincount(actions, minlength=5) / count
    np.testing.assert_allclose(shares, [0, 1 / 3, 1 / 3, 0, 1 / 3], atol=0.03)
    masks = np.array([[0, 1, 1, 1, 0, 0, 1]] * count)
    drawn = np.asarray(random_actions(ActionSpec(7, choices=(3, 4)), count, np.random.default_rng(0), masks))
    assert drawn.shape == (count, 2)
    np.testing.assert_allclose(np.bincount(drawn[:, 0], minlength=3) / count, [0, 0.5, 0.5], atol=0.03)
    np.testing.assert_allclose(np.bincount(drawn[:, 1], minlength=4) / count, [0.5, 0, 0, 0.5], atol=0.03)


def test_random_play_for_the_mean_image_chooses_allowed_actions(short_random_play: None) -> None:  # noqa: ARG001
    config = replace(PICKY, options={"images": True})
    assert measure_observation_mean(config, 1).shape == environment_spec(config).observation_shape == (84, 84, 4)


class Fixed(gymnasium.Env):
    """Gives one mask in info, and ends as it is set to at its third step."""

    observation_space, action_space = Box(0, 1, (2,), np.float32), Discrete(3)

    def __init__(self, mask: Any, ends: str = "") -> None:
        self._mask, self._ends = mask, ends

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed, options=options)
        self._time = 0
        return np.zeros(2, np.float32), {"mask": [1, 1, 1] if self._ends else self._mask, "other": 1}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:  # noqa: ARG002
        self._time += 1
        ended = self._time == 3
        info = {"mask": self._mask if ended or not self._ends else [1, 1, 1]}
        return np.zeros(2, np.float32), 0.0, ended and self._ends == "terminated", ended and self._ends != "", info


class WithDict(gymnasium.ObservationWrapper):
    observation_space = Dict({"board": Box(0, 1, (2,), np.float32), "legal": MultiBinary(3)})

    def observation(self, observation: Any) -> Any:
        return {"board": observation, "legal": [1, 0, 1]}


def fixed(monkeypatch: pytest.MonkeyPatch, make: Any, **settings: Any) -> EnvironmentConfig:
    monkeypatch.setitem(gymnasium.registry, "Fixed-v0", gymnasium.envs.registration.EnvSpec("Fixed-v0", make))
    return EnvironmentConfig(**{"id": "Fixed-v0", "frame_skip": 1, "action_mask": "mask"} | settings)


PLACE = r" \(test_action_masks.py:\d+, in reset\)"


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([0, 0, 0], "the mask 'mask' allows no action; only a terminated episode may end so"),
        ([1, 0], r"the mask 'mask' is an array int64 \[2\], where a truth value for each of 3 actions \[3\] is"),
        ([0, 2, 1], r"the mask 'mask' is an array int64 \[3\] with 2, where"),
        ("101", "the mask 'mask' is '101', where"),
    ],
)
def test_a_mask_that_cannot_be_used_is_one_line(mask: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = fixed(monkeypatch, lambda: Fixed(mask))
    with pytest.raises(ConfigurationError, match=f"^--environment.id Fixed-v0: reset\\(\\): {message}.*{PLACE}$"):
        environment_spec(config, trial=True)


def test_a_key_that_is_not_there_is_refused_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting is named first: the environment may be right."""
    config = fixed(monkeypatch, lambda: WithDict(Fixed([1, 1, 1])), action_mask="masks")
    message = "the observation has 'board', 'legal', and info has 'mask', 'other', after reset() of Fixed-v0"
    with pytest.raises(ConfigurationError, match=f"^--environment.action-mask masks: {re.escape(message)}$"):
        environment_spec(config, trial=True)


def test_only_a_terminated_episode_may_allow_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The value of a truncated episode's last observation is bootstrapped from what would be allowed."""

    def third_step(mask: Any, ends: str) -> StepResult:
        environments = VectorEnvironment(fixed(monkeypatch, lambda: Fixed(mask, ends)), 2)
        environments.reset(0)
        return [environments.step(np.zeros(2, np.int32)) for _ in range(3)][-1]

    for mask in ([0, 0, 0], None):
        result = third_step(mask, "terminated")
        assert result.terminated.all()
        np.testing.assert_array_equal(result.observations, [[0, 0, 1, 1, 1]] * 2)
    with pytest.raises(EnvironmentFailedError, match=r"^Fixed-v0: step\(\): the mask 'mask' allows no action"):
        third_step([0, 0, 0], "truncated")


def test_masks_of_several_choices_come_as_one_array_or_as_one_each() -> None:
    actions = ActionSpec(7, choices=(3, 4))
    parts = (np.array([0, 1, 1]), np.array([1, 0, 0, 1]))
    np.testing.assert_array_equal(as_mask("its mask", parts, actions, (7,)), [0, 1, 1, 1, 0, 0, 1])
    with pytest.raises(ValueError, match="its mask allows no action of choice 1"):
        as_mask("its mask", [1, 0, 0, 0, 0, 0, 0], actions, (7,))


def test_the_part_with_the_mask_is_no_input_of_the_network() -> None:
    assert masked_tasks.CHOICES == (3, 4)
    spec = environment_spec(replace(PICKY, options={"in_observation": True}))
    assert (spec.numbers, spec.observation_shape, spec.row_shape) == ((("board", 10),), (10,), (15,))
    assert environment_spec(replace(PICKY, action_mask=None)).row_shape == (10,)
