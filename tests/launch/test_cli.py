"""The command line from end to end: its exit codes, its files, its help."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launch.checks import check_network
from launch.cli import main
from launch.loop.inline import InlineExecutor
from launch.machine import automatic_actors, thread_budget
from launch.presets import PRESETS
from launch.run.folder import FolderLock, RunFolder
from shared.config import RunConfig
from shared.errors import ConfigurationError


def test_a_run_folder_is_not_overwritten_and_not_shared(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "something").touch()
    assert main(["train", "cartpole", "--executor", "inline", "--run-dir", str(tmp_path)]) == 2
    assert f"go on with it: --resume {tmp_path}" in capsys.readouterr().err
    with FolderLock(tmp_path), pytest.raises(ConfigurationError, match="in use"), FolderLock(tmp_path):
        pass


def test_train_evaluate_resume_inline(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run, result = tmp_path / "run", tmp_path / "result.json"
    small = ["--executor", "inline", "--total-frames", "1k", "--actor.environments", "4", "--actor.unroll-length", "5"]
    assert main(["train", "cartpole", *small, "--run-dir", str(run), "--json", str(result)]) == 0
    summary = json.loads(result.read_text())
    assert summary == json.loads((run / "summary.json").read_text())
    assert summary["frames"] >= 1000
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["frames"] == summary["frames"]
    assert list(run.glob("events.out.tfevents.*"))
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["environment_protocol"]["id"] == "CartPole-v1"
    assert manifest["versions"]["tensorflow"]
    assert "tributary evaluate" in capsys.readouterr().out

    assert main(["evaluate", str(run), "--episodes", "3", "--json", str(result)]) == 0
    assert len(json.loads(result.read_text())["returns"]) == 3

    assert main(["train", "--resume", str(run), "--total-frames", "1500"]) == 0
    assert json.loads((run / "summary.json").read_text())["frames"] >= 1500
    assert main(["train", "--resume", str(run), "--network.hidden-sizes", "32"]) == 2
    assert "of another network" in capsys.readouterr().err
    assert main(["train", "--resume", str(run), "--optimizer.name", "adam"]) == 2
    assert "was made with rmsprop; start a new run" in capsys.readouterr().err
    assert main(["train", "--resume", str(run), "--method.name", "sarsa"]) == 2
    assert capsys.readouterr().err.endswith("was made with actor_critic; start a new run\n")
    for change in ("frame-skip 2", "options max_episode_steps 50", "id MountainCar-v0"):
        assert main(["train", "--resume", str(run), "--total-frames", "3000", *f"--environment.{change}".split()]) == 2
        line = capsys.readouterr().err
        assert line.startswith(f"error: --environment.{change.split()[0]} ")
        assert line.endswith(f"or start a new run from its weights: --start-from {run}\n")
        assert line.count("\n") == 1
    assert RunFolder(run).read_config().network == PRESETS["cartpole"].config.network


def test_a_run_from_before_a_target_network_could_be_left_out_goes_on_with_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run = tmp_path / "run"
    small = "--executor inline --actors 1 --total-frames 1k --network.hidden-sizes 8 --evaluation.every-frames 0"
    train = ["train", "cartpole-q", *small.split(), "--stop-measure", "training", "--stop-at-return", "None"]
    assert main([*train, "--run-dir", str(run)]) == 0
    before = json.loads((run / "config.json").read_text())
    assert before["method"].pop("target_network") is True
    (run / "config.json").write_text(json.dumps(before))
    capsys.readouterr()
    assert main(["train", "--resume", str(run), "--method.no-target-network"]) == 2
    expected = f"error: --method.target-network False: the checkpoint in {run} was made with True; start a new run\n"
    assert capsys.readouterr().err == expected
    assert main(["train", "--resume", str(run), "--total-frames", "2k"]) == 0
    assert json.loads((run / "summary.json").read_text())["frames"] >= 2000
    assert RunFolder(run).read_config().method.uses_target_network


def test_a_run_that_learned_nothing_is_saved_as_failed_and_ends_with_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No actor ever reports.
    monkeypatch.setattr(InlineExecutor, "next_completion", lambda self: self._calls.clear())
    line = f"train cartpole --executor inline --actors 1 --stop-after-seconds 0.001 --run-dir {tmp_path / 'run'}"
    assert main(line.split()) == 1
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


def test_a_replay_that_does_not_fit_is_one_line_and_saved(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    mistake = "line 4 is 'report 2', which nothing under way fits"
    order, run = tmp_path / "order.txt", tmp_path / "run"
    order.write_text("version 2\nactors 0 1\nreport 0\nreport 2\n")
    small = "--executor inline --actors 2 --actor.environments 4 --actor.unroll-length 5"
    line = f"train cartpole {small} --replay-arrivals {order} --run-dir {run} --json {tmp_path}/result.json"
    assert main(line.split()) == 1
    out = capsys.readouterr().out
    assert f"training failed: --replay-arrivals {order}: {mistake}" in out
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["updates"]) == ("failed", 1)
    assert json.loads((tmp_path / "result.json").read_text()) == summary
    assert mistake in (run / "log.txt").read_text()
    assert main(["train", "--resume", str(run), "--total-frames", "100"]) == 0


def test_cores_are_divided_on_purpose() -> None:
    assert [automatic_actors(cores) for cores in (1, 2, 3, 4, 16)] == [1, 2, 3, 3, 15]
    config = RunConfig(actors=3)
    here = len(os.sched_getaffinity(0))
    assert thread_budget(replace(config, actors=here)).warning() is None
    assert "share" in (thread_budget(replace(config, actors=here + 1)).warning() or "")


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("help", "usage: tributary COMMAND"),
        ("help help", "usage: tributary COMMAND"),
        ("help train", "usage: tributary train"),
        ("help train cartpole", "usage: tributary train"),
        ("help bench", "usage: tributary bench WHAT"),
        ("help plan", "usage: tributary plan"),
        ("train pong --seed --help", "usage: tributary train"),
        ("bench learning --bogus 3 --help", "usage: tributary bench learning"),
        ("help presets", "usage: tributary presets"),
        ("--version", "tributary 0."),
    ],
)
def test_help_and_version(command: str, shown: str, capsys: pytest.CaptureFixture) -> None:
    assert main(command.split()) == 0
    assert capsys.readouterr().out.startswith(shown)


@pytest.mark.parametrize("command", ["--version", "--help", "help train", "evaluate --help", "runs --help"])
def test_help_imports_nothing_that_is_slow(command: str) -> None:
    """Neither what learns, nor what plays, measures and draws."""
    slow = {"tensorflow", "ray", "gymnasium", "asyncio", "matplotlib", "av", "launch.bench"}
    check = f"import sys, launch.cli; launch.cli.main({command.split()})\nsys.exit(str({slow} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert result.stderr.strip() == "set()"


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_name_environments_that_exist(preset: str) -> None:
    from actors.environments import environment_spec

    config = PRESETS[preset].config
    check_network(config, environment_spec(config.environment))


def test_a_timeout_of_the_training_itself_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is not taken for that of the wait for the next look at it."""

    def times_out(_session: object) -> None:
        raise TimeoutError("the simulator does not answer")

    monkeypatch.setattr("launch.run.session.TrainingSession.run", times_out)
    with pytest.raises(TimeoutError, match="the simulator does not answer"):
        main(f"train cartpole --executor inline --actors 1 --run-dir {tmp_path}/run".split())
