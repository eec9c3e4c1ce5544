"""`tributary runs`, and `tributary stop` of a run in another process."""

import io
import json
import os
import re
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console
from waiting import UNTIL_FRAMES
from watched_processes import Watched
from written_runs import written_run

from launch.cli import main
from launch.commands.runs import runs_table
from launch.files import write_json
from launch.run.lock import holder_of, lock_folder
from launch.run.summary import run_status
from shared.config import RunConfig


def made(folder: Path, config: RunConfig, **row: float) -> None:
    written_run(folder, [row], config)
    write_json(folder / "summary.json", {"status": "frames_reached", **row})


def lines(folder: Path, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    runs = [run_status(path) for path in sorted(folder.iterdir())]
    console.print(runs_table(runs, folder, console), highlight=False)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def shown(folder: Path, width: int) -> list[list[str]]:
    """The cells of each line."""
    return [re.split("  +", line.strip()) for line in lines(folder, width)]


def test_a_narrow_terminal_goes_without_whole_columns(cartpole: RunConfig, tmp_path: Path) -> None:
    row = {"frames": 2_048, "elapsed_seconds": 75.0, "mean_return_100": 144.9, "episodes": 57}
    made(tmp_path / "cartpole-20261122-015812", cartpole, **row)
    made(tmp_path / "pong", replace(cartpole, total_frames=400_000_000), frames=12_340_000, elapsed_seconds=7_500.0)
    # A name can be copied, also where few episodes have ended. No run has been evaluated.
    assert shown(tmp_path, 80) == [
        ["run", "status", "frames", "return", "h:mm:ss"],
        ["cartpole-20261122-015812", "frames reached", "2,048, 2 %", "144.90 of 57", "0:01:15"],
        ["pong", "frames reached", "12.34 M, 3 %", "-", "2:05:00"],
    ]
    assert shown(tmp_path, 120)[0][1] == "environment"
    made(tmp_path / "cartpole-20261122-015812", cartpole, **row | {"evaluation_return": 491.9})
    values = ["cartpole-20261122-015812", "frames reached", "2,048, 2 %", "144.90 of 57", "491.90"]
    assert shown(tmp_path, 80)[:2] == [["run", "status", "frames", "return", "evaluation"], values]
    for width in (60, 50):
        assert max(map(len, lines(tmp_path, width))) <= width


@pytest.mark.usefixtures("working_folder")
def test_the_newest_runs_are_shown_and_all_are_in_the_file(cartpole: RunConfig, capsys: pytest.CaptureFixture) -> None:
    names = [f"run-{i}" for i in range(22)]
    for seconds, name in enumerate(names):
        made(Path("runs") / name, cartpole)
        os.utime(Path("runs") / name / "manifest.json", (seconds, seconds))
    assert main(["runs", "--json", "found.json"]) == 0
    found = json.loads(Path("found.json").read_text())["runs"]
    assert [Path(run["run"]).name for run in found] == names[::-1]
    shown = capsys.readouterr().out
    assert ("run-2 " in shown, "run-1 " in shown, "2 more runs: list them with --all" in shown) == (True, False, True)
    assert main(["runs", "--all"]) == 0
    assert "run-0 " in capsys.readouterr().out


def test_what_is_not_shown_is_in_the_file(working_folder: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["runs", "--json", "none.json"]) == 0
    assert "tributary train begins one" in capsys.readouterr().out
    assert json.loads(Path("none.json").read_text()) == {"runs": [], "left_out": []}
    folder = working_folder / "runs" / "damaged"
    folder.mkdir(parents=True)
    for name in ("config.json", "manifest.json"):
        (folder / name).write_text("{")
    assert main(["runs", "--json", "one.json"]) == 0
    found = json.loads(Path("one.json").read_text())
    ((run, reason),) = (left_out.values() for left_out in found["left_out"])
    assert (found["runs"], run) == ([], str(folder))
    assert "config.json cannot be read" in reason
    # Another user's, or of a failing disk: a file whose reading is an error for root, too.
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("/proc/self/mem")
    assert main(["runs"]) == 0
    assert "config.json cannot be read: [Errno 5]" in capsys.readouterr().out


TRIBUTARY = [sys.executable, "-m", "launch.cli"]
SMALL = f"--executor inline --actors 1 --actor.environments 4 --log-every-seconds 0.2 {UNTIL_FRAMES}"


def runs_in(folder: Path, tmp_path: Path) -> list[dict[str, Any]]:
    file = tmp_path / "runs.json"
    assert main(["runs", str(folder), "--json", str(file)]) == 0
    return json.loads(file.read_text())["runs"]


def test_a_run_of_another_process_is_listed_and_stopped(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "one"
    command = [*TRIBUTARY, *f"train cartpole {SMALL} --total-frames 100M --run-dir {run}".split()]
    with Watched(command, tmp_path / "log", start_new_session=True) as training:
        training.wait_for(
            # The last file of a new folder.
            lambda: (run / "manifest.json").exists() and (runs_in(run.parent, tmp_path)[0]["frames"] or 0) > 0,
            "a row",
        )
        (listed,) = runs_in(run.parent, tmp_path)
        expected = ("running", training.process.pid, 100_000_000)
        assert (listed["status"], listed["pid"], listed["total_frames"]) == expected
        assert main(["stop", str(run)]) == 0
        training.end(130)
    assert holder_of(run) is None
    (listed,) = runs_in(run.parent, tmp_path)
    assert listed["status"] == "interrupted"


@pytest.mark.parametrize(
    ("changed", "host"),
    [({"machine": "another boot"}, socket.gethostname()), ({"machine": None, "host": "elsewhere"}, "elsewhere")],
)
def test_no_stop_elsewhere(changed: dict[str, Any], host: str, tmp_path: Path, refused: Callable[[str], str]) -> None:
    """Containers may share a host name, and a process id would name another process here."""
    assert "no process trains this run" in refused(f"stop {tmp_path}")
    lock = lock_folder(tmp_path)
    file = tmp_path / ".lock"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    assert f"runs on {host}, process {os.getpid()}: stop it there" in refused(f"stop {tmp_path}")
    lock.close()


def test_a_run_of_another_user_is_not_stopped(tmp_path: Path, monkeypatch, refused: Callable[[str], str]) -> None:
    with lock_folder(tmp_path):
        monkeypatch.setattr("launch.commands.runs.os.kill", Mock(side_effect=PermissionError))
        assert f"process {os.getpid()} is of another user" in refused(f"stop {tmp_path}")


def test_a_name_that_is_too_long_is_one_line(refused: Callable[[str], str]) -> None:
    assert "cannot be looked at: File name too long" in refused(f"evaluate {'x' * 300}")
