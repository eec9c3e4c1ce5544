"""`tributary sweep` in a process of its own."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from waiting import wait_for

from launch.run.folder import RunFolder, holder_of, last_row

_DEADLINE_SECONDS = 900


class Command:
    """`tributary sweep FILE --output FOLDER`."""

    def __init__(self, file: Path, folder: Path) -> None:
        self.folder = folder
        self._log = folder.with_suffix(".log")
        with self._log.open("w") as log:
            command = [sys.executable, "-m", "launch.cli", "sweep", str(file), "--output", str(folder)]
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def log(self) -> str:
        return self._log.read_text()

    def wait_for(self, condition: Callable[[], Any], what: str) -> Any:
        return wait_for(condition, what, process=self.process, shown=self.log, seconds=_DEADLINE_SECONDS)

    def end(self, code: int) -> None:
        assert self.process.wait(_DEADLINE_SECONDS) == code, self.log()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def ended(self) -> set[str]:
        """The names of the trials that have ended, by the lines of the command."""
        return set(re.findall(r"^(trial-\d+): (?:done|stopped|refused|failed),", self.log(), re.MULTILINE))

    def training(self, least_frames: int = 5_000) -> Path | None:
        """The folder of a trial that has trained so far, and trains."""
        for config in self.folder.glob("trial-*/config.json"):
            run = config.parent
            if last_row(RunFolder(run)).get("frames", 0) > least_frames and holder_of(run) is not None:
                return run
        return None

    def kill_a_trial(self, least_frames: int = 5_000) -> None:
        """Kill the process of a trial that trains, until Tune has started another try of one."""
        killed = set[int]()

        def another_try() -> bool:
            victim = self.training(least_frames)
            holder = None if victim is None else holder_of(victim)
            if holder is not None and holder.pid is not None and holder.pid not in killed:
                killed.add(holder.pid)
                with suppress(ProcessLookupError):
                    os.kill(holder.pid, signal.SIGKILL)
            return "its process died" in self.log()

        self.wait_for(another_try, "another try of a trial that was killed")


@contextmanager
def sweeping(file: Path, folder: Path) -> Iterator[Command]:
    """Start the command; it is killed at the end if it still runs."""
    command = Command(file, folder)
    try:
        yield command
    finally:
        command.kill()
