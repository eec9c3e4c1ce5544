"""Environments of all kinds, each trained, evaluated, recorded and exported by command; and presets to their returns.

The first part takes a few minutes of `make slow-test`, the second hours: `make task-test`.
"""

import json
import os
from pathlib import Path

import pytest

from launch.cli import main

# By the preset that fits the id, or as typed.
ENVIRONMENTS = (
    "CartPole-v1",
    "Acrobot-v1",
    "LunarLander-v3",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "HalfCheetah-v5",
    "Hopper-v5",
    "CarRacing-v3",
    "MiniGrid-Empty-8x8-v0",
    "FrozenLake-v1",
    "Taxi-v4",
    "Blackjack-v1",
    "choices:Choices-v0",
    "ALE/Breakout-v5",
)
PRESETS = ("acrobot", "lunarlander", "halfcheetah", "hopper", "minigrid", "car-racing")

# A user's environment with several choices at once; a choice is right if it repeats the observation.
MODULE = """
import gymnasium
import numpy as np
from gymnasium.spaces import MultiDiscrete

class Choices(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}
    observation_space = action_space = MultiDiscrete([3, 2, 4])

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self._t = 0
        return self._draw(), {}

    def step(self, action):
        reward, self._t = float(np.mean(action == self._shown)), self._t + 1
        return self._draw(), reward, False, self._t == 20, {}

    def render(self):
        return np.repeat(np.repeat((self._shown * 60).astype(np.uint8)[:, None, None], 32, 0), 96, 1).repeat(3, 2)

    def _draw(self):
        self._shown = self.np_random.integers(self.action_space.nvec)
        return self._shown

gymnasium.register("Choices-v0", Choices)
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("choices.py").write_text(MODULE)


@pytest.mark.slow
@pytest.mark.usefixtures("short_random_play")
@pytest.mark.parametrize("environment_id", ENVIRONMENTS)
def test_every_command_takes_it(environment_id: str) -> None:
    small = (
        "--executor inline --actors 1 --total-frames 2000 --stop-at-return None --stop-measure training "
        "--evaluation.every-frames 0 --evaluation.environments 2 --actor.environments 2 --actor.unroll-length 16 "
        "--actor.epochs 1 --actor.minibatches 1"
    )
    assert main(["train", environment_id, *small.split(), "--run-dir", "run"]) == 0
    assert json.loads(Path("run/summary.json").read_text())["updates"] > 0
    # The episodes of an untrained agent may be long.
    assert main(["evaluate", "run", "--episodes", "2", "--weights", "latest"]) == 0
    assert json.loads(Path("run/evaluation-training.json").read_text())["episodes"] == 2
    assert main(["export", "run", "--output", "model", "--weights", "latest"]) == 0
    assert Path("model/model.keras").is_file()
    assert main(["record", "run", "--output", "film.mp4", "--weights", "latest"]) == 0
    assert Path("film.mp4").stat().st_size > 0


@pytest.mark.tasks
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_reaches_its_return(preset: str, seed: int) -> None:
    minutes = 40 if preset == "car-racing" else 30
    line = f"train {preset} --seed {seed} --stop-after-seconds {60 * minutes} --actors {os.cpu_count()} --run-dir run"
    assert main(line.split()) == 0
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["status"] == "return_reached", summary
