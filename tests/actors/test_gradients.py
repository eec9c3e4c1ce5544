"""Gradients of a rollout at other weights than those that acted: which steps, how often, and how they are counted."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from rollouts import METHODS, first_weights, make_actor, make_policy, plain_gradients, recording, run, traces

from actors.actor import Actor
from actors.environments import environment_spec
from actors.gradient import GradientGraphs, Gradients
from shared import losses, registry
from shared.config import ActorConfig, EnvironmentConfig, ExplorationConfig, MethodConfig, NetworkConfig, RunConfig
from shared.methods.actor_critic import ActorCritic
from shared.methods.method import MethodLoss, Samples, TargetInputs, Targets
from shared.moments import AdvantageMoments, with_newer
from shared.networks import NetworkOutput
from shared.registry import MethodEntry
from shared.types import EvaluationShare, GradientReport, Heartbeat, NextCall, WeightSnapshot


class LogProbs(ActorCritic):
    """A user's method, whose statistics are the mean log-probabilities at its weights, and at those that acted."""

    def targets(self, inputs: TargetInputs) -> Targets:
        return Targets(inputs.log_probs, inputs.behaviour_log_probs)

    def sample_loss(self, output: NetworkOutput, samples: Samples) -> MethodLoss:
        own = self.log_prob(output, samples.actions)
        means = {"now": samples.returns, "acting": samples.advantages, "own": own}
        statistics = {name: losses.masked_mean(x, samples.mask) for name, x in means.items()}
        return MethodLoss(statistics["own"], statistics)


class NextActions(ActorCritic):
    """A user's method, whose actors choose the first action of a rollout at the end of the one before."""

    needs_next_actions = True


@pytest.fixture(autouse=True)
def with_next_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, method in (("next_actions", "NextActions"), ("log_probs", "LogProbs")):
        monkeypatch.setitem(registry.METHODS, name, MethodEntry(__name__, method, continuous_actions=True))


def reused(config: RunConfig, epochs: int, minibatches: int, unroll_length: int = 24) -> RunConfig:
    actor = ActorConfig(environments=4, unroll_length=unroll_length, epochs=epochs, minibatches=minibatches)
    return replace(config, actor=actor)


def make_gradients(config: RunConfig) -> Gradients:
    return Gradients(GradientGraphs(config, environment_spec(config.environment), make_policy(config)), seed=0)


@pytest.mark.parametrize("memory", [False, True], ids=["", "memory"])
@pytest.mark.parametrize(
    ("task", "name"),
    [
        *(("cartpole", name) for name in METHODS),
        ("pong", "actor_critic"),
        *(pytest.param("pong", name, marks=pytest.mark.slow) for name in METHODS if name != "actor_critic"),
    ],
)
def test_the_minibatches_of_an_epoch_add_up_to_the_whole_rollout(
    task: str, name: str, memory: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second rollout of an actor: with a memory it begins with a state."""
    config = reused(replace(request.getfixturevalue(task), method=METHODS[name]), 2, 2, unroll_length=8)
    if memory:
        config = replace(config, network=replace(config.network, recurrent="lstm"))
    rollouts, actor = recording(monkeypatch), make_actor(config)
    snapshot = WeightSnapshot(0, first_weights(config, 0.2 * memory))
    reports = [run(actor, config, snapshot) for _ in range(8)][4:]
    rollout = rollouts[1]
    assert not memory or np.abs(rollout.first_state[0]).max() > 0.01
    policy = make_policy(config)
    whole = plain_gradients(config, policy)
    policy.assign(snapshot.parameters)
    if config.method.uses_target_network:
        whole.graphs.assign_target(snapshot)
    whole.begin(rollout)
    expected = whole.next().gradient
    for epoch in (reports[:2], reports[2:]):
        total = sum(report.samples * report.gradient for report in epoch) / rollout.mask.sum()
        assert np.abs(total - expected).max() <= 2e-5 * np.abs(expected).max()
        # They are parts: none alone is the whole.
        assert all(np.abs(report.gradient - expected).max() > 0.01 * np.abs(expected).max() for report in epoch)
        assert sum(report.samples for report in epoch) == rollout.mask.sum()
    if name == "actor_critic":
        assert all(report.statistics["ratio_deviation"] < 1e-4 for report in reports)
    else:
        assert "ratio_deviation" not in reports[0].statistics


def test_each_agent_step_is_in_each_epoch_once(cartpole: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rollouts of E = 3, M = 2. Episodes are reported with the first gradient of the rollout they ended in."""
    config = reused(cartpole, epochs=3, minibatches=2, unroll_length=40)
    rollouts, actor, weights = recording(monkeypatch), make_actor(config), first_weights(config)
    reports = [actor.run(WeightSnapshot(version, weights)) for version in range(12)]
    assert [report.version for report in reports] == list(range(12))
    assert [report.sequence for report in reports] == list(range(1, 13))
    assert len(rollouts) == 2
    for rollout, of_rollout in zip(rollouts, (reports[:6], reports[6:]), strict=True):
        live = int(rollout.mask.sum())
        assert live < rollout.mask.size
        assert sum(report.agent_steps for report in of_rollout) == live
        assert [report.agent_steps for report in of_rollout[2:]] == [0] * 4
        assert [report.new_steps_follow for report in of_rollout] == [True] + [False] * 5
        for epoch in (of_rollout[0:2], of_rollout[2:4], of_rollout[4:6]):
            assert sum(report.samples for report in epoch) == live
        assert len(of_rollout[0].episodes.returns) > 0
        assert all(len(report.episodes.returns) == 0 for report in of_rollout[1:])
        assert all(report.stage_seconds.environment == 0.0 for report in of_rollout[1:])
        assert of_rollout[0].stage_seconds.environment > 0.0
    # Another order in each epoch, and in each rollout, even of the same agent steps.
    minibatches, gradients = make_gradients(config), [report.gradient for report in reports[:6]]
    for _ in range(2):
        minibatches.begin(rollouts[0])
        gradients.append(minibatches.next().gradient)
    assert len({gradient.tobytes() for gradient in gradients}) == len(gradients)


def test_what_is_dropped_of_a_rollout_is_in_no_gradient_yet(
    cartpole: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = reused(cartpole, epochs=2, minibatches=2)
    rollouts, weights = recording(monkeypatch), first_weights(config)
    make_actor(config).run(WeightSnapshot(0, weights))
    minibatches = make_gradients(config)
    assert minibatches.drop() == 0
    for taken in (1, 2, 3):
        minibatches.begin(rollouts[0])
        agent_steps = sum(minibatches.next().agent_steps for _ in range(taken))
        assert agent_steps + minibatches.drop() == rollouts[0].mask.sum()
        assert minibatches.rollout_is_done


def test_the_first_action_keeps_the_probability_of_its_choice(cartpole: RunConfig) -> None:
    config = reused(replace(cartpole, method=MethodConfig(name="next_actions")), 2, 1, unroll_length=3)
    actor, snapshot = make_actor(config), WeightSnapshot(0, first_weights(config))
    # With the same weights all along, no action has become more or less probable.
    deviations = [actor.run(snapshot).statistics["ratio_deviation"] for _ in range(8)]
    assert max(deviations) < 1e-5


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


def test_actors_with_fresh_gradients_begin_at_different_times(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(CARTPOLE, actor=ActorConfig(2, 32, fresh_gradients=True))
    old, new = snapshots(config)
    rollouts, first, warm_up_counts = recording(monkeypatch), make_actor(config), set()
    for actor_id in range(12):
        rollouts.clear()
        actor = make_actor(config, actor_id, first)
        assert not rollouts, "an actor that replaces another one has no weights before its first call"
        calls = 1
        while actor.next_call is NextCall.WARM_UP:
            assert run(actor, config, old) == Heartbeat(actor.actor_id, new_steps_follow=False)
            # One rollout in a call: a run that stops waits for calls under way.
            assert len(rollouts) == calls
            calls += 1
        assert run(actor, config, old) == Heartbeat(actor.actor_id)
        assert len(rollouts) == calls <= 1 + 1024 / 64
        warm_up_counts.add(calls - 1)
        # Episodes that ended before the first rollout are not reported; the one under way is reported whole.
        again = reported(actor, new, config)
        assert again.rewards == again.agent_steps <= 64
        ended = rollouts[-1].discounts == 0
        assert len(again.episodes.returns) == ended.sum()
        assert set(again.episodes.environments) == set(np.flatnonzero(ended.any(axis=0)))
        np.testing.assert_array_equal(again.episodes.returns, again.episodes.lengths)
    assert len(warm_up_counts) > 5
    # The most that 1,024 agent steps have.
    assert max(warm_up_counts) == 16


def test_a_target_network_is_kept_from_an_evaluation_during_warm_up() -> None:
    config = replace(Q_LEARNING, actor=ActorConfig(2, 32, fresh_gradients=True))
    old, new = snapshots(config)
    first = make_actor(config)
    once, always = (make_actor(config, 1, first), make_actor(config, 1))
    assert once.next_call is NextCall.WARM_UP
    once.evaluate(old, new, EvaluationShare(1, "sampled", 0, 1, 1))
    found = []
    for actor, target in ((once, None), (always, new)):
        while isinstance(result := actor.run(old, target), Heartbeat):
            pass
        found.append(result.gradient)
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-8)


def snapshots(config: RunConfig) -> tuple[WeightSnapshot, WeightSnapshot]:
    weights = first_weights(config)
    return WeightSnapshot(3, weights), WeightSnapshot(7, weights * np.float32(1.5))


def reported(
    actor: Actor, snapshot: WeightSnapshot, config: RunConfig, target: WeightSnapshot | None = None
) -> GradientReport:
    while isinstance(report := run(actor, config, snapshot, target), Heartbeat):
        pass
    return report


@pytest.mark.parametrize("config", [CARTPOLE, Q_LEARNING], ids=["actor_critic", "q_learning"])
@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.usefixtures("no_warm_up")
def test_a_gradient_and_its_returns_are_at_the_weights_of_its_call(
    config: RunConfig, epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call that acted had the old weights."""
    config = replace(config, actor=replace(config.actor, epochs=epochs, fresh_gradients=True))
    old, new = snapshots(config)
    rollouts, actor, policy = recording(monkeypatch), make_actor(config), make_policy(config)
    plain = plain_gradients(config, policy)
    if config.method.uses_target_network:
        plain.graphs.assign_target(old)
    for turn in range(2):
        assert run(actor, config, old) == Heartbeat(actor.actor_id)
        for snapshot in (new, old)[:epochs]:
            found = reported(actor, snapshot, config, old)
            assert found.version == snapshot.version
            # The first gradient has the agent steps of the rollout, and its seconds.
            assert (found.agent_steps > 0) == (found.stage_seconds.environment > 0) == (snapshot is new)
            policy.assign(snapshot.parameters)
            plain.begin(rollouts[turn])
            assert found.statistics["value_loss"] == pytest.approx(plain.next().statistics["value_loss"], rel=1e-5)


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
def test_shared_graphs_change_no_bit(config: RunConfig) -> None:
    config = replace(config, actor=replace(config.actor, unroll_length=2))
    # The exploration is the final one, which differs between actors.
    old, new = (snapshot._replace(frames=config.exploration.annealing_frames) for snapshot in snapshots(config))
    # Each actor with graphs of its own takes a second: three share the graphs, and two of them are compared.
    alone = {actor_id: make_actor(config, actor_id) for actor_id in (0, 2)}
    first = make_actor(config, 0)
    shared = {0: first}
    traced = 0
    # A rollout has up to four gradients.
    for turn, actor_id in enumerate([0, 1, 2, 2, 0, 1, 1, 2, 0] * 2):
        snapshot = (old, new)[turn % 2]
        # The others begin while the first is within a rollout.
        if actor_id not in shared:
            shared[actor_id] = make_actor(config, actor_id, first)
        found = reported(shared[actor_id], snapshot, config)
        traced = traced or traces(first)
        assert traces(first) == traced
        if actor_id not in alone:
            continue
        expected = reported(alone[actor_id], snapshot, config)
        np.testing.assert_array_equal(found.gradient, expected.gradient)
        assert found.statistics == expected.statistics


@pytest.mark.parametrize("config", [CARTPOLE, PENDULUM], ids=["discrete", "continuous"])
@pytest.mark.usefixtures("no_warm_up")
def test_targets_have_the_log_probabilities_of_acting_and_of_now(config: RunConfig) -> None:
    config = replace(config, method=MethodConfig(name="log_probs"))
    old, new = snapshots(config)
    whole = replace(config, actor=replace(config.actor, epochs=2, minibatches=1, fresh_gradients=True))
    actor = make_actor(whole)
    at_new, at_old = (reported(actor, snapshot, whole).statistics for snapshot in (new, old))
    assert at_new["now"] == pytest.approx(at_new["own"], rel=1e-5)
    assert at_old["now"] == pytest.approx(at_old["own"], rel=1e-5)
    # The first call acted with `new`.
    assert at_new["acting"] == at_old["acting"] == pytest.approx(at_new["now"], rel=1e-4)
    assert at_old["now"] != pytest.approx(at_old["acting"], rel=1e-4)
    # Targets of one gradient a rollout, and of minibatches, are at the weights that acted.
    for actor_config in (
        replace(config.actor, epochs=1, minibatches=1),
        replace(config.actor, epochs=2, minibatches=1),
    ):
        other = replace(config, actor=replace(actor_config, fresh_gradients=False))
        found = reported(make_actor(other), new, other).statistics
        assert found["now"] == found["acting"] == pytest.approx(found["own"], rel=1e-4)


@pytest.mark.parametrize("minibatches", [1, 2])
@pytest.mark.usefixtures("no_warm_up")
def test_advantages_are_standardised_by_the_moments_of_the_weights(minibatches: int) -> None:
    config = replace(
        CARTPOLE,
        actor=replace(CARTPOLE.actor, epochs=2, minibatches=minibatches, fresh_gradients=True),
        method=MethodConfig(standardise_advantages=True),
    )
    (old, new), policy_loss = snapshots(config), {}
    first = make_actor(config)
    for mean in (0.0, 50.0):
        moments = [AdvantageMoments(1000.0, 1000.0 * m, 1000.0 * (m**2 + 1.0)) for m in (mean, 1e4)]
        # A whole rollout takes those of the call of its gradient, one in parts those of the call that acted.
        of_weights = [
            snapshot._replace(advantage_moments=moments[(call == 0) == (minibatches == 1)])
            for call, snapshot in enumerate((old, new))
        ]
        actor = make_actor(config, 0, first)
        assert run(actor, config, of_weights[0]) == Heartbeat(actor.actor_id)
        reports = [run(actor, config, of_weights[1]) for _ in range(2 * minibatches)]
        agent_steps = sum(report.agent_steps for report in reports)
        of_reports = [report.advantage_moments for report in reports]
        # Those of a rollout are counted once.
        assert of_reports[0] is not None
        assert of_reports[0][0] == agent_steps
        assert of_reports[0].total > 1.0, "the rollout is not standardised by itself before"
        assert of_reports[1:] == [None] * (len(reports) - 1)
        policy_loss[mean] = reports[0].statistics["policy_loss"]
        if (minibatches, mean) == (1, 0.0):
            # Newer weights come with moments that have those of the first gradient: they are not counted again.
            assert run(actor, config, of_weights[0]) == Heartbeat(actor.actor_id)
            one = run(actor, config, of_weights[1])
            newer = with_newer(np.array(of_weights[1].advantage_moments), np.array(one.advantage_moments))
            other = run(actor, config, of_weights[1]._replace(advantage_moments=AdvantageMoments(*newer)))
            assert other.statistics["policy_loss"] == pytest.approx(one.statistics["policy_loss"], rel=1e-3)
    # They are positive: above the last ones around 0, and below those around 50.
    assert policy_loss[0.0] < 0.0
    assert policy_loss[50.0] > 5.0


@pytest.mark.parametrize("actor", [{"epochs": 2, "minibatches": 2}, {"fresh_gradients": True}], ids=str)
def test_the_gradients_of_eager_graphs_are_the_same(actor: dict[str, Any]) -> None:
    method = MethodConfig(standardise_advantages=True)
    config = replace(CARTPOLE, actor=replace(CARTPOLE.actor, unroll_length=2, **actor), method=method)
    _, new = snapshots(config)
    expected = reported(make_actor(config), new, config)
    tf.config.run_functions_eagerly(True)
    try:
        found = reported(make_actor(config), new, config)
    finally:
        tf.config.run_functions_eagerly(False)
    np.testing.assert_allclose(found.gradient, expected.gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("mean", "deviation"), [(1.0, 1.0), (5.0, 5.0), (1e4, 1.0)])
def test_a_rollout_of_a_thousand_steps_is_standardised_by_itself(mean: float, deviation: float) -> None:
    advantages = np.random.default_rng(0).normal(mean, deviation, (64, 16)).astype(np.float32)
    mask = np.ones((64, 16), np.float32)
    found, _ = losses.standardised_by_recent(advantages, mask, np.array([1024.0, 77.0, 99.0]))
    exact = advantages.astype(np.float64)
    np.testing.assert_allclose(found, (exact - exact.mean()) / exact.std(), rtol=1e-4, atol=1e-5)
    # A larger one leaves nothing of the older ones.
    np.testing.assert_array_equal(with_newer(np.array([1024.0, 77.0, 99.0]), np.array([2048, 1, 2])), [2048, 1, 2])


def test_small_rollouts_are_standardised_with_the_last_ones() -> None:
    mask = np.ones((4, 1), np.float32)
    first = np.array([[1.0], [2.0], [3.0], [4.0]], np.float32)
    found, before = losses.standardised_by_recent(first, mask, np.zeros(3))
    # The window lacks 1,020, which count as 0 in the mean: all are positive, and stay so.
    mean = 10 / 1024
    np.testing.assert_allclose(found, (first - mean) / np.sqrt(np.square(first - mean).mean()), rtol=1e-5)
    mask[3] = 0.0
    # All are worse than the first ones, and stay so.
    second = np.array([[-5.0], [-6.0], [-7.0], [99.0]], np.float32)
    kept = 1 - 3 / 1024
    number, total, squares = kept * 4 + 3, kept * 10 - 18, kept * 30 + 110
    np.testing.assert_allclose(with_newer(before.numpy(), np.array([3, -18, 110])), [number, total, squares])
    mean = total / 1024
    expected = (second - mean) / np.sqrt((squares - 2 * mean * total) / number + mean**2)
    expected[3] = 0.0
    found, own = losses.standardised_by_recent(second, mask, before)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_array_equal(own, [3, -18, 110])
    assert (expected[:3] < 0.0).all()
    # Where the window has these already, they are not counted again.
    again, _ = losses.standardised_by_recent(second, mask, np.array([number, total, squares]), counted=True)
    np.testing.assert_allclose(again, expected, rtol=1e-5)


def test_one_advantage_at_most_doubles_the_variance_of_the_window() -> None:
    generator, mask = np.random.default_rng(0), np.ones((64, 1), np.float32)
    window = np.array([1024.0, 0.0, 1024.0])
    advantages = generator.normal(0.0, 1.0, (64, 1)).astype(np.float32)
    plain, own = losses.standardised_by_recent(advantages, mask, window)
    np.testing.assert_allclose(own[2], np.square(advantages).sum(), rtol=1e-5)
    advantages[7] = 1e5
    _, own = losses.standardised_by_recent(advantages, mask, window)
    number, _, squares = with_newer(window, own.numpy())
    assert squares / number < 2.2
    # A later gradient of the rollout, whose window has it clipped or not yet, exceeds no first one.
    for moments, counted in ((with_newer(window, own.numpy()), True), (window, True), (window, False)):
        again, _ = losses.standardised_by_recent(advantages, mask, moments, counted=counted)
        assert float(np.max(again)) == pytest.approx(32.0, rel=0.04)
    # Another actor's terms keep their size.
    later, _ = losses.standardised_by_recent(plain, mask, with_newer(window, own.numpy()))
    assert float(np.std(later)) > 0.6 * float(np.std(plain))
    # A new scale is that of the window after two of it.
    for _ in range(2 * 1024 // 64):
        _, own = losses.standardised_by_recent(plain * 1e3, mask, window)
        window = with_newer(window, own.numpy())
    assert np.sqrt(window[2] / window[0]) == pytest.approx(1e3 * float(np.std(plain)), rel=0.2)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_an_advantage_is_bounded_on_either_side(sign: float) -> None:
    moments, mask = np.array([1024.0, 0.0, 1024.0]), np.ones((2, 1), np.float32)
    advantages = np.array([[0.5], [sign * 1e5]], np.float32)
    _, own = losses.standardised_by_recent(advantages, mask, moments)
    np.testing.assert_allclose(own, [2.0, 0.5 + sign * 32.0, 0.25 + 32.0**2])
    newer = with_newer(moments, own.numpy())
    again, _ = losses.standardised_by_recent(advantages, mask, newer, counted=True)
    assert float(again[1, 0]) == pytest.approx(sign * 32.0)
