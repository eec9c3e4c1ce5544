"""Generated settings: each trains for an update, or is refused in one line, before anything has started."""

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import launch.train
from shared.config import (
    ActorConfig,
    CheckpointConfig,
    EnvironmentConfig,
    EvaluationConfig,
    ExplorationConfig,
    LearnerConfig,
    MethodConfig,
    NetworkConfig,
    OptimizerConfig,
    RunConfig,
    SupervisionConfig,
)
from shared.errors import ConfigurationError

pytestmark = pytest.mark.chaos

_EXAMPLES = 2_000
# Building graphs takes a third of a second, so only a part of the accepted settings really trains.
_TRAINED_EVERY = 3

_COUNT = [-1, 0, 1, 2, 3]
_NUMBER = [-1.0, 0.0, 1e-3, 0.5, 1.0, 10.0, math.nan, math.inf]
_FLAG = [False, True]
POOLS: dict[type, dict[str, list[Any]]] = {
    EnvironmentConfig: {
        "id": ["CartPole-v1", "CartPole-v0", "Pendulum-v1", "MountainCarContinuous-v0", "ALE/Pong-v5", "Pong", "", "?"],
        "frame_skip": [0, 1, 4],
        "clip_rewards": _FLAG,
        "reward_scale": _NUMBER,
        "sticky_action_probability": _NUMBER,
        "terminal_on_life_loss": _FLAG,
    },
    NetworkConfig: {
        "name": ["mlp", "a3c_cnn", "nature_cnn"],
        "hidden_sizes": [(), (0,), (4,), (4, 3)],
        "activation": ["tanh", "relu"],
        "layer_norm": _FLAG,
        "observation_scaling": ["none", "bounds", "running"],
    },
    MethodConfig: {
        "name": ["actor_critic", "q_learning", "sarsa", "dqn", ""],
        "n_step": [None, 0, 1, 2, 7],
        "discount": _NUMBER,
        "return_lambda": _NUMBER,
        "entropy_cost": _NUMBER,
        "final_entropy_cost": _NUMBER,
        "value_cost": _NUMBER,
        "standardise_advantages": _FLAG,
        "target_network": _FLAG,
        "target_interval_agent_steps": _COUNT,
    },
    ExplorationConfig: {
        "final_epsilons": [(), (0.1,), (0.1, 0.5), (2.0,)],
        "annealing_frames": _COUNT,
        "noise": ["independent", "state_dependent"],
        "initial_log_std": _NUMBER,
    },
    OptimizerConfig: {
        "name": ["rmsprop", "adam", "sgd"],
        "learning_rate": _NUMBER,
        "schedule": ["linear", "constant"],
        "decay": _NUMBER,
        "epsilon": _NUMBER,
        "bias_correction": _FLAG,
        "max_gradient_norm": [None, *_NUMBER],
    },
    LearnerConfig: {
        "gradients_per_update": _COUNT,
        "accumulation": ["sum", "mean"],
        "max_policy_lag": [None, *_COUNT],
        "device": ["auto", "cpu", "gpu"],
    },
    ActorConfig: {
        "environments": _COUNT,
        "unroll_length": [-1, 0, 1, 3, 5],
        "calls_in_flight": _COUNT,
    },
    EvaluationConfig: {"every_frames": [-1, 0, 50], "episodes": [0, 1], "environments": [0, 1, 2]},
    CheckpointConfig: {"every_seconds": _NUMBER, "keep": _COUNT, "exact": _FLAG},
    SupervisionConfig: {"max_restarts": _COUNT, "hang_seconds": _NUMBER},
    RunConfig: {
        "actors": ["auto", *_COUNT],
        "total_frames": [0, 1, 20],
        "stop_at_return": [None, *_NUMBER],
        "stop_measure": ["training", "evaluation"],
        "stop_after_seconds": [None, *_NUMBER],
        "seed": [-1, 0, 1, 2**40],
        "lockstep": _FLAG,
    },
}
# From these most combinations of the others can train.
_PLAIN = {
    EnvironmentConfig: {"id": "CartPole-v1", "frame_skip": 1, "clip_rewards": False},
    NetworkConfig: {"name": "mlp", "hidden_sizes": (4,)},
    ActorConfig: {"environments": 2, "unroll_length": 3},
    RunConfig: {"actors": 1, "total_frames": 1, "executor": "inline"},
}


@st.composite
def changes(draw: st.DrawFn) -> dict[tuple[type, str], Any]:
    names = [(kind, name) for kind, pool in POOLS.items() for name in pool]
    chosen = draw(st.lists(st.sampled_from(names), max_size=5, unique=True))
    return {(kind, name): draw(st.sampled_from(POOLS[kind][name])) for kind, name in chosen}


def build(changed: dict[tuple[type, str], Any]) -> RunConfig:
    def settings_of(kind: type) -> dict[str, Any]:
        return {**_PLAIN.get(kind, {}), **{name: value for (k, name), value in changed.items() if k is kind}}

    # EnvironmentConfig is the section `environment`, and so on.
    sections = {kind.__name__[:-6].lower(): kind(**settings_of(kind)) for kind in POOLS if kind is not RunConfig}
    return RunConfig(**sections, **settings_of(RunConfig))


@pytest.mark.timeout(1_200)
def test_settings_train_for_an_update_or_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    really_train = launch.train._train_inline
    counts, folders = Counter[str](), itertools.count()

    def train_now_and_then(*arguments: Any) -> dict[str, Any]:
        counts["accepted"] += 1
        if counts["accepted"] % _TRAINED_EVERY:
            return {}
        counts["trained"] += 1
        return really_train(*arguments)

    monkeypatch.setattr(launch.train, "_train_inline", train_now_and_then)

    @settings(
        max_examples=_EXAMPLES, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(changes())
    def try_settings(changed: dict[tuple[type, str], Any]) -> None:
        folder = tmp_path / str(next(folders))
        try:
            launch.train.train(build(changed), folder, lambda _event: None, preset="fuzz")
        except ConfigurationError as error:
            lines = str(error).splitlines()
            counts["refused"] += 1
            assert (len(lines), folder.exists()) == (1, False), lines

    try_settings()
    with capsys.disabled():
        print(f"\n{dict(counts)}")
    assert counts["accepted"] + counts["refused"] >= _EXAMPLES
    assert counts["trained"] > 20
