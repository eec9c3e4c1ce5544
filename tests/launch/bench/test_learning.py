"""What bench learning compares, what it makes of its runs, and that the same command goes on after an interrupt."""

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_for

from launch.bench import learning as module
from launch.bench.learning import Contender, Study, contenders_of, run_left, summarise
from launch.cli import main
from launch.commands.seeds import PlannedRun
from launch.output import write_json
from launch.presets import PRESETS
from launch.run.folder import FolderLock, RunFolder
from shared.errors import ConfigurationError

PONG = PRESETS["pong"].config


def test_each_preset_is_compared_as_typed_and_with_each_variant() -> None:
    typed = ["--mark=5", "--actors", "2", "--compare=--actors 3", "--compare=--optimizer.learning-rate 2e-3"]
    _, found = contenders_of(["pong", "breakout", *typed])
    variants = ("", " --actors 3", " --optimizer.learning-rate 2e-3")
    assert [c.name for c in found] == [preset + variant for preset in ("pong", "breakout") for variant in variants]
    assert [c.config.actors for c in found] == [2, 3, 2, 2, 3, 2]
    assert [c.config.optimizer.learning_rate for c in found] == [1e-3, 1e-3, 2e-3] * 2
    assert {c.config.stop_at_return for c in found} == {5.0}
    assert found[3].config.environment.id == "ALE/Breakout-v5"
    assert found[2].folder == "pong-optimizer.learning-rate-2e-3"


def test_a_run_ends_at_the_mark_or_when_its_time_is_up() -> None:
    def limits(*typed: str) -> tuple[float | None, float | None]:
        config = contenders_of(["pong", *typed])[1][0].config
        return config.stop_at_return, config.stop_after_seconds

    assert limits() == (18.0, None), "the preset's own"
    assert limits("--mark=20") == (20.0, None)
    # The preset's mark would end a run before its time.
    assert limits("--minutes=2") == (None, 120.0)
    assert limits("--mark=20", "--minutes=2") == (20.0, 120.0)


def ended(
    folder: Path, status: str, seconds: float | None, mean: float | None, frames: int = PONG.total_frames
) -> None:
    """A run with its summary."""
    folder.mkdir(parents=True)
    RunFolder(folder).write_config(PONG)
    moment = {"seconds": seconds, "frames": 4_000_000, "agent_steps": 1_000_000, "evaluation_mean_return": mean}
    summary = {
        "status": status,
        "confirmed_crossing": None if seconds is None else moment,
        "mean_return_100": mean,
        "frames": frames,
        "agent_steps_sampled": frames // 4,
        "wall_seconds": 900.0,
        "agent_steps_per_second": 1_389.0,
    }
    # NaN as version 0.5 wrote it.
    (folder / "summary.json").write_text(json.dumps(summary))


def test_a_seed_that_misses_the_mark_takes_longer_than_any_other(tmp_path: Path) -> None:
    contender = Contender("pong", "pong", PONG)
    study = Study(tmp_path, [contender], [1, 2, 3, 4, 5])
    ended(study.run(contender, 1), "return_reached", 300.0, 18.5)
    ended(study.run(contender, 2), "return_reached", 240.0, 19.5)
    ended(study.run(contender, 3), "frames_reached", None, -20.0)
    ended(study.run(contender, 4), "interrupted", None, 1.0, frames=5_000_000)
    found = summarise(study)["contenders"][0]
    assert (found["runs_ended"], found["runs_that_reached_the_mark"]) == (3, 2)
    assert found["over_seeds"]["seconds_to_mark"] == {"median": 300.0, "least": 240.0, "most": None}
    # Only runs that were evaluated at the target count; a mean return exists for all that have ended.
    assert found["over_seeds"]["evaluation_mean_return"] == {"median": 19.0, "least": 18.5, "most": 19.5}
    assert found["over_seeds"]["mean_return_100"]["least"] == -20.0
    assert [run["status"] for run in found["runs"]][3:] == ["interrupted", "not run"]
    # Between a time and none there is no median.
    halves = summarise(study._replace(seeds=[1, 3]))["contenders"][0]["over_seeds"]["seconds_to_mark"]
    assert halves == {"median": None, "least": 300.0, "most": None}


def test_a_run_without_a_finite_return_is_in_the_study_without_one(tmp_path: Path) -> None:
    """As version 0.5 wrote it, and as null."""
    contender = Contender("pong", "pong", PONG)
    study = Study(tmp_path, [contender], [1, 2, 3])
    ended(study.run(contender, 1), "frames_reached", None, float("nan"))
    ended(study.run(contender, 2), "frames_reached", None, None)
    ended(study.run(contender, 3), "return_reached", 300.0, 18.5)
    result = summarise(study)
    assert result["contenders"][0]["over_seeds"]["mean_return_100"] == {"median": 18.5, "least": 18.5, "most": 18.5}
    write_json(tmp_path / "learning.json", result)
    assert json.loads((tmp_path / "learning.json").read_text(), parse_constant=pytest.fail) == result


def test_what_is_left_of_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "seed-1"
    run = PlannedRun("pong, seed 1", PONG, folder, "pong")
    assert run_left(run) == run
    ended(folder, "return_reached", 300.0, 18.5)
    assert run_left(run) is None
    with pytest.raises(ConfigurationError, match="has a run with actors auto, and not 3; name another folder"):
        run_left(run._replace(config=replace(PONG, actors=3)))
    shutil.rmtree(folder)
    ended(folder, "interrupted", None, 1.0, frames=5_000_000)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "1.index").touch()
    assert run_left(run) == run._replace(resume=True)
    with FolderLock(folder), pytest.raises(ConfigurationError, match="in use"):
        run_left(run)
    (folder / "checkpoints" / "1.index").unlink()
    # Without a checkpoint nothing can be gone on with: it is trained from its beginning.
    assert run_left(run) == run
    assert not folder.exists()


@pytest.mark.slow
def test_an_interrupted_study_goes_on_by_the_same_command(tmp_path: Path) -> None:
    settings = "--executor inline --actors 1 --evaluation.every-frames 0 --stop-measure training"
    limits = "--minutes 9 --total-frames 60000"
    command = f"bench learning cartpole --seeds 1,2 {limits} {settings} --output {tmp_path}".split()
    first = tmp_path / "cartpole" / "seed-1"
    rows = first / "metrics.jsonl"
    line = [sys.executable, "-m", "launch.cli", *command]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as bench:
        wait_for(lambda: rows.is_file() and rows.stat().st_size, "the first row", process=bench)
        bench.send_signal(signal.SIGINT)
        output, _ = bench.communicate(timeout=120)
    assert bench.returncode == 130, output
    assert "the same command goes on" in output
    assert "Traceback" not in output

    def study() -> dict[str, Any]:
        return json.loads((tmp_path / "learning.json").read_text())["contenders"][0]

    assert [run["status"] for run in study()["runs"]] == ["interrupted", "not run"]
    manifest = (first / "manifest.json").read_bytes()
    assert main(command) == 0
    assert study()["runs_ended"] == 2
    assert (first / "manifest.json").read_bytes() == manifest, "resumed, and not begun anew"


def test_a_study_that_is_interrupted_before_its_first_run_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> list[int]:
        with arguments[-1].training():
            signal.raise_signal(signal.SIGINT)
        return []

    monkeypatch.setattr(module, "train_in_turn", interrupted)
    study = tmp_path / "study"
    assert main(f"bench learning cartpole --seeds 1 --output {study}".split()) == 130
    (contender,) = json.loads((study / "learning.json").read_text())["contenders"]
    assert [run["status"] for run in contender["runs"]] == ["not run"]
