"""Environments of all kinds, each trained, evaluated, recorded and exported by command; and presets to their returns.

The first part takes a few minutes of `make slow-test`, the second hours: `make task-test`.
"""

import json
import os
from pathlib import Path

import pytest
from waiting import UNTIL_FRAMES

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
    "ALE/Breakout-v5",
)
PRESETS = ("acrobot", "lunarlander", "halfcheetah", "hopper", "minigrid", "car-racing")


pytestmark = pytest.mark.usefixtures("working_folder")


@pytest.mark.slow
@pytest.mark.usefixtures("short_random_play")
@pytest.mark.parametrize("environment_id", ENVIRONMENTS)
def test_every_command_takes_it(environment_id: str) -> None:
    small = (
        f"--executor inline --actors 1 --total-frames 2000 {UNTIL_FRAMES} --evaluation.environments 2 "
        "--actor.environments 2 --actor.unroll-length 16 --actor.epochs 1 --actor.minibatches 1"
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
