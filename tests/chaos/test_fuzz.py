"""Generated settings: each trains for an update, or is refused in one line, before anything has started."""

import itertools
import math
from collections import Counter
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

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

_VALUES: dict[Any, list[Any]] = {
    bool: [False, True],
    int: [-1, 0, 1, 2, 3],
    float: [-1.0, 0.0, 1e-3, 0.5, 1.0, 10.0, math.nan, math.inf],
    NoneType: [None],
}
# Settings with all values of their type.
_TYPED = {
    EnvironmentConfig: "clip_rewards reward_scale sticky_action_probability terminal_on_life_loss",
    NetworkConfig: "activation layer_norm observation_scaling",
    MethodConfig: (
        "discount return_lambda entropy_cost final_entropy_cost value_cost standardise_advantages target_network "
        "target_interval_agent_steps"
    ),
    ExplorationConfig: "annealing_frames noise initial_log_std",
    OptimizerConfig: "learning_rate decay epsilon bias_correction max_gradient_norm",
    LearnerConfig: "gradients_per_update max_policy_lag device",
    ActorConfig: "environments",
    EvaluationConfig: "",
    CheckpointConfig: "every_seconds keep",
    SupervisionConfig: "max_restarts hang_seconds",
    RunConfig: "stop_at_return stop_measure stop_after_seconds",
}
# Settings with values of their own.
_OWN: dict[type, dict[str, list[Any]]] = {
    EnvironmentConfig: {
        "id": ["CartPole-v1", "CartPole-v0", "Pendulum-v1", "MountainCarContinuous-v0", "ALE/Pong-v5", "Pong", "", "?"],
        "frame_skip": [0, 1, 4],
    },
    NetworkConfig: {"name": ["mlp", "a3c_cnn", "nature_cnn"], "hidden_sizes": [(), (0,), (4,), (4, 3)]},
    MethodConfig: {"name": ["actor_critic", "q_learning", "sarsa", "dqn", ""], "n_step": [None, 0, 1, 2, 7]},
    ExplorationConfig: {"final_epsilons": [(), (0.1,), (0.1, 0.5), (2.0,)]},
    OptimizerConfig: {"name": ["rmsprop", "adam", "sgd", ""], "schedule": ["linear", "constant"]},
    ActorConfig: {"unroll_length": [-1, 0, 1, 3, 5]},
    EvaluationConfig: {"every_frames": [-1, 0, 50], "episodes": [0, 1], "environments": [0, 1, 2]},
    RunConfig: {"actors": ["auto", *_VALUES[int]], "total_frames": [0, 1, 20], "seed": [-1, 0, 1, 2**40]},
}


def values_of(kind: type, name: str) -> list[Any]:
    hint = get_type_hints(kind)[name]
    arguments = get_args(hint)
    if get_origin(hint) is Literal:
        return list(arguments)
    return [value for part in arguments or (hint,) for value in _VALUES[part]]


POOLS = {
    kind: {name: values_of(kind, name) for name in names.split()} | _OWN.get(kind, {}) for kind, names in _TYPED.items()
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
