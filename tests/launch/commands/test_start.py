"""Runs that cannot start: one line, exit code 2, and no folder."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import UNTIL_FRAMES
from watched_processes import without_ray

from actors.environments import environment_spec
from launch.cli import main
from launch.on_ray import cluster
from launch.presets import PRESETS
from launch.run.folder import RunFolder

SMALL = f"train cartpole --actors 2 {UNTIL_FRAMES}"
# Registers an environment in the driver's process, as a user's own script would.
SCRIPT = """
import sys
import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

if __name__ == "__main__":
    gymnasium.register("OnlyHere-v0", entry_point=lambda **options: CartPoleEnv(**options), max_episode_steps=100)
    from launch.cli import main
    sys.exit(main(sys.argv[1:]))
"""
_DEADLINE_SECONDS = 200


def train_by_script(folder: Path, arguments: str) -> subprocess.CompletedProcess:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), *SMALL.split(), "--environment.id", "OnlyHere-v0", *arguments.split()]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=_DEADLINE_SECONDS)


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", ["", " --learner.gradients-per-update 2 --aggregation node"])
def test_an_environment_that_only_the_driver_knows_stops_in_one_line(tmp_path: Path, aggregation: str) -> None:
    ended = train_by_script(tmp_path, f"--stop-after-seconds 120 --run-dir runs/a{aggregation}")
    assert ended.returncode == 2, ended.stdout + ended.stderr
    lines = without_ray(ended.stderr)
    assert len(lines) == 1, ended.stderr
    assert lines[0].startswith("error: actor ")
    assert "does not know --environment.id OnlyHere-v0: NameNotFound" in lines[0]
    assert "actor" not in ended.stdout.replace("2 actors", "")
    assert [entry.name for entry in tmp_path.iterdir()] == ["script.py"]


@pytest.mark.slow
def test_a_resumed_run_that_cannot_start_keeps_its_folder(tmp_path: Path) -> None:
    first = train_by_script(tmp_path, "--executor inline --total-frames 300 --run-dir run")
    assert first.returncode == 0, first.stdout + first.stderr
    saved = {file.name for file in (tmp_path / "run" / "checkpoints").iterdir()}
    command = [sys.executable, "-m", "launch.cli", "train", "--resume", str(tmp_path / "run")]
    script = [sys.executable, str(tmp_path / "script.py"), *command[3:], "--executor", "ray", "--total-frames", "9k"]
    ended = subprocess.run(script, capture_output=True, text=True, check=False, timeout=_DEADLINE_SECONDS)
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert {file.name for file in (tmp_path / "run" / "checkpoints").iterdir()} == saved
    assert RunFolder(tmp_path / "run").read_config().environment.id == "OnlyHere-v0"


def test_a_learner_without_its_gpu_leaves_no_folder(
    working_folder: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[[str], str]
) -> None:
    monkeypatch.setattr(cluster, "connect", lambda *_: None)
    monkeypatch.setattr(cluster.ray, "cluster_resources", dict)
    assert "--learner.device gpu: Ray finds no GPU" in refused(f"{SMALL} --learner.device gpu --run-dir runs/a")
    assert not list(working_folder.iterdir())


def test_what_was_there_before_and_what_was_learned_is_not_discarded(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    spec = environment_spec(PRESETS["cartpole"].config.environment)
    for name, sampled in (("empty", 0), ("made/below", 0), ("other/learned", 7)):
        folder = RunFolder(tmp_path / name)
        folder.create(PRESETS["cartpole"].config, spec, {})
        folder.checkpoints.mkdir()
        folder.summary.write_text(json.dumps({"agent_steps_sampled": sampled}))
        folder.discard()
    assert {entry.name for entry in tmp_path.iterdir()} == {"empty", "other"}
    assert not list((tmp_path / "empty").iterdir())
    assert (tmp_path / "other" / "learned" / "config.json").is_file()


@pytest.mark.parametrize("side_by_side", [1, 2])
def test_seeds_that_cannot_start_leave_no_folder(
    side_by_side: int, working_folder: Path, capsys: pytest.CaptureFixture
) -> None:
    seeds = (
        f"--executor inline --seeds 1,2 --side-by-side {side_by_side} --run-dir runs --environment.id NoSuchThing-v0"
    )
    assert main([*SMALL.split(), *seeds.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "could not start: --environment.id NoSuchThing-v0: no such environment" in line
    assert not list(working_folder.iterdir())
