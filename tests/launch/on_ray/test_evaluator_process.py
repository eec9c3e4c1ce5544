"""The evaluator's process, without the process."""

from dataclasses import replace

import numpy as np
import pytest

from actors.environments import environment_spec
from actors.policy import Policy
from launch.on_ray.actor_process import EvaluatorProcess
from shared.config import EvaluationConfig, RunConfig
from shared.types import WeightSnapshot


def test_an_evaluation_whose_film_fails_is_one_all_the_same(
    cartpole: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_display(*_: object) -> None:
        raise RuntimeError("no display")

    monkeypatch.setattr("launch.film.record.film_episode", no_display)
    config = replace(cartpole, executor="ray", evaluation=EvaluationConfig(episodes=2, environments=2, video=True))
    spec = environment_spec(config.environment)
    weights = Policy(config, spec, training=False).initial_parameters()
    result = EvaluatorProcess(config, spec).run(WeightSnapshot(3, np.asarray(weights)), "greedy")
    assert len(result.episodes.returns) == 2
    assert (result.video, result.video_error) == (None, "RuntimeError: no display")
