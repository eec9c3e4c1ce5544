"""Whole runs to a target: an evaluation confirms a crossing, once every environment has ended an episode."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sessions import session

from actors.environments import EnvironmentSpec, StepResult, VectorEnvironment
from launch.loop.executor import Completion
from launch.loop.inline import InlineExecutor
from shared.config import ActorConfig, CheckpointConfig, EvaluationConfig, RunConfig
from shared.types import EpisodeStats, EvaluationResult, WeightSnapshot

MARK = 15.0


@pytest.fixture
def cartpole(cartpole: RunConfig) -> RunConfig:
    """In rollouts of 100 agent steps: a window of 100 episodes is some 20 of them."""
    return replace(cartpole, actor=ActorConfig(environments=10, unroll_length=10))


class ScriptedEvaluator:
    """In an evaluator's place: says what the test lists, and keeps which weights it was asked about."""

    means: tuple[float, ...] = ()
    asked: list[tuple[int, str]]
    weights: list[np.ndarray]

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, evaluation: EvaluationConfig) -> None:
        del config, spec, evaluation

    def run(self, snapshot: WeightSnapshot, policy: str | None = None, **watched: Any) -> EvaluationResult:  # noqa: ARG002
        mean = self.means[min(len(self.asked), len(self.means) - 1)]
        self.asked.append((snapshot.version, str(policy)))
        self.weights.append(snapshot.parameters)
        # Four episodes, one of them lost.
        returns = mean + np.array([-90.0, 30.0, 30.0, 30.0])
        episodes = EpisodeStats(returns, np.ones(4, np.int64))
        return EvaluationResult(snapshot.version, snapshot.parameters, episodes, policy=str(policy))

    def exploration_state(self) -> dict[str, np.ndarray]:
        return {}

    def restore_exploration(self, state: dict[str, np.ndarray]) -> None:
        assert state == {}

    def close(self) -> None:
        pass


def script(monkeypatch: pytest.MonkeyPatch, *means: float) -> type[ScriptedEvaluator]:
    kind = type("Scripted", (ScriptedEvaluator,), {"means": means, "asked": [], "weights": []})
    monkeypatch.setattr("launch.loop.inline.Evaluator", kind)
    return kind


def test_a_run_stops_only_when_an_evaluation_confirms_its_crossing(
    cartpole: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluator = script(monkeypatch, MARK - 5.0, MARK + 85.0)
    summary = session(replace(cartpole, stop_at_return=MARK, total_frames=50_000), tmp_path).run()
    assert summary["status"] == "return_reached"
    assert [policy for _, policy in evaluator.asked] == ["sampled", "sampled"]
    first, confirmed = summary["first_crossing"], summary["confirmed_crossing"]
    assert [version for version, _ in evaluator.asked] == [first["update"], confirmed["update"]]
    assert first["mean_return_100"] >= MARK
    assert first["evaluation_mean_return"] == MARK - 5.0
    assert confirmed["mean_return_100"] >= MARK
    assert confirmed["evaluation_mean_return"] == MARK + 85.0
    for unit in ("agent_steps", "frames", "seconds"):
        assert 0 < first[unit] < confirmed[unit]
    assert confirmed["episodes"] - first["episodes"] >= 100
    assert confirmed["agent_steps"] <= summary["agent_steps_sampled"]
    evaluation = summary["evaluation"]
    assert (evaluation["mean_return"], evaluation["median_return"]) == (MARK + 85.0, MARK + 115.0)
    assert evaluation["collapsed_episodes"] == 1
    with np.load(tmp_path / "best.npz", allow_pickle=False) as best:
        assert best["version"] == confirmed["update"]
        np.testing.assert_array_equal(best["parameters"], evaluator.weights[-1])
    assert json.loads((tmp_path / "summary.json").read_text()) == summary


def test_a_window_counts_once_every_environment_has_finished_an_episode(
    cartpole: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, MARK)
    environments, ended = 150, np.zeros(150, bool)
    step = VectorEnvironment.step

    def watched_step(self: VectorEnvironment, *arguments: np.ndarray) -> StepResult:
        result = step(self, *arguments)
        np.logical_or(ended, result.terminated | result.truncated, out=ended)
        return result

    monkeypatch.setattr(VectorEnvironment, "step", watched_step)
    # Any 100 episodes reach it: the first 100 to end do, while many environments are in their first.
    config = replace(cartpole, stop_at_return=1.0, actor=ActorConfig(environments=environments, unroll_length=5))
    summary = session(config, tmp_path).run()
    assert summary["status"] == "return_reached"
    assert ended.all()


def test_the_weights_that_ended_the_run_are_kept_even_if_others_were_luckier_before(
    cartpole: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lucky(ScriptedEvaluator):
        asked, weights = [], []

        def run(self, snapshot: WeightSnapshot, policy: str | None = None, **watched: Any) -> EvaluationResult:
            # Regular evaluations are greedy, those that confirm are sampled.
            self.means = (MARK + 85.0,) if policy == "sampled" else (MARK + 500.0,)
            return super().run(snapshot, policy, **watched)

    monkeypatch.setattr("launch.loop.inline.Evaluator", Lucky)
    evaluation = EvaluationConfig(every_frames=50, episodes=4, environments=2, policy="greedy")
    config = replace(cartpole, stop_at_return=MARK, total_frames=50_000, evaluation=evaluation)
    summary = session(config, tmp_path).run()
    assert summary["status"] == "return_reached"
    assert "greedy" in [policy for _, policy in Lucky.asked]
    # One was due when the mark was reached. It would have held up the end.
    assert Lucky.asked[-1] == (summary["confirmed_crossing"]["update"], "sampled")
    assert np.load(tmp_path / "best.npz")["version"] == summary["confirmed_crossing"]["update"]


@pytest.mark.parametrize("stop_after", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_a_confirmation_under_way_goes_on_after_an_exact_resume(
    cartpole: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after: int
) -> None:
    """Left while the evaluation waits its turn behind the rollouts of other actors, and later."""
    evaluator = script(monkeypatch, MARK - 5.0, MARK + 85.0)
    config = replace(
        cartpole, executor="inline", stop_at_return=MARK, checkpoint=CheckpointConfig(exact=True, every_seconds=1e9)
    )
    whole = session(config, tmp_path / "whole", actors=3).run()
    asked = list(evaluator.asked)
    evaluator.asked.clear()

    class Interrupting(InlineExecutor):
        crossed, events = False, 0

        def evaluate(self, *arguments: Any) -> None:
            super().evaluate(*arguments)
            self.crossed = True
            self.count()

        def next_completion(self) -> Completion | None:
            if self.crossed:
                self.count()
            return super().next_completion()

        def count(self) -> None:
            self.events += 1
            if self.events == stop_after:
                half.interrupt()

    half = session(config, tmp_path / "half", 3, Interrupting)
    assert half.run()["status"] == "interrupted"
    resumed = session(config, tmp_path / "half", actors=3, resume=True).run()
    assert evaluator.asked == asked
    timeless = lambda crossing: {name: value for name, value in crossing.items() if name != "seconds"}  # noqa: E731
    for crossing in ("first_crossing", "confirmed_crossing"):
        assert timeless(resumed[crossing]) == timeless(whole[crossing])
    for count in ("updates", "frames", "episodes", "mean_return_100", "evaluation"):
        assert resumed[count] == whole[count], count
