"""Rollouts, gradients, evaluations: what an actor and an evaluator report is what they saw."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rollouts import first_weights, make_actor, make_policy, run

from actors.actor import Actor
from actors.environments import StepResult, VectorEnvironment, environment_spec
from actors.evaluator import EpisodeFingerprints, Evaluator
from actors.gradient import Gradients
from actors.policy import Policy
from actors.rollout import RolloutBuilder
from launch.loop.evaluation import distinct
from shared.config import (
    ActorConfig,
    EnvironmentConfig,
    EvaluationConfig,
    ExplorationConfig,
    MethodConfig,
    NetworkConfig,
    RunConfig,
)
from shared.methods.method import dead_units, explained_variance
from shared.seeds import Purpose
from shared.types import (
    ActionSpec,
    EpisodeStats,
    EvaluationPart,
    EvaluationShare,
    GradientReport,
    Heartbeat,
    StageSeconds,
    WeightSnapshot,
    info_means,
)


def step(reward=(0.0,), terminated=(False,), truncated=(False,), lost_life=(False,)) -> StepResult:
    count = len(reward)
    return StepResult(
        np.zeros((count, 1), np.float32),
        np.array(reward, np.float64),
        np.array(terminated),
        np.array(truncated),
        np.array(lost_life),
    )


def builder(unroll_length: int, **settings) -> RolloutBuilder:
    actor = ActorConfig(environments=1, unroll_length=unroll_length)
    config = RunConfig(environment=EnvironmentConfig(**settings), method=MethodConfig(discount=0.9), actor=actor)
    return RolloutBuilder(config, (1,), "float32", ActionSpec(5))


def fill(rollouts: RolloutBuilder, *steps: StepResult):
    rollouts.begin(np.zeros((1, 1), np.float32))
    for t, result in enumerate(steps):
        observations = np.full((1, 1), t + 1, np.float32)
        rollouts.add(np.array([t], np.int32), result._replace(observations=observations))
    return rollouts.finish()


def test_rewards_are_clipped_and_returns_are_not() -> None:
    rollouts = builder(3)
    rollout = fill(rollouts, step((5.0,)), step((-3.0,)), step((0.7,), terminated=(True,)))
    np.testing.assert_array_equal(rollout.rewards[:, 0], np.float32([1.0, -1.0, 0.7]))
    np.testing.assert_array_equal(rollout.observations[:, 0, 0], [0, 1, 2, 3])
    episodes = rollouts.take_episodes()
    # In the precision of the environment, which a target may need.
    assert episodes.returns.tolist() == [2.7]
    assert episodes.lengths.tolist() == [3]
    assert [values.size for values in rollouts.take_episodes()[:2]] == [0, 0]


@pytest.mark.parametrize(("end", "discount"), [("terminated", 0.0), ("truncated", 0.9)])
def test_the_step_after_an_end_is_masked_and_counts_for_nothing(end: str, discount: float) -> None:
    rollouts = builder(2)
    first = fill(rollouts, step((1.0,)), step((1.0,), **{end: (True,)}))
    np.testing.assert_allclose(first.discounts[:, 0], [0.9, discount])
    np.testing.assert_array_equal(first.mask[:, 0], [1, 1])
    second = fill(rollouts, step((0.0,)), step((1.0,), terminated=(True,)))
    np.testing.assert_array_equal(second.mask[:, 0], [0, 1])
    episodes = rollouts.take_episodes()
    assert episodes.returns.tolist() == [2.0, 1.0]
    assert episodes.lengths.tolist() == [2, 1]


def test_the_next_rollout_begins_where_the_last_one_ended() -> None:
    """Observations written in place are not copied, and the last ones are the first of the next rollout."""
    rollouts = builder(2)
    rollouts.begin(np.zeros((1, 1), np.float32))
    for value in (1.0, 2.0):
        rollouts.next_observations[...] = value
        rollouts.add(np.zeros(1, np.int32), step()._replace(observations=rollouts.next_observations))
    np.testing.assert_array_equal(rollouts.finish().observations[:, 0, 0], [0, 1, 2])
    rollouts.begin()
    assert rollouts.observations[0, 0] == 2.0


def test_a_lost_life_is_terminal_for_training_only_if_asked() -> None:
    lost = step((1.0,), lost_life=(True,))
    assert fill(builder(1), lost).discounts[0, 0] == np.float32(0.9)
    rollouts = builder(2, terminal_on_life_loss=True)
    rollout = fill(rollouts, lost, step((1.0,), terminated=(True,)))
    np.testing.assert_array_equal(rollout.discounts[:, 0], [0.0, 0.0])
    np.testing.assert_array_equal(rollout.mask[:, 0], [1, 1])
    assert rollouts.take_episodes().returns.tolist() == [2.0]


def test_rewards_are_normalised_by_the_factor_of_the_weights() -> None:
    rollouts = builder(5, clip_rewards=False, normalise_rewards=True, reward_scale=2.0)
    rollouts.reward_factor = 0.25
    steps = step((4.0,)), step((-40.0,)), step((1.0,), truncated=(True,)), step((0.0,)), step((3.0,))
    rollout = fill(rollouts, *steps)
    np.testing.assert_array_equal(rollout.rewards[:, 0], [2.0, -10.0, 0.5, 0.0, 1.5])
    # The fourth step only resets, and what follows it is another episode.
    discounted = np.array([8.0, 0.9 * 8.0 - 80.0, 0.9 * (0.9 * 8.0 - 80.0) + 2.0, 6.0])
    moments = rollouts.return_moments
    assert moments.number == 4
    assert (moments.mean[0], moments.variance[0]) == pytest.approx((discounted.mean(), discounted.var()))
    assert rollouts.take_episodes().returns.tolist() == [-35.0]
    # It goes on where the rollout ended.
    fill(rollouts, *[step((0.0,))] * 5)
    moments = rollouts.return_moments
    assert moments.mean[0] == pytest.approx(6.0 * np.mean([0.9, 0.9**2, 0.9**3, 0.9**4, 0.9**5]))
    assert builder(1).return_moments is None


def test_the_first_rewards_are_normalised_by_the_actor_itself() -> None:
    rollouts = builder(2, clip_rewards=False, normalise_rewards=True)
    first = fill(rollouts, step((100.0,)), step((-50.0,)))
    returns = [100.0, 0.9 * 100.0 - 50.0]
    np.testing.assert_allclose(first.rewards[:, 0], np.array([100.0, -50.0]) / np.std(returns), rtol=1e-5)
    # A rollout that is not finite counts for nothing. Another at the same weights, such as a warm-up rollout,
    # counts for its own rewards, too.
    fill(rollouts, step((np.inf,)), step((0.0,)))
    second = fill(rollouts, step((0.0,)), step((7.0,)))
    returns += [0.9**3 * returns[1], 0.9**4 * returns[1] + 7.0]
    np.testing.assert_allclose(second.rewards[:, 0], np.array([0.0, 7.0]) / np.std(returns), rtol=1e-5)
    # One step, or equal ones, have no deviation.
    np.testing.assert_array_equal(
        fill(builder(1, clip_rewards=False, normalise_rewards=True), step((0.01,))).rewards, [[np.float32(0.01)]]
    )
    rollouts.reward_factor = 0.5
    np.testing.assert_array_equal(fill(rollouts, step((6.0,)), step((-30.0,))).rewards[:, 0], [3.0, -10.0])


def test_info_is_of_the_steps_that_end_an_episode() -> None:
    rollouts = builder(3)
    nothing, one, two = ({"success": np.array([value])} for value in (np.nan, 1.0, 2.0))
    ends = {"terminated": (True,)}
    fill(rollouts, step(**ends)._replace(info=one), step()._replace(info=two), step(**ends)._replace(info=nothing))
    episodes = rollouts.take_episodes()
    for joined in (episodes, EpisodeStats.joined([EpisodeStats.joined([]), episodes])):
        np.testing.assert_array_equal(joined.info["success"], [1.0, np.nan])
    assert info_means(episodes.info) == {"success": 1.0}
    assert info_means({"success": np.array([np.nan])}) == {}


def test_statistics() -> None:
    ones = np.ones((2, 1), np.float32)
    returns = np.array([[1.0], [3.0]], np.float32)
    assert float(explained_variance(returns, returns, ones)) == 1.0
    assert float(explained_variance(returns, 0 * ones, ones)) == 0.0
    assert float(explained_variance(ones, 0 * ones, ones)) == 0.0
    assert float(dead_units(np.array([[[0.0, 1.0, 0.0]], [[0.0, 0.0, 2.0]]], np.float32))) == pytest.approx(1 / 3)


def test_an_actor_reports_its_steps_episodes_and_sequence(cartpole: RunConfig) -> None:
    config = replace(cartpole, actor=ActorConfig(environments=4, unroll_length=40))
    actor, policy = make_actor(config, 7), make_policy(config)
    weights = policy.initial_parameters()
    reports = [actor.run(WeightSnapshot(version, weights)) for version in (3, 5)]
    assert [(r.actor_id, r.sequence, r.version) for r in reports] == [(7, 1, 3), (7, 2, 5)]
    for report in reports:
        assert report.gradient.shape == (policy.layout.size,)
        assert report.gradient.dtype == np.float32
        assert report.layout_fingerprint == policy.layout.fingerprint
        # A CartPole episode's return is its length; every reset costs one of the 160 vector steps.
        np.testing.assert_array_equal(report.episodes.returns, report.episodes.lengths)
        assert 160 - len(report.episodes.returns) <= report.agent_steps <= 160 - len(report.episodes.returns) + 4
        assert min(report.stage_seconds) >= 0.0
    assert reports[0].episodes.returns.size > 0


DRAWS = """
import random
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

class Draws(gymnasium.Env):
    def __init__(self):
        self.observation_space, self.action_space, self.steps = Box(0, 1, (4,)), Discrete(1000), 0

    def reset(self, seed=None, options=None):
        return self.step(None)[0], {}

    def step(self, action):
        of_space = float(self.observation_space.sample()[0])
        drawn = random.random(), np.random.rand(), int(self.action_space.sample()) / 1000, of_space
        self.steps += 1
        return np.array(drawn, np.float32), drawn[self.steps // 2 % 4], True, False, {}

gymnasium.register("Draws-v0", Draws)
"""


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_global_generators_follow_from_the_seed(
    vectorization: Any, cartpole: RunConfig, working_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (working_folder / "draws.py").write_text(DRAWS)
    monkeypatch.syspath_prepend(working_folder)
    environment = EnvironmentConfig(id="draws:Draws-v0", frame_skip=1, vectorization=vectorization)

    def returns(actor_id: int, seed: int) -> list[float]:
        config = replace(cartpole, environment=environment, seed=seed)
        actor = make_actor(config, actor_id)
        report = actor.run(WeightSnapshot(0, first_weights(config)))
        actor.close()
        return sorted(report.episodes.returns)

    first = returns(0, 1)
    assert first == returns(0, 1)
    assert not set(first) & {*returns(1, 1), *returns(0, 2)}


def test_an_actor_takes_the_factor_of_rewards_from_the_weights(cartpole: RunConfig) -> None:
    environment = replace(cartpole.environment, clip_rewards=False, normalise_rewards=True)
    config = replace(cartpole, environment=environment)
    weights = make_policy(config).initial_parameters()
    first = make_actor(config)
    actors = first, make_actor(config, 0, first), make_actor(config, 0, first)
    reports = [one.run(WeightSnapshot(0, weights, 0, f)) for one, f in zip(actors, (None, 0.01, 1.0), strict=True)]
    norms = [float(np.linalg.norm(report.gradient)) for report in reports]
    assert norms[1] < norms[2]
    assert norms[0] != pytest.approx(norms[2], rel=0.01), "by the deviation of its own returns"


def evaluate(
    config: RunConfig, weight: float = 1.0, version: int = 1, purpose: Purpose = "training_evaluation"
) -> EvaluationPart:
    evaluator = Evaluator(config, environment_spec(config.environment), config.evaluation, purpose)
    parts = list(evaluator.run(WeightSnapshot(version, np.float32(weight) * first_weights(config))))
    evaluator.close()
    return EvaluationPart.joined(parts)


def test_greedy_play_from_one_start_is_one_game(pong: RunConfig) -> None:
    environment = EnvironmentConfig(max_noops=0, max_episode_frames=200)
    network = NetworkConfig(centre_observations=False)
    config = replace(pong, environment=environment, network=network)
    greedy = evaluate(replace(config, evaluation=EvaluationConfig(episodes=6, environments=2, policy="greedy")))
    assert len(set(greedy.games)) == 1
    # The same start with actions that are drawn.
    sampled = evaluate(replace(config, evaluation=EvaluationConfig(episodes=6, environments=2)))
    assert len(set(sampled.games)) == 6


SHARE = EvaluationShare(1, "sampled", 0, 3, 2)


def evaluated(actor: Actor, snapshot: WeightSnapshot, share: EvaluationShare) -> list[EvaluationPart]:
    """The parts of an actor's share, until one has no agent step any more. Its weights are overwritten meanwhile."""
    snapshot = snapshot._replace(parameters=snapshot.parameters.copy())
    parts = [actor.evaluate(snapshot, None, share)]
    # Greedy play by these takes the second action of CartPole, and by zeros the first.
    snapshot.parameters[:] = np.arange(snapshot.parameters.size) % 2
    while parts[-1].agent_steps:
        parts.append(actor.evaluate(snapshot, None, share))
    return parts[:-1]


@pytest.mark.usefixtures("no_warm_up")
@pytest.mark.parametrize("more", [{}, {"fresh_gradients": True, "minibatches": 3}])
def test_an_evaluation_in_between_changes_no_gradient(more: dict, cartpole: RunConfig) -> None:
    actor = replace(cartpole.actor, **more)
    config = replace(cartpole, actor=actor, evaluation=EvaluationConfig(episodes=6, environments=3))
    weights = first_weights(config)
    snapshot, other = WeightSnapshot(0, weights), WeightSnapshot(1, weights * np.float32(0.5))
    plain, interrupted, compared = make_actor(config), make_actor(config), 0
    for call in range(8):
        expected, found = plain.run(snapshot), interrupted.run(snapshot)
        assert isinstance(expected, type(found))
        if isinstance(expected, GradientReport):
            np.testing.assert_array_equal(found.gradient, expected.gradient)
            assert (found.agent_steps, found.rewards) == (expected.agent_steps, expected.rewards)
            compared += 1
        interrupted.evaluate(other, None, SHARE._replace(number=call // 3))
    assert compared >= 6


@pytest.mark.parametrize("method", ["actor_critic", "sarsa"])
def test_each_second_of_a_call_is_in_one_stage_and_of_an_evaluation_in_none(
    method: str, cartpole: RunConfig, monkeypatch
) -> None:
    now = [0.0]

    def takes(kind: type, name: str, seconds: float) -> None:
        call = getattr(kind, name)

        def slow(*arguments, **others):
            now[0] += seconds
            return call(*arguments, **others)

        monkeypatch.setattr(kind, name, slow)

    takes(VectorEnvironment, "step", 100.0)
    takes(Policy, "act", 1.0)
    takes(Gradients, "next", 10_000.0)
    takes(Policy, "assign", 0.5)
    takes(Evaluator, "play", 1e6)
    monkeypatch.setattr("actors.actor.time.perf_counter", lambda: now[0])
    evaluation = EvaluationConfig(episodes=6, environments=3)
    config = replace(cartpole, method=MethodConfig(name=method), evaluation=evaluation)
    actor, snapshot = make_actor(config), WeightSnapshot(0, first_weights(config))
    run(actor, config, snapshot)
    actor.evaluate(snapshot, None, SHARE)
    now[0] += 0.25
    assert run(actor, config, snapshot).stage_seconds == StageSeconds(500.0, 5.0, 10_000.0, 0.5, 0.25)
    # A rollout and its gradient in two calls.
    config = replace(config, actor=replace(config.actor, fresh_gradients=True))
    actor = make_actor(config)
    while isinstance(run(actor, config, snapshot), Heartbeat):
        pass
    now[0] += 0.25
    assert isinstance(run(actor, config, snapshot), Heartbeat)
    now[0] += 0.25
    assert run(actor, config, snapshot).stage_seconds == StageSeconds(500.0, 5.0, 10_000.0, 1.0, 0.5)


def test_an_episode_without_an_end_is_a_line_after_twice_the_time(cartpole: RunConfig, monkeypatch) -> None:
    environment = EnvironmentConfig(id="Pendulum-v1", frame_skip=1)
    config = replace(cartpole, environment=environment, evaluation=EvaluationConfig(episodes=1, environments=1))
    now, play, lines = [0.0], Evaluator.play, []

    def slow(evaluator: Evaluator, *arguments: int) -> EvaluationPart:
        now[0] += 50.0
        return play(evaluator, *arguments)

    monkeypatch.setattr("actors.evaluator.time.monotonic", lambda: now[0])
    monkeypatch.setattr(Evaluator, "play", slow)
    evaluator = Evaluator(config, environment_spec(config.environment), config.evaluation)
    list(evaluator.run(WeightSnapshot(1, first_weights(config)), on_wait=lines.append))
    # An episode has 200 agent steps: ten calls.
    seconds = [line.partition(" s: 1 are still to end, after ")[0] for line in lines]
    assert seconds == [f"no episode has ended for {after}" for after in (100, 150, 250)]


def test_games_that_differ_by_a_reward_are_two() -> None:
    observations, actions = np.zeros((2, 1)), np.zeros(2, np.int32)
    fingerprints = EpisodeFingerprints(observations)
    fingerprints.step(actions, np.array([0.0, 1.0], np.float32), observations, np.zeros(2, bool))
    numbers = np.array([fingerprints.number(0), fingerprints.number(1)])
    assert numbers[0] != numbers[1]
    # The same start and action: such an environment has chance, and nothing in it is a repetition.
    np.testing.assert_array_equal(distinct(numbers[[0, 1, 0]]), [0, 1, 2])
    assert len(set(distinct(numbers[[0, 0]]))) == 1


def test_the_calls_of_a_share_play_each_of_its_episodes_once(cartpole: RunConfig) -> None:
    config = replace(cartpole, evaluation=EvaluationConfig(episodes=11, environments=5))
    actor, snapshot = make_actor(config), WeightSnapshot(0, first_weights(config))
    share = SHARE._replace(first=2)
    parts = evaluated(actor, snapshot, share._replace(episodes=1))
    assert max(part.agent_steps for part in parts) <= 15, "as many as a rollout has"
    parts += evaluated(actor, snapshot, share._replace(episodes=9))
    pairs = sorted((e, o) for part in parts for e, o in zip(part.environments, part.order, strict=True))
    # Of eleven episodes environment 0 plays three.
    assert pairs == [(environment, order) for environment in (2, 3, 4) for order in (0, 1)]
    # Environments play on while others end a wave: what they end then is in the next one.
    whole = evaluated(make_actor(config), snapshot, share._replace(episodes=9))
    assert sorted(game for part in parts for game in part.games) == sorted(
        game for part in whole for game in part.games
    )
    for part in parts:
        np.testing.assert_array_equal(part.episodes.returns, part.episodes.lengths)
    # Another evaluation starts from the same states, and other actions are drawn.
    again = evaluated(actor, snapshot, share._replace(number=2))
    assert len(np.concatenate([part.games for part in again])) == 6
    assert not set(np.concatenate([part.games for part in parts])) & set(np.concatenate([part.games for part in again]))


def test_an_evaluation_is_the_same_in_calls_of_any_length(cartpole: RunConfig) -> None:
    """One step at least, where a share has more environments than a rollout has agent steps."""
    config = replace(cartpole, evaluation=EvaluationConfig(episodes=16, environments=16))
    parts = evaluated(make_actor(config), WeightSnapshot(1, first_weights(config)), SHARE._replace(size=16))
    assert parts[0].agent_steps == 16
    assert sorted(np.concatenate([part.games for part in parts])) == sorted(evaluate(config).games)


def test_an_evaluation_explores_by_the_smallest_epsilon(cartpole: RunConfig) -> None:
    exploration = ExplorationConfig(final_epsilons=(0.0, 1.0), annealing_frames=1)
    config = replace(cartpole, method=MethodConfig(name="q_learning"), exploration=exploration)
    config = replace(config, evaluation=EvaluationConfig(episodes=6, environments=3))
    actor, weights, games = make_actor(config), first_weights(config), []
    for number, (policy, frames) in enumerate((("greedy", 0), ("sampled", 0), ("sampled", 1))):
        parts = evaluated(actor, WeightSnapshot(1, weights, frames), SHARE._replace(number=number, policy=policy))
        games.append(np.concatenate([part.games for part in parts]).tolist())
    assert games[0] == games[1] == games[2]


def test_a_reset_is_no_agent_step_of_an_evaluation(cartpole: RunConfig) -> None:
    config = replace(cartpole, evaluation=EvaluationConfig(episodes=3, environments=1))
    share = EvaluationShare(1, "sampled", 0, 1, 3)
    parts = evaluated(make_actor(config), WeightSnapshot(0, first_weights(config)), share)
    assert sum(part.agent_steps for part in parts) == sum(part.episodes.lengths.sum() for part in parts)


def test_any_number_of_actors_evaluates_the_same_starts(cartpole: RunConfig) -> None:
    """All weights 0: greedy episodes differ by their starts only, which are games of their own."""
    config = replace(cartpole, evaluation=EvaluationConfig(episodes=6, environments=3, policy="greedy"))
    whole = evaluate(config, weight=0.0)
    assert len(set(whole.games)) == 6
    # The version of `evaluate`, which chooses the starts.
    zeros = WeightSnapshot(1, np.zeros_like(first_weights(config)))
    shares = [EvaluationShare(1, "greedy", 0, 1, 2), EvaluationShare(1, "greedy", 1, 2, 2)]
    games = [part.games for share in shares for part in evaluated(make_actor(config), zeros, share)]
    assert sorted(np.concatenate(games)) == sorted(whole.games)
    # An actor's share moves when another one has ended.
    actor, moved = make_actor(config), [EvaluationShare(number, "greedy", number, 1, 2) for number in range(3)]
    games = [part.games for share in moved for part in evaluated(actor, zeros, share)]
    assert sorted(np.concatenate(games)) == sorted(whole.games)
    # Training's differ by version. A score has the same starts for all, and a recording has others.
    starts = [(1, "evaluation"), (2, "evaluation"), (1, "recording")]
    first, second, recorded = (set(evaluate(config, 0.0, *start).games) for start in starts)
    assert first == second
    assert not first & recorded
    others = evaluated(make_actor(config), zeros._replace(version=2), shares[0])
    assert not set(np.concatenate([part.games for part in others])) & set(whole.games)


def test_the_reward_of_a_step_that_resets_enters_nothing() -> None:
    rollouts, ends = builder(4, clip_rewards=False, normalise_rewards=True), {"terminated": (True,)}
    rollouts.reward_factor = 1.0
    fill(rollouts, step((1.0,), **ends), step((100.0,)), step((2.0,)), step((3.0,), **ends))
    assert rollouts.take_episodes().returns.tolist() == [1.0, 5.0]
    assert rollouts.take_rewards() == 6.0
    moments = rollouts.return_moments
    assert (moments.number, moments.mean[0]) == (3, pytest.approx((1.0 + 2.0 + (0.9 * 2.0 + 3.0)) / 3))
