"""How a program follows and stops its run: a small process stands for the run, and says what a run says."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from launch.python.run import TrainingFailedError
from launch.python.training import Training
from launch.python.wanted import WantedRun
from shared.errors import ConfigurationError

_DEADLINE_SECONDS = 60.0

# Begins when it is told to, then ends when it is interrupted, and says how often it was.
UNTIL_STOPPED = """
import signal, time
print("run folder:   here", flush=True)
stops = []
signal.signal(signal.SIGINT, lambda *_: stops.append(0))
print("starting 1 actor…", flush=True)
{row}
deadline = time.monotonic() + 60
while not stops and time.monotonic() < deadline:
    time.sleep(0.01)
time.sleep(0.2)
print(f"stopped {{len(stops)}} times")
"""
ROW = "open({file!r}, 'a').write('{{\"frames\": 8}}' + chr(10))"


class Played:
    """What a `Training` needs of a `WantedRun`: a folder, and a process that a script is."""

    advice = "; start from atari"

    def __init__(self, folder: Path, script: str) -> None:
        self.folder, self._script = folder, script
        (folder / "config.json").write_text("{}")

    @contextmanager
    def process(self) -> Iterator["subprocess.Popen[str]"]:
        command = [sys.executable, "-c", self._script]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            yield process

    def discard_if_empty(self) -> None:
        pass


def training(folder: Path, script: str, on_row: Any = None, *, progress: bool = True) -> Training:
    return Training(cast(WantedRun, Played(folder, script)), on_row, progress=progress)


def until_stopped(folder: Path, *, row: bool) -> str:
    return UNTIL_STOPPED.format(row=ROW.format(file=str(folder / "metrics.jsonl")) if row else "")


def test_a_run_is_stopped_once_however_often_it_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Twice would be two Ctrl-C, and a run leaves at once then."""
    under_way = training(tmp_path, until_stopped(tmp_path, row=False))
    under_way.start()
    assert under_way.running
    with pytest.raises(TimeoutError, match=f"the run in {tmp_path} goes on"):
        under_way.wait(0.0)
    under_way.stop()
    under_way.stop()
    assert under_way.wait(_DEADLINE_SECONDS).path == tmp_path
    assert not under_way.running
    assert capsys.readouterr().out == "run folder:   here\nstarting 1 actor…\nstopped 1 times\n"


def test_a_stop_waits_until_the_run_is_ready_for_it(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    under_way = training(tmp_path, "import time; time.sleep(0.5)\n" + until_stopped(tmp_path, row=False))
    under_way.stop()
    under_way.start()
    under_way.wait(_DEADLINE_SECONDS)
    assert capsys.readouterr().out.endswith("stopped 1 times\n")


def test_a_row_for_which_false_comes_back_stops_the_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    rows: list[dict[str, Any]] = []

    def on_row(row: dict[str, Any]) -> bool:
        rows.append(row)
        return False

    # An earlier part of the run, which was resumed.
    (tmp_path / "metrics.jsonl").write_text('{"frames": 7}\n')
    under_way = training(tmp_path, until_stopped(tmp_path, row=True), on_row)
    under_way.follow()
    under_way.wait()
    assert rows == [{"frames": 8}]
    assert "stopped 1 times" in capsys.readouterr().out


@pytest.mark.parametrize("error", [RuntimeError("no more disk"), KeyboardInterrupt()])
def test_what_ends_the_program_stops_the_run_first(
    error: BaseException, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """A Ctrl-C comes while the program waits for the run, as an error of its own does."""

    def on_row(_: dict[str, Any]) -> None:
        raise error

    under_way = training(tmp_path, until_stopped(tmp_path, row=True), on_row)
    under_way.follow()
    with pytest.raises(type(error)):
        under_way.wait()
    assert "stopped 1 times" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        ("print('error: --seed -1: no'); exit(2)", ConfigurationError, "^--seed -1: no; start from atari$"),
        ("print('training failed: it is full'); print('run folder: x'); exit(1)", TrainingFailedError, "it is full"),
        ("print('last words'); import os; os.abort()", TrainingFailedError, "code -6; its last line was: last words"),
    ],
)
def test_how_a_run_ended_is_what_waiting_raises(
    script: str, error: type[Exception], message: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    under_way = training(tmp_path, script)
    if error is ConfigurationError:
        with pytest.raises(error, match=message):
            under_way.start()
        assert capsys.readouterr().out == "", "it is said once, by what is raised"
    else:
        under_way.start()
    with pytest.raises(error, match=message):
        under_way.wait(_DEADLINE_SECONDS)


@pytest.mark.parametrize("code", [0, 130])
def test_a_run_that_is_done_or_was_interrupted_is_one(code: int, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    lines = f"for i in range(5000): print('line', i)\nprint('unfinished', end=''); exit({code})"
    under_way = training(tmp_path, lines, progress=False)
    under_way.follow()
    assert under_way.wait().path == tmp_path
    assert capsys.readouterr().out == ""


def test_what_a_process_of_the_run_leaves_open_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """Its output is a pipe, which whatever it started may have inherited."""
    lingers = (
        "import subprocess, sys\n"
        "process = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(process.pid))\n"
    )
    under_way = training(tmp_path, lingers + "print('done')", progress=False)
    threading.Thread(target=under_way.follow, daemon=True).start()
    try:
        assert under_way.wait(_DEADLINE_SECONDS).path == tmp_path
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
