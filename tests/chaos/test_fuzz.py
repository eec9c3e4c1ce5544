"""Generated settings: each trains for an update, or is refused in one line, before anything has started."""

import itertools
import math
from collections import Counter
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import launch.train
from launch.settings.files import KINDS, with_settings
from shared.config import RunConfig
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
# From these most combinations of the others can train.
_PLAIN = {
    "executor": "inline", "actors": 1, "total_frames": 1, "environment.id": "CartPole-v1", "environment.frame_skip": 1,
    "environment.clip_rewards": False, "network.name": "mlp", "network.hidden_sizes": (4,), "actor.environments": 2,
    "actor.unroll_length": 3, "environment.vectorization": "sync",
}  # fmt: skip
# Settings with values of their own; others have all values of their types.
_OWN: dict[str, list[Any]] = {
    "environment.id": ["CartPole-v0", "Pendulum-v1", "MountainCarContinuous-v0", "ALE/Pong-v5", "Pong", "", "?"],
    "environment.frame_skip": [0, 1, 4],
    "environment.clip_rewards": [False, True],
    "network.name": ["mlp", "a3c_cnn", "nature_cnn"],
    "network.hidden_sizes": [(), (0,), (4,), (4, 3)],
    "method.name": ["actor_critic", "q_learning", "sarsa", "dqn", ""],
    "method.n_step": [None, 0, 1, 2, 7],
    "exploration.final_epsilons": [(), (0.1,), (0.1, 0.5), (2.0,)],
    "optimizer.name": ["rmsprop", "adam", "sgd", ""],
    "optimizer.schedule": ["linear", "constant", ""],
    "actor.environments": _VALUES[int],
    "actor.unroll_length": [-1, 0, 1, 3, 5],
    "evaluation.every_frames": [-1, 0, 50],
    "evaluation.episodes": [0, 1],
    "actors": ["auto", *_VALUES[int]],
    "total_frames": [0, 1, 20],
    "seed": [-1, 0, 1, 2**40],
}


def values_of(kind: Any) -> list[Any]:
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [value for part in get_args(kind) or (kind,) for value in _VALUES.get(part, [])]


POOLS = {name: _OWN.get(name) or values_of(kind) for name, kind in KINDS.items() if name in _OWN or name not in _PLAIN}
NAMES = sorted(name for name, pool in POOLS.items() if pool)


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
    @given(st.lists(st.sampled_from(NAMES), max_size=5, unique=True), st.data())
    def try_settings(names: list[str], data: st.DataObject) -> None:
        changed = {name: data.draw(st.sampled_from(POOLS[name])) for name in names}
        folder = tmp_path / str(next(folders))
        try:
            launch.train.train(with_settings(RunConfig(), _PLAIN | changed), folder, lambda _: None, preset="fuzz")
        except ConfigurationError as error:
            lines = str(error).splitlines()
            counts["refused"] += 1
            assert (len(lines), folder.exists()) == (1, False), lines

    try_settings()
    with capsys.disabled():
        print(f"\n{dict(counts)}")
    assert counts["accepted"] + counts["refused"] >= _EXAMPLES
    assert counts["trained"] > 20
