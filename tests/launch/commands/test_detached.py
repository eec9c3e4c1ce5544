"""A run that goes on without its terminal: `train --detach`, `runs`, `attach` and `stop`."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import DEADLINE_SECONDS, UNTIL_FRAMES, wait_for

from launch.cli import main
from launch.commands.runs import StopArguments, stop
from launch.run.folder import FolderLock, holder_of

TRIBUTARY = [sys.executable, "-m", "launch.cli"]
SMALL = f"--executor inline --actors 1 --actor.environments 4 --log-every-seconds 0.2 {UNTIL_FRAMES}"


def runs_in(folder: Path, tmp_path: Path) -> list[dict[str, Any]]:
    file = tmp_path / "runs.json"
    assert main(["runs", str(folder), "--json", str(file)]) == 0
    return json.loads(file.read_text())["runs"]


def test_a_detached_run_is_listed_watched_and_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "runs" / "one"
    assert main(f"train cartpole {SMALL} --total-frames 100M --detach --run-dir {run}".split()) == 0
    assert f"tributary stop {run}" in capsys.readouterr().out
    try:
        holder = holder_of(run)
        assert holder.here
        wait_for(lambda: (runs_in(run.parent, tmp_path)[0]["frames"] or 0) > 0, "a row")
        (listed,) = runs_in(run.parent, tmp_path)
        assert (listed["status"], listed["pid"], listed["total_frames"]) == ("running", holder.pid, 100_000_000)
        attached = subprocess.Popen([*TRIBUTARY, "attach", str(run)], stdout=subprocess.PIPE, text=True)
        assert "Ctrl-C leaves it running" in attached.stdout.readline()
        shown = next(line for line in attached.stdout if "frames" in line and "lag" in line)
        assert "actors 1" in shown
        attached.send_signal(signal.SIGINT)
        assert "it goes on" in attached.communicate(timeout=DEADLINE_SECONDS)[0]
        assert attached.returncode == 0
        assert holder_of(run) == holder, "who looks on does not end it"
    finally:
        assert main(["stop", str(run)]) == 0
    assert holder_of(run) is None
    (listed,) = runs_in(run.parent, tmp_path)
    assert listed["status"] == "interrupted"
    capsys.readouterr()
    assert main(["attach", str(run)]) == 0
    assert f"tributary train --resume {run}" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_is_resumed_by_the_same_words_and_adds_to_its_log(tmp_path: Path) -> None:
    run = tmp_path / "one"
    assert main(f"train cartpole {SMALL} --total-frames 300 --run-dir {run}".split()) == 0
    log = run.with_name("one.log")
    log.write_text("before\n")
    assert main(f"train --resume {run} --total-frames 900 --detach".split()) == 0
    wait_for(lambda: (runs_in(tmp_path, tmp_path)[0]["frames"] or 0) >= 900 and holder_of(run) is None, "its end")
    assert runs_in(tmp_path, tmp_path)[0]["status"] == "frames_reached"
    said = log.read_text()
    assert said.startswith("before\n")
    assert said.count("run folder:") >= 1


def test_a_mistake_is_said_here_and_leaves_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wrong = f"train cartpole {SMALL} --network.name a3c_cnn --detach --run-dir {tmp_path / 'one'}"
    assert main(wrong.split()) == 2
    assert "--network.name a3c_cnn: " in capfd.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changed", "host"),
    [({"machine": "another boot"}, socket.gethostname()), ({"machine": None, "host": "elsewhere"}, "elsewhere")],
)
def test_a_run_of_another_machine_is_not_stopped(
    changed: dict[str, Any], host: str, tmp_path: Path, refused: Callable[[str], str]
) -> None:
    """Containers may share a host name, and a process id would name another process here."""
    assert "nothing runs there" in refused(f"stop {tmp_path}")
    lock = FolderLock(tmp_path)
    file = tmp_path / ".lock"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    assert f"runs on {host}, process {os.getpid()}: stop it there" in refused(f"stop {tmp_path}")
    lock.release()


def test_a_changed_host_name_is_the_same_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = FolderLock(tmp_path)
    monkeypatch.setattr("socket.gethostname", lambda: "renamed")
    holder = holder_of(tmp_path)
    assert holder.here
    lock.release()


@pytest.mark.parametrize("now", [False, True])
def test_stop_interrupts_once_to_save_and_twice_to_leave(now: bool, tmp_path: Path) -> None:
    # Ends at the signal that it is asked to wait for.
    script = (
        "import signal, sys, threading; from pathlib import Path; from launch.run.folder import FolderLock\n"
        "seen = threading.Semaphore(0)\n"
        "signal.signal(signal.SIGINT, lambda *_: seen.release())\n"
        "lock = FolderLock(Path(sys.argv[1])); print('held', flush=True)\n"
        "for _ in range(int(sys.argv[2])):\n"
        "    while not seen.acquire(timeout=0.1): pass\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path), "2" if now else "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        assert stop(StopArguments(tmp_path, now=now)) == 0
    assert process.returncode == 0
    assert holder_of(tmp_path) is None


def test_a_folder_that_is_not_free_is_refused_before_anything_is_written(
    tmp_path: Path, refused: Callable[[str], str]
) -> None:
    run, log = tmp_path / "one", tmp_path / "one.log"
    run.mkdir()
    (run / "config.json").touch()
    log.write_text("of the run that is there\n")
    line = refused(f"train cartpole --detach --run-dir {run}")
    assert line.startswith(f"--run-dir {run}: exists; name another folder")
    assert log.read_text() == "of the run that is there\n"
