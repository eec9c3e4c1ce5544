"""Training by the command line on other screens than the presets': size, stacked frames, and no mean subtracted."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import UNTIL_FRAMES

from actors.environments import EnvironmentSpec, environment_spec
from actors.policy import Policy
from launch.cli import main
from launch.run.folder import RunFolder, load_weights
from shared.config import RunConfig
from shared.types import Float32Array

# 32 frames a gradient.
SMALL = (
    f"--executor inline --actors 1 --actor.environments 2 --actor.unroll-length 4 {UNTIL_FRAMES} "
    "--environment.max-episode-frames 400 --total-frames 320"
)


def train(folder: Path, settings: str) -> dict[str, Any]:
    assert main(f"train pong {SMALL} {settings} --run-dir {folder}".split()) == 0
    return json.loads((folder / "summary.json").read_text())


def trained(folder: Path) -> tuple[RunConfig, EnvironmentSpec, Policy, Float32Array]:
    """A run's settings, spec, network with its initial weights, and the weights float32 [P] that it ended with."""
    run = RunFolder(folder)
    config = run.read_config()
    spec = run.with_observation_mean(config, environment_spec(config.environment))
    policy = Policy(config, spec)
    return config, spec, policy, load_weights(run, "latest", policy.layout)[0].parameters


@pytest.mark.usefixtures("short_random_play")
@pytest.mark.parametrize(("frame_stack", "screen_size"), [(1, 36), pytest.param(2, 84, marks=pytest.mark.slow)])
def test_a_run_on_another_screen_learns_resumes_and_is_evaluated(
    frame_stack: int, screen_size: int, tmp_path: Path, refused: Callable[[str], str]
) -> None:
    run, result = tmp_path / "run", tmp_path / "evaluation.json"
    summary = train(run, f"--environment.frame-stack {frame_stack} --environment.screen-size {screen_size}")
    assert summary["updates"] >= 10
    shape = (screen_size, screen_size, frame_stack)
    assert np.load(run / "observation_mean.npy").shape == shape
    protocol = json.loads((run / "manifest.json").read_text())["environment_protocol"]
    assert protocol["observation_shape"] == list(shape)
    _, spec, policy, weights = trained(run)
    assert spec.observation_shape == shape
    # The first layer looks at every stacked frame, and what it looks for was learned.
    kernels = [policy.layout.split(values)[0] for values in (policy.initial_parameters(), weights)]
    assert kernels[1].shape == (8, 8, frame_stack, 16)
    assert np.isfinite(weights).all()
    assert np.all(np.abs(kernels[1] - kernels[0]).max(axis=(0, 1, 3)) > 0)
    assert main(f"train --resume {run} --total-frames 480".split()) == 0
    assert json.loads((run / "summary.json").read_text())["updates"] > summary["updates"]
    assert main(f"evaluate {run} --episodes 1 --json {result}".split()) == 0
    described = json.loads(result.read_text())["protocol"]
    assert (described["frame_stack"], described["screen_size"]) == (frame_stack, screen_size)
    # Weights for one screen are none for another.
    other = refused(f"train --resume {run} --total-frames 640 --environment.screen-size 60")
    assert "observation_mean.npy has shape" in other


def test_a_run_without_centring_learns_from_what_the_screen_shows(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    assert train(folder, "--network.no-centre-observations")["updates"] >= 10
    assert not (folder / "observation_mean.npy").exists()
    protocol = json.loads((folder / "manifest.json").read_text())["environment_protocol"]
    assert protocol["mean_of_random_play_subtracted"] is False
    config, spec, policy, weights = trained(folder)
    # Biases start at 0. So a black screen gives nothing where nothing is subtracted, and something where a mean is.
    black = np.zeros((1, *spec.observation_shape), np.uint8)
    assert policy.values(black)[0] == 0.0
    mean = np.full(spec.observation_shape, 87.0, np.float32)
    assert Policy(config, replace(spec, observation_mean=mean)).values(black)[0] != 0.0
    assert not np.array_equal(weights, policy.initial_parameters())
