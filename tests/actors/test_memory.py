"""What a network with a memory carries: through a rollout, into the next one, and not past an episode's end."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from networks import targets_of
from rollouts import METHODS, first_weights, make_actor, make_policy, recording, run

from actors.environments import environment_spec
from actors.evaluator import Evaluator
from actors.policy import Policy
from shared.config import ActorConfig, EnvironmentConfig, MethodConfig, RunConfig
from shared.types import EvaluationPart, Rollout, WeightSnapshot


def remembering(config: RunConfig, unroll_length: int = 24) -> RunConfig:
    network = replace(config.network, recurrent="lstm")
    return replace(config, network=network, actor=ActorConfig(environments=4, unroll_length=unroll_length))


def played(config: RunConfig, rollouts: list[Rollout], count: int) -> tuple[Policy, list[Rollout]]:
    """Rollouts one after another by an actor with fixed weights, and a policy with the same weights."""
    actor, snapshot = make_actor(config), WeightSnapshot(0, first_weights(config, 0.2))
    for _ in range(count):
        run(actor, config, snapshot)
    policy = make_policy(config)
    policy.assign(snapshot.parameters)
    return policy, rollouts


@pytest.mark.parametrize("method", ["actor_critic", "sarsa"])
def test_the_state_goes_on_into_the_next_rollout(method: str, cartpole: RunConfig, monkeypatch) -> None:
    """Sarsa chooses the first action of the next rollout with the last state of this one."""
    config = remembering(replace(cartpole, method=METHODS[method]))
    policy, rollouts = played(config, recording(monkeypatch), 4)
    assert all((part == 0).all() for part in rollouts[0].first_state)
    resets = 0
    for rollout, following in zip(rollouts, [*rollouts[1:], None], strict=True):
        state = rollout.first_state
        for observations, mask in zip(rollout.observations[:-1], rollout.mask, strict=True):
            output = policy.network(tf.constant(observations), [tf.constant(part) for part in state])
            state = tuple(part.numpy() * mask[:, None] for part in output.state)
            resets += int((mask == 0).sum())
        for part, last in zip(state, rollout.last_state, strict=True):
            np.testing.assert_allclose(part, last, rtol=1e-4, atol=1e-5)
            assert (last[rollout.mask[-1] == 0] == 0).all()
        if following is not None:
            for last, first in zip(rollout.last_state, following.first_state, strict=True):
                np.testing.assert_array_equal(last, first)
    assert resets > 3


def test_a_truncated_episode_is_bootstrapped_with_its_memory(cartpole: RunConfig, monkeypatch) -> None:
    """Episodes of 7 steps: the value of the true last observation is that with the old state, and so is the target."""
    environment = EnvironmentConfig(
        id="CartPole-v1", frame_skip=1, clip_rewards=False, options={"max_episode_steps": 7}
    )
    config = remembering(replace(cartpole, environment=environment), unroll_length=12)
    policy, (rollout,) = played(config, recording(monkeypatch), 1)
    arrays = tf.nest.map_structure(tf.convert_to_tensor, rollout)
    output = policy.network.unroll(arrays.observations[:-1], arrays.first_state, arrays.mask)
    values = policy.method.value(output)
    returns = targets_of(policy.method, policy.network, None, arrays, values).returns.numpy()
    end = 7
    assert (rollout.mask[end] == 0).all()
    np.testing.assert_allclose(returns[end - 1], 1.0 + 0.99 * values.numpy()[end], rtol=1e-5)
    # By the old state, which is far from a fresh one.
    observations, state = rollout.observations[end], rollout.first_state
    assert np.abs(policy.values(observations, policy.first_state(4)) - values.numpy()[end]).max() > 0.01
    for observations in rollout.observations[:end]:
        state = policy.act(observations, state).state
    np.testing.assert_allclose(policy.values(rollout.observations[end], state), values[end], rtol=1e-4, atol=1e-5)
    # The end of the rollout is bootstrapped with the state at T.
    last = policy.values(rollout.observations[-1], rollout.last_state)
    np.testing.assert_allclose(returns[-1], 1.0 + 0.99 * last, rtol=1e-5)


@pytest.mark.parametrize("longest", [500, 3])
def test_a_target_network_has_a_memory_of_its_own(
    longest: int, cartpole: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """λ = 1: without a memory the last observation alone would be enough. It is cleared after an episode's end."""
    environment = replace(cartpole.environment, options={"max_episode_steps": longest})
    config = replace(cartpole, method=MethodConfig(name="q_learning"), environment=environment)
    config = remembering(config, unroll_length=5)
    policy, rollouts = played(config, recording(monkeypatch), 2)
    rollout = rollouts[1]
    assert rollout.mask.all() == (longest == 500)
    assert np.abs(rollout.first_state[0]).max() > 0.01
    target = make_policy(config)
    target.assign(first_weights(config, 0.2) * np.float32(0.5))
    state = rollout.first_state
    for observations, mask in zip(rollout.observations[:-1], rollout.mask, strict=True):
        state = tuple(part * mask[:, None] for part in target.greedy(observations, state).state)
    arrays = tf.nest.map_structure(tf.convert_to_tensor, rollout)
    zeros = tf.zeros_like(arrays.rewards)
    returns = targets_of(policy.method, policy.network, target.network, arrays, zeros).returns
    last = target.values(rollout.observations[-1], state)
    expected = rollout.rewards[-1] + rollout.discounts[-1] * last
    np.testing.assert_allclose(returns[-1], expected, rtol=1e-4, atol=1e-5)


def test_an_evaluated_episode_starts_without_a_memory(cartpole: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """One environment plays three: a state of zeros goes into the first step of each, and another into the second."""
    config = remembering(cartpole)
    config = replace(config, evaluation=replace(config.evaluation, episodes=3, environments=1, policy="greedy"))
    snapshot = WeightSnapshot(0, first_weights(config, 0.2))
    evaluator = Evaluator(config, environment_spec(config.environment), config.evaluation)
    starts: list[np.ndarray] = []
    greedy = Policy.greedy

    def watched(policy: Policy, observations: np.ndarray, state: tuple[np.ndarray, ...] = ()):
        starts.append(state[0].copy())
        return greedy(policy, observations, state)

    monkeypatch.setattr(Policy, "greedy", watched)
    lengths = EvaluationPart.joined(list(evaluator.run(snapshot))).episodes.lengths
    # An episode's steps, and the one that resets it.
    first = 0
    for length in lengths:
        assert (starts[first] == 0).all()
        assert np.abs(starts[first + 1]).max() > 0
        first += int(length) + 1
