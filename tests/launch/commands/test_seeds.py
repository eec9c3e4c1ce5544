"""Several seeds of one setting: their runs, their summary, an interrupt."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from namesakes import write_namesakes

from launch.cli import main
from launch.commands.seeds import parse_seeds
from shared.errors import ConfigurationError

SMALL = (
    "train cartpole --executor inline --actors 1 --stop-at-return None --stop-measure training "
    "--evaluation.every-frames 0"
)


def test_seeds_are_a_list_or_a_range() -> None:
    assert parse_seeds("3,1") == [3, 1]
    assert parse_seeds("1-3, 7") == [1, 2, 3, 7]
    for wrong in ("", "a", "1,1", "1-", "3-1", "-4"):
        with pytest.raises(ConfigurationError, match="--seeds"):
            parse_seeds(wrong)


def test_each_seed_has_its_run_and_all_have_one_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And files with the names of our packages, where the user stands, are not in the way."""
    write_namesakes(tmp_path)
    monkeypatch.chdir(tmp_path)
    folder, file = tmp_path / "runs", tmp_path / "summary.json"
    command = f"{SMALL} --total-frames 500 --seeds 1,2 --side-by-side 2 --run-dir runs --json {file}"
    assert main(command.split()) == 0
    summary = json.loads(file.read_text())
    assert summary == json.loads((folder / "summary.json").read_text())
    for seed in (1, 2):
        assert json.loads((folder / f"seed-{seed}" / "config.json").read_text())["seed"] == seed
        assert summary["seeds"][str(seed)]["status"] == "frames_reached"
    frames = [run["frames"] for run in summary["seeds"].values()]
    assert summary["over_seeds"]["frames"]["median"] == sum(frames) / 2
    assert summary.keys() >= {"command", "hardware", "versions"}


def start(folder: Path) -> subprocess.Popen[str]:
    """Two seeds, until the first one has something to go on from."""
    command = [sys.executable, "-m", "launch.cli", *SMALL.split(), "--seeds", "1,2", "--run-dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + 120
    while not list(folder.glob("seed-1/checkpoints/*.index")):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return process


def test_an_interrupt_saves_the_run_under_way_and_starts_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    process = start(folder)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["seeds"]["1"]["status"] == "interrupted"
    assert summary["seeds"]["2"] == {"status": "not run"}


def test_the_run_under_way_saves_and_ends_when_the_command_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    process = start(folder)
    process.kill()
    # The output closes when the run has ended: nobody could stop it any more.
    output, _ = process.communicate(timeout=120)
    assert "Traceback" not in output
    assert json.loads((folder / "seed-1" / "summary.json").read_text())["status"] == "interrupted"
