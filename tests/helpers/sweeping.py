"""`tributary sweep` in a process of its own, watched from outside."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from launch.run.folder import holder_of, last_row
from launch.run.status import run_status
from launch.sweep.book import TrialBook

_DEADLINE_SECONDS = 900


class Command:
    """`tributary sweep FILE --output FOLDER`; `process` is its own."""

    def __init__(self, file: Path, folder: Path) -> None:
        self.folder = folder
        self._log = folder.with_suffix(".log")
        with self._log.open("a") as log:
            command = [sys.executable, "-m", "launch.cli", "sweep", str(file), "--output", str(folder)]
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def log(self) -> str:
        """What it has printed."""
        return self._log.read_text()

    def wait_for(self, condition: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while not (found := condition()):
            assert self.process.poll() is None, f"{what}: the sweep ended\n{self.log()}"
            assert time.monotonic() < deadline, f"{what} was not seen\n{self.log()}"
            time.sleep(0.2)
        return found

    def end(self, code: int) -> None:
        assert self.process.wait(_DEADLINE_SECONDS) == code, self.log()

    def ended(self) -> set[int]:
        """The numbers of the trials that have ended."""
        return {number for number, trial in TrialBook(self.folder).trials.items() if trial.ended is not None}

    def training(self, least_frames: int = 5_000) -> Path | None:
        """The folder of a trial that has a checkpoint, and trains."""
        for run in self.folder.glob("trial-*/config.json"):
            learned = last_row(run_status(run.parent).folder).get("frames", 0) > least_frames
            if learned and holder_of(run.parent) is not None:
                return run.parent
        return None

    def kill_a_trial(self, least_frames: int = 5_000) -> None:
        """Kill the process of a trial that trains, so that Tune sees it. One that was just ending counts for none."""
        killed = set[int]()

        def another_try() -> bool:
            victim = self.training(least_frames)
            holder = None if victim is None else holder_of(victim)
            if holder is not None and holder.pid is not None and holder.pid not in killed:
                killed.add(holder.pid)
                with suppress(ProcessLookupError):
                    os.kill(holder.pid, signal.SIGKILL)
            return "its process died, see trial-" in self.log()

        self.wait_for(another_try, "another try of a trial that was killed")


@contextmanager
def sweeping(file: Path, folder: Path) -> Iterator[Command]:
    """Use as a context: what still runs then is killed."""
    command = Command(file, folder)
    try:
        yield command
    finally:
        command.process.kill()
        command.process.wait()
