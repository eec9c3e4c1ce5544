"""The folder of a run, and the weights that a run starts from."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from waiting import UNTIL_FRAMES

from actors.environments import environment_spec
from actors.policy import Policy
from launch import zoo
from launch.cli import main
from launch.run.folder import RunFolder, agent_steps_learned, is_resumable, load_weights
from learner.checkpoint import read_checkpoint
from shared.errors import ConfigurationError
from shared.types import Float32Array


def test_a_new_run_takes_a_folder_that_is_free(tmp_path: Path) -> None:
    RunFolder(tmp_path / "new").check_free()
    (tmp_path / "empty").mkdir()
    RunFolder(tmp_path / "empty").check_free()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="is a file; name a folder"):
        RunFolder(tmp_path / "file").check_free()
    with pytest.raises(ConfigurationError, match=r"exists; name another folder$"):
        RunFolder(tmp_path).check_free()
    (tmp_path / "config.json").touch()
    with pytest.raises(ConfigurationError, match=f"go on with it: --resume {tmp_path}"):
        RunFolder(tmp_path).check_free()


@pytest.mark.parametrize(("file", "resumable"), [("config.json", True), ("seeds.json", True), ("study.json", False)])
def test_runs_and_several_seeds_are_resumed_and_studies_are_not(tmp_path: Path, file: str, *, resumable: bool) -> None:
    (tmp_path / file).write_text("{}")
    assert is_resumable(tmp_path) is resumable


SMALL = f"--executor inline --actors 1 --actor.environments 2 --actor.unroll-length 4 {UNTIL_FRAMES}"


def weights_of(run: str) -> Float32Array:
    folder = RunFolder(zoo.agent_folder(run))
    config = folder.read_config()
    spec = folder.with_observation_mean(config, environment_spec(config.environment))
    return load_weights(folder, "auto", Policy(config, spec).layout)[0].parameters


def first_checkpoint(folder: Path) -> Float32Array:
    run = RunFolder(folder)
    config = run.read_config()
    spec = run.with_observation_mean(config, environment_spec(config.environment))
    for file in run.checkpoints.glob("update-*"):
        if not file.name.startswith("update-0."):
            file.unlink()
    version, parameters = read_checkpoint(run.checkpoints, Policy(config, spec).layout)
    assert version == 0
    return parameters


def test_a_run_starts_from_an_agent_that_ships(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main(f"train --start-from zoo:pong {SMALL} --total-frames 64 --run-dir {run}".split()) == 0
    assert "starts from:  zoo:pong: the weights that were best" in capsys.readouterr().out
    np.testing.assert_array_equal(first_checkpoint(run), weights_of("zoo:pong"))
    # With the mean that these weights were trained with, and in the agent's settings.
    mean = "observation_mean.npy"
    np.testing.assert_array_equal(np.load(run / mean), np.load(zoo.agent_folder("zoo:pong") / mean))
    before, config = (RunFolder(folder).read_config() for folder in (zoo.agent_folder("zoo:pong"), run))
    assert config.optimizer == before.optimizer
    assert config.environment == before.environment
    manifest = json.loads((run / "manifest.json").read_text())
    before = json.loads((zoo.agent_folder("zoo:pong") / "summary.json").read_text())["agent_steps_sampled"]
    assert manifest["started_from"]["run"] == "zoo:pong"
    assert manifest["started_from"]["agent_steps"] == before
    assert manifest["preset"] == "zoo-pong"


def test_it_is_resumed_from_its_own_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main(f"train cartpole --start-from zoo:cartpole {SMALL} --total-frames 400 --run-dir {run}".split()) == 0
    assert json.loads((run / "manifest.json").read_text())["preset"] == "cartpole"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["frames"] >= 400
    assert main(f"train --resume {run} --total-frames 800".split()) == 0
    assert json.loads((run / "summary.json").read_text())["updates"] > summary["updates"]
    config = RunFolder(run).read_config()
    policy = Policy(config, environment_spec(config.environment))
    # It has moved on from there, and not gone back.
    parameters = load_weights(RunFolder(run), "latest", policy.layout)[0].parameters
    assert not np.array_equal(parameters, weights_of("zoo:cartpole"))
    assert np.abs(parameters - weights_of("zoo:cartpole")).mean() < 0.1 * np.abs(weights_of("zoo:cartpole")).mean()


@pytest.mark.slow
def test_each_seed_on_ray_starts_from_the_same_weights(tmp_path: Path) -> None:
    runs, settings = tmp_path / "runs", SMALL.replace("inline", "ray")
    command = f"train cartpole --start-from zoo:cartpole {settings} --total-frames 400 --seeds 1,2 --run-dir {runs}"
    assert main(command.split()) == 0
    for seed in (1, 2):
        np.testing.assert_array_equal(first_checkpoint(runs / f"seed-{seed}"), weights_of("zoo:cartpole"))


def test_what_belongs_to_a_run_is_not_taken_over(working_folder: Path) -> None:
    assert main(f"train cartpole {SMALL} --total-frames 40 --run-dir other".split()) == 0
    other, new = RunFolder(Path("other")), RunFolder(Path("new"))
    storage = f"file://{working_folder}/copy"
    other.write_config(replace(other.read_config(), storage=storage, record_arrivals="order.txt"))
    assert main(["train", "--start-from", "other", "--total-frames", "40", "--run-dir", "new"]) == 0
    assert {entry.name for entry in working_folder.iterdir()} == {"other", "new"}
    # All that was played before counts: also by the run after the next, and of a run that was killed.
    steps = [json.loads(folder.summary.read_text())["agent_steps_sampled"] for folder in (other, new)]
    new.summary.unlink()
    assert agent_steps_learned(new) == sum(steps)
    # The weights are those of its last checkpoint, for want of best ones.
    assert not other.best_weights.exists()
    assert "the last checkpoint" in json.loads(new.manifest.read_text())["started_from"]["weights"]
