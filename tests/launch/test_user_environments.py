"""Code of users around the steps of an environment: constructors, threads, `close`, and episodes without an end."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from launch.presets.settings_files import with_settings
from launch.run.events import Event, Message
from launch.train import Result, train
from shared.config import RunConfig

_QUICK: dict[str, Any] = {
    "executor": "inline",
    "actors": 1,
    "network.name": "mlp",
    "network.hidden_sizes": (8,),
    "actor.environments": 2,
    "actor.unroll_length": 5,
    "environment.frame_skip": 1,
    "total_frames": 200,
}


class Awkward(gymnasium.Env):
    """Changes to another folder, is bound to the thread that makes it, and cannot be closed."""

    observation_space, action_space = Box(-1, 1, (2,), np.float32), Discrete(2)

    def __init__(self, folder: str) -> None:
        os.chdir(folder)
        self._thread = threading.get_ident()

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed, options=options)
        assert threading.get_ident() == self._thread
        self._t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:  # noqa: ARG002
        assert threading.get_ident() == self._thread
        self._t += 1
        return np.zeros(2, np.float32), 1.0, self._t == 10, False, {}

    def close(self) -> None:
        raise AttributeError("no viewer")


class Endless(Awkward):
    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return *super().step(action)[:2], False, False, {}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    gymnasium.register("Awkward-v0", Awkward)
    gymnasium.register("Endless-v0", Endless)
    yield
    for name in ("Awkward-v0", "Endless-v0"):
        gymnasium.registry.pop(name)


def test_an_awkward_environment_is_trained_into_the_folder_that_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "simulator").mkdir()
    monkeypatch.chdir(tmp_path)
    options = {"folder": str(tmp_path / "simulator")}
    config = with_settings(RunConfig(), _QUICK | {"environment.id": "Awkward-v0", "environment.options": options})
    result: Result = train(config, Path("run"), lambda _: None)
    assert Path.cwd() == tmp_path / "simulator", "the copies of training have changed it"
    # Written after its environments were closed, which raised an error.
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary == result.summary
    assert summary["status"] == "frames_reached"
    assert list((tmp_path / "run" / "checkpoints").glob(f"update-{summary['updates']}.index"))
    assert not list((tmp_path / "simulator").iterdir())


def test_an_evaluation_without_an_end_says_what_it_waits_for_and_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.evaluator._WAIT_SECONDS", 0.0)
    lines: list[str] = []

    def on_event(event: Event) -> bool:
        if isinstance(event, Message) and "no episode has ended" in event.text:
            lines.append(event.text)
        # False stops the run.
        return not lines

    settings = {"environment.id": "Endless-v0", "total_frames": 10**9, "evaluation.every_frames": 100}
    result = train(with_settings(RunConfig(), _QUICK | settings), tmp_path / "run", on_event)
    assert "100 are still to end" in lines[0]
    assert "gymnasium.wrappers:TimeLimit,max_episode_steps=N" in lines[0]
    assert result.status == "interrupted"
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["frames"] >= 100
