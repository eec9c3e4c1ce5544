"""Environments of all kinds, each trained, evaluated, recorded and exported by command; presets to their returns.

And what only a memory can do: a cue that is asked for later. A part takes a few minutes of `make slow-test`, the rest
hours: `make task-test`.
"""

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from waiting import UNTIL_FRAMES

from launch.cli import main
from launch.machine import usable_cores

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
PRESETS = ("acrobot", "lunarlander", "halfcheetah", "hopper", "minigrid")


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
    line = f"train {preset} --seed {seed} --stop-after-seconds 1800 --actors {usable_cores()} --run-dir run"
    assert main(line.split()) == 0
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["status"] == "return_reached", summary


class Cue(gymnasium.Env):
    """A cue is seen once, and asked for 20 steps later: nothing else counts.

    Observations are [cue, asked]: the cue is -1 or 1 at the first step and 0 after it, `asked` is 1 at the last one.
    The action there gives 1 if it names the cue (0: -1, 1: 1), else -1; all others give 0. Without a memory 0 is what
    can be expected.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed, options=options)
        self._cue, self._time = int(self.np_random.integers(2)), 0
        return np.array([2 * self._cue - 1, 0], np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._time += 1
        if self._time > 20:
            return np.zeros(2, np.float32), 1.0 if int(action) == self._cue else -1.0, True, False, {}
        return np.array([0, self._time == 20], np.float32), 0.0, False, False, {}


gymnasium.register("Cue-v0", Cue)

CUE = (
    "--executor inline --actors 1 --actor.environments 32 --actor.epochs 4 --actor.minibatches 4 "
    "--method.standardise-advantages --environment.id Cue-v0 --stop-at-return 0.95"
)


def evaluations(arguments: str, status: str) -> list[float]:
    """The mean returns of evaluations of a run of the preset cartpole with these settings, which ends by `status`."""
    assert main(["train", "cartpole", "--run-dir", "run", *arguments.split()]) == 0
    assert json.loads(Path("run/summary.json").read_text())["status"] == status
    rows = map(json.loads, Path("run/metrics.jsonl").read_text().splitlines())
    return [evaluation["mean_return"] for row in rows for evaluation in row["evaluations"]]


SEEDS = [pytest.param(1, marks=pytest.mark.slow), *(pytest.param(s, marks=pytest.mark.tasks) for s in (2, 3))]


@pytest.mark.parametrize("seed", SEEDS)
def test_an_lstm_remembers_a_cue(seed: int) -> None:
    arguments = f"{CUE} --total-frames 1m --seed {seed} --network.recurrent lstm"
    assert evaluations(arguments, "return_reached")[-1] >= 0.95


@pytest.mark.tasks
def test_without_a_memory_it_is_not_learned() -> None:
    """The mean return of 100 games that guess the cue is 0, with a standard error of 0.1."""
    assert max(map(abs, evaluations(f"{CUE} --seed 1 --total-frames 300k", "frames_reached"))) < 0.4
