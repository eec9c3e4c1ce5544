"""Runs small enough to be made once for all tests of what is made of runs."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import UNTIL_FRAMES

from launch.cli import main

# Ray would write one into the home folder, or take that of an earlier cluster of this process.
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

COMMON = f"--executor inline --actors 1 --log-every-seconds 0.05 {UNTIL_FRAMES}"


def _train(folder: Path, settings: str) -> Path:
    assert main(["train", *settings.split(), *COMMON.split(), "--run-dir", str(folder)]) == 0
    return folder


@pytest.fixture(scope="session")
def train() -> Callable[[Path, str], Path]:
    """Trains into a folder with some settings, and returns it."""
    return _train


@pytest.fixture(scope="session")
def cartpole_runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two seeds of one setting."""
    parent = tmp_path_factory.mktemp("cartpole")
    settings = "cartpole --total-frames 3000 --network.hidden-sizes 16 --evaluation.environments 5"
    return [_train(parent / f"seed-{seed}", f"{settings} --seed {seed}") for seed in (1, 2)]


@pytest.fixture(scope="session")
def pong_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few updates of Pong; an episode is 300 frames at most."""
    settings = (
        "pong --total-frames 1500 --environment.max-episode-frames 300 --evaluation.environments 2 "
        "--actor.environments 4"
    )
    with pytest.MonkeyPatch.context() as patch:
        # As `short_random_play`, which is of one test only.
        patch.setattr("actors.environments.vector._STEPS", 40)
        return _train(tmp_path_factory.mktemp("pong") / "run", settings)
