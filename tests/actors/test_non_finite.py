"""Numbers of an environment that are not finite: which of them a rollout needs, and what they never reach."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from rollouts import first_weights, make_actor, run

from actors.actor import Actor
from shared.config import ActorConfig, EnvironmentConfig, MethodConfig, NetworkConfig, RunConfig
from shared.types import GradientReport, WeightSnapshot

# What one environment of the batch hands in at its steps: observation, reward, terminated, truncated.
Step = tuple[Any, float, bool, bool]
FINE = np.array([0.1, 0.2], np.float32)
NAN = np.array([0.1, np.nan], np.float32)


class Scripted(gymnasium.Env):
    """Ends after 5 steps, unless `at` of its number of steps says otherwise."""

    observation_space, action_space = Box(-1, 1, (2,), np.float32), Discrete(2)
    at: Callable[[int], Step | None] | None = None
    # The first observation of the first episode, and of later ones.
    first = later = FINE

    def __init__(self) -> None:
        self.count = self.step_of_episode = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):  # noqa: ARG002
        super().reset(seed=seed)
        self.step_of_episode = 0
        return (self.later if self.count else self.first).copy(), {}

    def step(self, action):  # noqa: ARG002
        self.count += 1
        self.step_of_episode += 1
        return *((Scripted.at and Scripted.at(self.count)) or (FINE, 1.0, self.step_of_episode >= 5, False)), {}


gymnasium.register("Scripted-v0", Scripted)

REUSED = ActorConfig(environments=2, unroll_length=4, epochs=2, minibatches=2)
LSTM = NetworkConfig(name="mlp", recurrent="lstm")
RUNNING = NetworkConfig(name="mlp", observation_scaling="running")
# An actor of each configuration: its graphs are the others', too.
ACTORS: dict[str, Actor] = {}


def reports(monkeypatch: pytest.MonkeyPatch, at: Callable[[int], Step | None], calls: int = 4, **settings):
    monkeypatch.setattr(Scripted, "at", staticmethod(at))
    environment = EnvironmentConfig(id="Scripted-v0", frame_skip=1, normalise_rewards=True)
    actor = ActorConfig(environments=2, unroll_length=4)
    config = RunConfig(**{"environment": environment, "network": RUNNING, "actor": actor} | settings)
    snapshot = WeightSnapshot(0, first_weights(config))
    if repr(config) not in ACTORS:
        ACTORS[repr(config)] = make_actor(config, 1)
    # With a call in between, the next actor 0 does not go on with the exploration of the last one.
    run(ACTORS[repr(config)], config, snapshot)
    actor = make_actor(config, 0, ACTORS[repr(config)])
    found = [run(actor, config, snapshot) for _ in range(calls)]
    actor.close()
    return found


def is_sound(report: GradientReport) -> bool:
    """Whether its numbers are finite, and no observation that was replaced is in its moments."""
    observations, returns = report.observation_moments, report.return_moments
    sound = observations is None or np.allclose(observations.mean, FINE)
    numbers = [report.gradient, list(report.statistics.values()), 0.0 if returns is None else returns[1:]]
    return sound and all(np.isfinite(number).all() for number in numbers)


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -float("inf"), 1e300])
def test_a_reward_costs_its_rollout_and_its_episode(monkeypatch: pytest.MonkeyPatch, reward: float) -> None:
    with np.errstate(over="ignore"):
        first, *others = reports(monkeypatch, lambda step: (FINE, reward, False, False) if step == 2 else None)
    assert first.non_finite.startswith("reward ")
    assert first.agent_steps == 8
    assert first.observation_moments is None
    assert first.return_moments is None
    assert not np.isfinite(first.gradient).any()
    assert all(not report.non_finite and is_sound(report) for report in others)
    assert all(report.observation_moments.number and report.return_moments.number for report in others)
    returns = np.concatenate([report.episodes.returns for report in (first, *others)])
    assert [np.isfinite(value) for value in returns].count(False) == 2
    assert set(returns[np.isfinite(returns)]) == {5.0}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"actor": REUSED},
        {"network": LSTM},
        {"network": LSTM, "actor": REUSED},
        {"method": MethodConfig(name="q_learning")},
        {"method": MethodConfig(standardise_advantages=True)},
    ],
)
def test_the_last_observation_before_termination_is_unused(monkeypatch, settings: dict[str, Any]) -> None:
    # At the end of the first rollout, and later at each of its other times.
    finite = reports(monkeypatch, lambda step: (0 * FINE, 1.0, True, False) if step % 4 == 0 else None, 12, **settings)
    found = reports(monkeypatch, lambda step: (0 * NAN, 1.0, True, False) if step % 4 == 0 else None, 12, **settings)
    assert [report.non_finite for report in found] == [""] * 12
    assert all(map(is_sound, found))
    numbers = [report.observation_moments.number for report in found if report.observation_moments is not None]
    assert numbers == [8, 6, 6, 6, 6, 8, 6, 6, 6, 6, 8, 6][: len(numbers)]
    for report, same in zip(found, finite, strict=True):
        np.testing.assert_array_equal(report.gradient, same.gradient)
        assert (
            report.observation_moments is None or report.observation_moments.number == same.observation_moments.number
        )


@pytest.mark.parametrize("settings", [{}, {"actor": REUSED}, {"network": LSTM}])
def test_an_observation_costs_the_rollouts_with_it(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    # Step 4 ends the first rollout: its observation is a bootstrap there, and the first of the second rollout.
    found = reports(monkeypatch, lambda step: (NAN, 1.0, False, False) if step == 4 else None, 6, **settings)
    assert [report.non_finite for report in found[:2]] == ["observation [1] = nan"] * 2
    # The second rollout has the step that only resets.
    assert [report.agent_steps for report in found[:2]] == [8, 6]
    assert all(not report.non_finite and is_sound(report) for report in found[2:])
    truncated = reports(monkeypatch, lambda step: (NAN, 1.0, False, True) if step == 3 else None, 6, **settings)
    assert [bool(report.non_finite) for report in truncated[:2]] == [True, False]
    with monkeypatch.context() as patch:
        patch.setattr(Scripted, "first", NAN)
        found = reports(monkeypatch, lambda _: None, 6, **settings)
    assert found[0].non_finite == "observation [1] = nan"
    assert all(not report.non_finite and is_sound(report) for report in found[1:])
    # An episode begins in the last step of the first rollout, which does not need its observation.
    monkeypatch.setattr(Scripted, "later", NAN)
    begun = reports(monkeypatch, lambda step: (FINE, 1.0, True, False) if step == 3 else None, 5, **settings)
    assert not begun[0].non_finite
    assert "observation [1] = nan" in [report.non_finite for report in begun]


def test_a_gradient_without_finite_norm_ends_its_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = EnvironmentConfig(id="Scripted-v0", frame_skip=1, clip_rewards=False)
    settings = {"environment": plain, "actor": REUSED}
    found = reports(monkeypatch, lambda step: (FINE, 1e30, False, False) if step == 2 else None, 5, **settings)
    faulty = next(i for i, report in enumerate(found) if report.non_finite)
    assert found[faulty].observation_moments is None
    assert found[faulty].non_finite.startswith("loss (")
    assert not found[faulty].new_steps_follow
    assert sum(report.agent_steps for report in found[: faulty + 1]) == 8
    # The next report is of another rollout.
    assert found[faulty + 1].agent_steps > 0
