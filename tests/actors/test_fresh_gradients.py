"""Gradients at newer weights than those that acted, and actors that share the graphs of another one."""

from dataclasses import replace

import numpy as np
import pytest
from rollouts import first_weights, make_actor, run

from actors.actor import Actor
from actors.gradient import RecentAdvantages
from shared import losses
from shared.config import ActorConfig, EnvironmentConfig, ExplorationConfig, MethodConfig, NetworkConfig, RunConfig
from shared.types import GradientReport, WeightSnapshot

CARTPOLE = RunConfig(
    environment=EnvironmentConfig(id="CartPole-v1", frame_skip=1),
    network=NetworkConfig(name="mlp", hidden_sizes=(8,)),
    actor=ActorConfig(environments=2, unroll_length=5),
)
PENDULUM = replace(
    CARTPOLE,
    environment=replace(CARTPOLE.environment, id="Pendulum-v1"),
    exploration=ExplorationConfig(noise="state_dependent"),
)
Q_LEARNING = replace(CARTPOLE, method=MethodConfig(name="q_learning"))


def snapshots(config: RunConfig) -> tuple[WeightSnapshot, WeightSnapshot]:
    weights = first_weights(config)
    return WeightSnapshot(3, weights), WeightSnapshot(7, weights * np.float32(1.5))


def reported(
    actor: Actor, snapshot: WeightSnapshot, config: RunConfig, target: WeightSnapshot | None = None
) -> GradientReport:
    return run(actor, config, snapshot, target) or run(actor, config, snapshot, target)


@pytest.mark.parametrize("config", [CARTPOLE, Q_LEARNING], ids=["actor_critic", "q_learning"])
@pytest.mark.parametrize("epochs", [1, 2])
def test_a_gradient_has_the_weights_of_the_call_after_the_rollout(config: RunConfig, epochs: int) -> None:
    config = replace(config, actor=replace(config.actor, epochs=epochs, fresh_gradients=True))
    old, new = snapshots(config)
    at_new = make_actor(config)
    at_old = make_actor(config, first=at_new)
    for _ in range(2):
        assert run(at_new, config, old) is None
        assert run(at_old, config, old) is None
        first, *others = [reported(at_new, new, config, old) for _ in range(epochs)]
        stale, *_ = [reported(at_old, old, config) for _ in range(epochs)]
        assert [report.version for report in (first, *others)] == [7] * epochs
        assert first.agent_steps > 0
        assert [report.agent_steps for report in others] == [0] * (epochs - 1)
        assert first.stage_seconds.environment > 0
        # The same rollout, differentiated at other weights.
        np.testing.assert_array_equal(first.episodes.returns, stale.episodes.returns)
        assert not np.allclose(first.gradient, stale.gradient)


def test_at_the_weights_that_acted_a_fresh_gradient_is_the_plain_one() -> None:
    old, _ = snapshots(CARTPOLE)
    fresh = make_actor(replace(CARTPOLE, actor=replace(CARTPOLE.actor, fresh_gradients=True)))
    plain = make_actor(CARTPOLE)
    for _ in range(3):
        assert fresh.run(old) is None
        np.testing.assert_allclose(
            reported(fresh, old, CARTPOLE).gradient, reported(plain, old, CARTPOLE).gradient, rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize(
    "config",
    [
        Q_LEARNING,
        replace(PENDULUM, actor=replace(PENDULUM.actor, epochs=2, minibatches=2)),
        replace(
            CARTPOLE,
            network=replace(CARTPOLE.network, recurrent="lstm"),
            method=MethodConfig(standardise_advantages=True),
            actor=replace(CARTPOLE.actor, fresh_gradients=True),
        ),
    ],
    ids=["q_learning", "state_dependent_noise in minibatches", "lstm, standardised"],
)
def test_actors_that_share_graphs_are_equal_to_the_bit_to_those_with_their_own(config: RunConfig) -> None:
    config = replace(config, actor=replace(config.actor, unroll_length=2))
    old, new = snapshots(config)
    # Each actor with graphs of its own takes a second: three share the graphs, and two of them are compared.
    alone = {actor_id: make_actor(config, actor_id) for actor_id in (0, 2)}
    first = make_actor(config, 0)
    shared = [first, *(make_actor(config, actor_id, first) for actor_id in (1, 2))]
    traces = 0
    for turn, actor_id in enumerate([0, 1, 2, 2, 0, 1, 1, 2, 0]):
        snapshot = (old, new)[turn % 2]
        found = reported(shared[actor_id], snapshot, config)
        traces = traces or first.traces
        assert first.traces == traces
        if actor_id not in alone:
            continue
        expected = reported(alone[actor_id], snapshot, config)
        np.testing.assert_array_equal(found.gradient, expected.gradient)
        assert found.statistics == expected.statistics


def test_a_rollout_of_a_thousand_steps_is_standardised_by_itself() -> None:
    random = np.random.default_rng(0)
    recent = RecentAdvantages()
    for scale in (1.0, 5.0):
        advantages = random.normal(scale, scale, (64, 16)).astype(np.float32)
        mask = np.ones((64, 16), np.float32)
        expected = losses.standardised(advantages, mask).numpy()
        np.testing.assert_allclose(recent.standardised(advantages, mask), expected, rtol=1e-4, atol=1e-5)


def test_small_rollouts_are_standardised_by_the_moments_of_the_last_ones_too() -> None:
    recent = RecentAdvantages()
    mask = np.ones((4, 1), np.float32)
    first = np.array([[1.0], [2.0], [3.0], [4.0]], np.float32)
    np.testing.assert_allclose(recent.standardised(first, mask), (first - 2.5) / first.std(), rtol=1e-5)
    mask[3] = 0.0
    # All are worse than the first ones, and stay so.
    second = np.array([[-5.0], [-6.0], [-7.0], [99.0]], np.float32)
    kept = 1 - 3 / 1024
    number, total, squares = kept * 4 + 3, kept * 10 - 18, kept * 30 + 110
    mean = total / number
    expected = (second - mean) / np.sqrt(squares / number - mean**2)
    expected[3] = 0.0
    np.testing.assert_allclose(recent.standardised(second, mask), expected, rtol=1e-5)
    assert (expected[:3] < 0.0).all()


def test_advantages_that_are_not_finite_leave_the_moments_alone() -> None:
    recent, mask = RecentAdvantages(), np.ones((2, 1), np.float32)
    recent.standardised(np.array([[0.0], [2.0]], np.float32), mask)
    assert not np.isfinite(recent.standardised(np.array([[np.nan], [2.0]], np.float32), mask)).all()
    unchanged = RecentAdvantages()
    for _ in range(2):
        expected = unchanged.standardised(np.array([[0.0], [2.0]], np.float32), mask)
    np.testing.assert_array_equal(recent.standardised(np.array([[0.0], [2.0]], np.float32), mask), expected)
