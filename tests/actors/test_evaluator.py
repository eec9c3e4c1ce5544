"""Evaluations: which starts they play, and how many distinct games a score rests on."""

from dataclasses import replace

import numpy as np
import pytest

from actors.environments import VectorEnvironment, environment_spec
from actors.evaluator import Evaluator
from actors.policy import Policy
from shared.config import EnvironmentConfig, EvaluationConfig, NetworkConfig, RunConfig
from shared.types import EvaluationResult, WeightSnapshot


def starts(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> set[bytes]:
    """The first observations of an evaluation's environments."""
    seen: set[bytes] = set()
    reset = VectorEnvironment.reset

    def remember(self: VectorEnvironment, *arguments: int) -> np.ndarray:
        observations = reset(self, *arguments)
        seen.update(observation.tobytes() for observation in observations)
        return observations

    with monkeypatch.context() as patch:
        patch.setattr(VectorEnvironment, "reset", remember)
        evaluate(config)
    return seen


def evaluate(config: RunConfig) -> EvaluationResult:
    spec = environment_spec(config.environment)
    evaluator = Evaluator(config, spec, config.evaluation)
    weights = Policy(config, spec).initial_parameters()
    try:
        return evaluator.run(WeightSnapshot(1, weights))
    finally:
        evaluator.close()


def test_evaluations_of_near_seeds_share_no_start(cartpole: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(cartpole, evaluation=EvaluationConfig(episodes=20, environments=20))
    first, second = (starts(replace(config, seed=seed), monkeypatch) for seed in (1, 2))
    assert len(first) == len(second) == 20
    assert not first & second


def test_greedy_play_from_one_start_is_one_game_however_often_it_is_played(pong: RunConfig) -> None:
    environment = EnvironmentConfig(max_noops=0, max_episode_frames=200)
    network = NetworkConfig(centre_observations=False)
    config = replace(pong, environment=environment, network=network)
    greedy = evaluate(replace(config, evaluation=EvaluationConfig(episodes=6, environments=2, policy="greedy")))
    assert greedy.games is not None
    assert greedy.games.tolist() == [0] * 6
    # The same start with actions that are drawn.
    sampled = evaluate(replace(config, evaluation=EvaluationConfig(episodes=6, environments=2)))
    assert sampled.games is not None
    assert sorted(sampled.games.tolist()) == list(range(6))


def test_starts_that_differ_are_games_of_their_own(cartpole: RunConfig) -> None:
    """All weights 0: the greedy action is always the first, and only the starts differ."""
    config = replace(cartpole, evaluation=EvaluationConfig(episodes=8, environments=2, policy="greedy"))
    spec = environment_spec(config.environment)
    evaluator = Evaluator(config, spec, config.evaluation)
    result = evaluator.run(WeightSnapshot(1, np.zeros(evaluator.layout.size, np.float32)))
    assert result.games is not None
    assert result.games.tolist() == list(range(8))
    evaluator.close()
