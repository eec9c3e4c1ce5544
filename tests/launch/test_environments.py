"""Environments of a user's own: of several spaces, by command; and their constructors, threads, `close`, and no end."""

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from waiting import UNTIL_FRAMES

from launch.cli import main
from launch.presets.settings_files import with_settings
from launch.run.events import Event, Message
from launch.train import Result, train
from shared.config import RunConfig

MODULE = """
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text

class Guess(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, what, render_mode=None):
        self.render_mode, self._what, self._t = render_mode, what, 0
        self.action_space = {
            "choices": MultiDiscrete([3, 2], start=[1, 0]), "switches": MultiBinary(2), "picture": Discrete(2, start=3),
            "both": Discrete(2),
        }[what]
        self.observation_space = {
            "choices": Dict({"seen": self.action_space, "word": Text(9)}),
            "switches": MultiBinary(2),
            "picture": Box(0, 255, (48, 64, 3), np.uint8),
            "both": Dict({"seen": Box(0, 255, (48, 64, 3), np.uint8), "turned": Box(-9, 9, (1,)), "word": Text(9)}),
        }[what]

    def _see(self):
        self._right = self.action_space.sample()
        if self._what == "choices":
            return {"seen": self._right, "word": "word"}
        if self._what == "both":
            # The side that is bright is right, or the other one.
            turned = self.action_space.sample()
            seen = {"seen": self.render(), "turned": np.array([18 * turned - 9], np.float32), "word": "word"}
            self._right = self._right ^ turned
            return seen
        return self.render() if self._what == "picture" else self._right

    def render(self):
        picture = np.zeros((48, 64, 3), np.uint8)
        picture[:, 32 * int(np.ravel(self._right)[0] % 2):][:, :32] = 200
        return picture

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.action_space.seed(seed)
        self._t = 0
        return self._see(), {}

    def step(self, action):
        reward = float(np.mean(np.asarray(action) == self._right))
        self._t += 1
        info = {"right": reward, "name": "Guess"} if self._t == 10 else {"right": -1.0}
        return self._see(), reward, False, self._t == 10, info

for what in ("choices", "switches", "picture", "both"):
    gymnasium.register(f"Guess-{what}-v0", Guess, kwargs={"what": what})
"""
SMALL = f"--executor inline --actors 1 {UNTIL_FRAMES} --optimizer.schedule constant --log-every-seconds 0.5"
CNN = "--network.name a3c_cnn --environment.screen-size 36 --environment.frame-stack 1 --total-frames 3k"
PICTURE = f"{CNN} --optimizer.learning-rate 5e-4"
# What a picture means turns with a number: a sum of what is seen in each cannot be right.
BOTH = (
    f"{CNN} --optimizer.name adam --optimizer.epsilon 1e-5 --optimizer.learning-rate 6e-4 --method.discount 0 "
    "--method.entropy-cost 0.01 --actor.epochs 2 --actor.minibatches 4 --network.observation-scaling bounds"
)


@pytest.mark.usefixtures("working_folder")
@pytest.mark.parametrize(
    ("what", "settings", "inputs", "action", "outputs"),
    [
        ("choices", "--total-frames 8k --environment.normalise-rewards", [None, 5], "several discrete", 5),
        pytest.param("switches", "--total-frames 10k", [None, 2], "several discrete", 4, marks=pytest.mark.slow),
        pytest.param("picture", PICTURE, [None, 36, 36, 1], "discrete", 2, marks=pytest.mark.slow),
        ("both", BOTH, {"image_seen": [None, 36, 36, 1], "vector": [None, 1]}, "discrete", 2),
    ],
)
@pytest.mark.usefixtures("short_random_play")
def test_what_is_seen_is_learned(
    what: str,
    settings: str,
    inputs: list | dict,
    action: str,
    outputs: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("guesses.py").write_text(MODULE)
    line = (
        f"train cartpole {SMALL} {settings} --environment.id guesses:Guess-{what}-v0 --environment.log-info right name "
        f"other --run-dir run"
    )
    try:
        assert main(line.split()) == 0
        out = capsys.readouterr().out
        assert ("note: left out of observations, as it is text: word" in out) == (what in ("choices", "both"))
        assert main(["evaluate", "run", "--episodes", "20", "--weights", "latest"]) == 0
        # About 5 of 10 guesses are right by chance, and with two choices each counts half.
        assert json.loads(Path("run/evaluation-training.json").read_text())["mean_return"] > 9.0
        info = json.loads(Path("run/evaluation-training.json").read_text())["info"]
        assert list(info) == ["right"]
        assert info["right"] > 0.8
        rows = [json.loads(row) for row in Path("run/metrics.jsonl").read_text().splitlines()]
        assert all(0.0 <= row["info/right"] <= 1.0 for row in rows if "info/right" in row)
        assert any("info/right" in row for row in rows)
        assert main(["record", "run", "--output", "film.gif", "--overlay"]) == 0
        assert Path("film.gif").stat().st_size > 0
        assert main(["export", "run", "--output", "model"]) == 0
        described = json.loads(Path("model/model.json").read_text())
        seen = described["inputs"]
        shapes = {name: part["shape"] for name, part in seen["named"].items()} if "named" in seen else seen["shape"]
        assert (shapes, described["action"]["kind"]) == (inputs, action)
        assert described["outputs"]["policy"] == [outputs]
        if action == "several discrete":
            assert main(["train", "cartpole", *line.split()[2:-2], "--method.name", "q_learning"]) == 2
            assert "has several actions at once; use actor_critic" in capsys.readouterr().err
    finally:
        sys.modules.pop("guesses", None)
        for name in ("choices", "switches", "picture", "both"):
            gymnasium.registry.pop(f"Guess-{name}-v0", None)
    assert np.isfinite(json.loads(Path("run/summary.json").read_text())["mean_return_100"])


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
