"""Several seeds of one setting, and runs that cannot start: one line, exit code 2, and no folder."""

import json
import signal
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from accounts import account_of
from namesakes import write_namesakes
from waiting import UNTIL_FRAMES
from watched_processes import Watched

from launch.cli import main
from launch.commands.train import parse_seeds
from launch.interrupts import StopRequest
from launch.presets import PRESETS
from launch.provenance import revision
from launch.run.lock import lock_folder
from launch.train import Result
from shared.config import RunConfig
from shared.errors import ConfigurationError, TrainingFailedError

SMALL = f"train cartpole --executor inline --actors 1 {UNTIL_FRAMES}"


def test_seeds_are_a_list_or_a_range() -> None:
    assert parse_seeds("3,1") == [3, 1]
    assert parse_seeds("1-3, 7") == [1, 2, 3, 7]
    for wrong in ("", "a", "1-", "3-1", "1,5-3", "-4", "1-99999999999", f"1-1{'0' * 20}", f"1,{2**31}"):
        with pytest.raises(ConfigurationError, match=r"--seeds .*: must be seeds like 1,2,3 or 1-10"):
            parse_seeds(wrong)
    assert parse_seeds("1,1-2") == [1, 2]


def test_an_interrupt_after_training_costs_nothing(
    working_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """As while Ray ends."""

    def train(*_: object, stop: StopRequest, **__: object) -> Result:
        with stop.training():
            pass
        raise KeyboardInterrupt

    monkeypatch.setattr("launch.commands.train.train", train)
    assert main(["train", "cartpole", "--run-dir", "run"]) == 130
    assert f"all is saved in {working_folder}/run" in capsys.readouterr().out


def test_seeds_go_on_after_an_interrupt(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture) -> None:
    """And files with the names of our packages, where the user stands, are not in the way."""
    folder, file = tmp_path / "runs", tmp_path / "summary.json"
    line = f"{SMALL} --seeds 1,2 --run-dir {folder}"
    with Watched([sys.executable, "-m", "launch.cli", *line.split()], tmp_path / "log") as seeds:
        seeds.wait_for(lambda: list(folder.glob("seed-1/checkpoints/*.index")), "a checkpoint")
        seeds.process.send_signal(signal.SIGINT)
        seeds.end(130)
    output = seeds.printed()
    assert "Traceback" not in output
    assert f"go on:   the same command with --run-dir {folder}" in output
    interrupted = account_of(folder / "seed-1")
    assert interrupted["status"] == "interrupted"
    assert not (folder / "seed-2").exists()

    # The seeds that are not done go on, with the settings that are typed now, and each is done once.
    frames = interrupted["frames"] + 100
    write_namesakes(tmp_path)
    monkeypatch.chdir(tmp_path)
    again_line = [*line.split(), "--total-frames", str(frames), "--json", str(file)]
    assert main(again_line) == 0
    again = json.loads(file.read_text())
    assert again.keys() >= {"command", "hardware", "versions"}
    assert [seed["run"] for seed in again["seeds"].values()] == [str(folder / f"seed-{seed}") for seed in (1, 2)]
    for seed in (1, 2):
        assert json.loads((folder / f"seed-{seed}" / "config.json").read_text())["seed"] == seed
        assert again["seeds"][str(seed)].items() >= account_of(folder / f"seed-{seed}").items()
        assert again["seeds"][str(seed)]["status"] == "frames_reached"
        assert again["seeds"][str(seed)]["frames"] >= frames
    written = (folder / "seed-1" / "summary.json").stat().st_mtime_ns
    capsys.readouterr()
    assert main(again_line) == 0
    assert capsys.readouterr().out.count("nothing to do: ") == 2
    assert (folder / "seed-1" / "summary.json").stat().st_mtime_ns == written
    # They would be of another study.
    assert main([*again_line, "--method.discount", "0.5"]) == 2
    assert "--method.discount 0.5: the run has 0.99" in capsys.readouterr().err


@pytest.mark.usefixtures("working_folder")
def test_a_seed_that_fails_is_a_failure_and_the_others_are_trained(monkeypatch, capsys: pytest.CaptureFixture) -> None:
    trained = []

    def train(config: RunConfig, folder: Path, *_: object, **__: object) -> Result:
        trained.append((config.seed, folder))
        if config.seed == 1:
            raise TrainingFailedError("the learner died")
        return Result(folder, {"status": "failed" if config.seed == 3 else "frames_reached"})

    monkeypatch.setattr("launch.commands.train.train_in_process", train)
    assert main(["train", "cartpole", "--seeds", "3", "--run-dir", "study"]) == 1
    trained.clear()
    assert main(["train", "cartpole", "--seeds", "1,2", "--run-dir", "study", "--json", "seeds.json"]) == 1
    assert trained == [(seed, Path(f"study/seed-{seed}")) for seed in (1, 2)]
    assert "training failed: the learner died" in capsys.readouterr().out
    assert json.loads(Path("seeds.json").read_text())["seeds"].keys() == {"1", "2"}


def run_of(seed: int, folder: Path, config: RunConfig) -> None:
    """Write the files of a run of another process that has a checkpoint."""
    path = folder / f"seed-{seed}"
    (path / "checkpoints").mkdir(parents=True)
    (path / "config.json").write_bytes(msgspec.json.encode(asdict(replace(config, seed=seed))))
    (path / "manifest.json").write_text("{}")
    (path / "checkpoints" / "update-0.index").touch()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of each seed's call, which trains nothing."""
    seen: list[dict[str, Any]] = []

    def train(config: RunConfig, folder: Path, *_: object, **options: Any) -> Result:
        seen.append(options)
        if options["start_from"]:
            run_of(config.seed, folder.parent, config)
        return Result(folder, {"status": "frames_reached"})

    monkeypatch.setattr("launch.commands.train.train_in_process", train)
    return seen


def test_all_seeds_start_from_the_run_that_was_the_latest(
    working_folder: Path, calls: list[dict[str, Any]], capsys: pytest.CaptureFixture
) -> None:
    run_of(9, Path("runs/before"), PRESETS["cartpole"].config)
    assert main(["train", "cartpole", "--seeds", "1,2", "--start-from", "latest"]) == 0
    latest = working_folder / "runs" / "before" / "seed-9"
    assert [call["start_from"].resolve() for call in calls] == [latest] * 2
    # The latest run is one of the seeds by now.
    (folder,) = (working_folder / "runs").glob("cartpole-*")
    line = "train cartpole --seeds 1,2 --start-from {} --run-dir"
    assert main([*line.format("latest").split(), str(folder)]) == 2
    assert "is a folder that --seeds would write" in capsys.readouterr().err
    # Another run in that folder is none of them.
    assert main([*line.format(latest).split(), "runs/before"]) == 0


@pytest.mark.usefixtures("working_folder")
def test_seeds_keep_what_their_preset_was(calls: list[dict[str, Any]], capsys: pytest.CaptureFixture) -> None:
    """After an upgrade with another preset of that name. What is typed is still checked."""
    config = PRESETS["cartpole"].config
    run_of(1, Path("study"), replace(config, network=replace(config.network, hidden_sizes=(32, 32))))
    Path("study/seed-1/manifest.json").write_text('{"preset": "cartpole"}')
    assert main(["train", "cartpole", "--seeds", "1,2", "--run-dir", "study"]) == 0
    assert [call["resume"] for call in calls] == [True, False]
    assert "seed 1 began: this seed keeps its own --network.hidden-sizes, and seeds that" in capsys.readouterr().out
    line = "train cartpole --seeds 1,2 --run-dir study --network.hidden-sizes 64 64"
    assert main(line.split()) == 2
    assert "the run has (32, 32)" in capsys.readouterr().err
    assert main(["train", "acrobot", "--seeds", "1,2", "--run-dir", "study"]) == 2
    # At one revision an option was forgotten.
    Path("study/seed-1/manifest.json").write_text(f'{{"preset": "cartpole", "revision": "{revision()}"}}')
    assert main(["train", "cartpole", "--seeds", "1,2", "--run-dir", "study"]) == 2
    assert "--network.hidden-sizes" in capsys.readouterr().err


@pytest.mark.usefixtures("working_folder")
def test_seeds_go_on_with_the_modules_of_a_file(calls: list[dict[str, Any]]) -> None:
    """They are permitted as at the start, without --trust-imports."""
    Path("theirs.py").touch()
    Path("mine.toml").write_text('preset = "cartpole"\n[environment]\nimports = ["theirs"]\n')
    config = PRESETS["cartpole"].config
    run_of(1, Path("study"), replace(config, environment=replace(config.environment, imports=("theirs",))))
    assert main(["train", "--config", "mine.toml", "--seeds", "1,2", "--run-dir", "study"]) == 0
    assert [call["resume"] for call in calls] == [True, False]


@pytest.mark.usefixtures("calls")
def test_a_seed_that_was_killed_before_its_first_checkpoint_begins_again(working_folder: Path) -> None:
    run_of(1, Path("study"), PRESETS["cartpole"].config)
    (working_folder / "study/seed-1/checkpoints/update-0.index").unlink()
    with lock_folder(Path("study/seed-1")):
        assert main(["train", "cartpole", "--seeds", "1", "--run-dir", "study"]) == 0
        assert Path("study/seed-1/config.json").exists(), "the folder of a process that runs was taken"
    assert main(["train", "cartpole", "--seeds", "1", "--run-dir", "study"]) == 0
    assert not Path("study/seed-1").exists()
    Path("study/seed-2").mkdir()
    Path("study/seed-2/notes.txt").touch()
    main(["train", "cartpole", "--seeds", "2", "--run-dir", "study"])
    assert Path("study/seed-2/notes.txt").exists(), "a folder that is no run was removed"


def test_bad_seeds_leave_no_folder(working_folder: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(f"{SMALL} --seeds 1,2 --run-dir runs --environment.id NoSuch-v0".split()) == 2
    assert capsys.readouterr().err.startswith("error: --environment.id NoSuch-v0: no such environment")
    assert not list(working_folder.iterdir())


@pytest.mark.usefixtures("working_folder")
def test_a_run_that_fails_has_its_exit_code_and_its_summary(monkeypatch, capsys: pytest.CaptureFixture) -> None:
    def train(_config: RunConfig, folder: Path, *_: object, **__: object) -> None:
        folder.mkdir()
        (folder / "summary.json").write_text('{"status": "failed", "frames": 8}')
        raise TrainingFailedError("the disk is full")

    monkeypatch.setattr("launch.commands.train.train", train)
    assert main(["train", "cartpole", "--run-dir", "run", "--json", "result.json"]) == 1
    assert "training failed: the disk is full" in capsys.readouterr().out
    assert json.loads(Path("result.json").read_text())["frames"] == 8
