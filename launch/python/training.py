"""Training that a program of the user's own starts, follows and stops. The run is in a process of its own."""

import os
import selectors
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launch.output import EXIT_DONE, EXIT_INTERRUPTED, EXIT_USAGE
from launch.python.run import Run, TrainingFailedError
from launch.python.wanted import WantedRun
from launch.run.metrics import NewRows
from shared.errors import ConfigurationError

OnRow = Callable[[dict[str, Any]], object]

_LOOK_SECONDS = 0.5
_MOST_BYTES = 1 << 16
# What lines of the run begin with.
_STARTING, _FAILED, _ERROR = "starting ", "training failed: ", "error: "


class Training:
    """A run that is under way. When the program that started it ends, it saves and ends too.

    Args:
        wanted: the run.
        on_row: called with each row of numbers; if it returns False, the run is stopped.
        progress: print the lines of the run's progress.
    """

    def __init__(self, wanted: WantedRun, on_row: OnRow | None, *, progress: bool) -> None:
        self._wanted, self._on_row, self._progress = wanted, on_row, progress
        self._process: subprocess.Popen[str] | None = None
        self._begun, self._ended = threading.Event(), threading.Event()
        # Who calls `stop` from a handler of signals may come upon itself.
        self._signals = threading.RLock()
        self._stop_asked = self._stop_sent = False
        self._rows = NewRows(wanted.folder / "metrics.jsonl")
        self._error: BaseException | None = None
        self._reason = self._last_line = ""

    @property
    def path(self) -> Path:
        """The folder of the run."""
        return self._wanted.folder

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return not self._ended.is_set()

    def stop(self) -> None:
        """Ask it to finish the rollouts under way, save and end. Returns at once; `wait` waits for the end."""
        self._stop_asked = True
        self._pass_stop_on()

    def wait(self, timeout: float | None = None) -> Run:
        """Wait until it has ended, at most `timeout` seconds. Returns the run, whether it is done or was stopped.

        Raises:
            ConfigurationError: it could not start.
            TrainingFailedError: it failed.
            TimeoutError: it goes on.
            Exception: what `on_row` raised; the run was stopped then.
        """
        if not self._ended.wait(timeout):
            raise TimeoutError(f"the run in {self.path} goes on")
        if self._error is not None:
            raise self._error
        return Run(self.path)

    def start(self) -> None:
        """Train in another thread. Returns when the run has its folder and starts its actors, or has ended.

        Raises:
            ConfigurationError: it could not start.
        """
        threading.Thread(target=self.follow, daemon=True).start()
        self._begun.wait()
        if isinstance(self._error, ConfigurationError):
            raise self._error

    def follow(self) -> None:
        """Train, and take in what the run says until it has ended. Whatever goes wrong, `wait` raises it."""
        try:
            with self._wanted.process() as self._process:
                self._listen(self._process)
            self._error = self._error or self._failure(self._process.returncode)
        except BaseException as error:
            self._error = self._error or error
        finally:
            self._wanted.discard_if_empty()
            self._ended.set()
            self._begun.set()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        unfinished = b""
        with selectors.DefaultSelector() as output:
            output.register(process.stdout, selectors.EVENT_READ)
            while True:
                try:
                    ended = process.poll() is not None
                    ready = output.select(0 if ended else _LOOK_SECONDS)
                    said = os.read(process.stdout.fileno(), _MOST_BYTES) if ready else b""
                    *lines, unfinished = (unfinished + said).split(b"\n")
                    for line in lines:
                        self._take_line(line.decode(errors="replace").rstrip())
                    for row in self._rows.take():
                        if self._on_row is not None and self._on_row(row) is False:
                            self.stop()
                    # What the process has started may hold its output open for longer.
                    if not said and (ready or ended):
                        return
                except BaseException as error:
                    if isinstance(self._error, KeyboardInterrupt):
                        # A second Ctrl-C leaves at once.
                        raise
                    self._error, self._on_row = error, None
                    self.stop()

    def _take_line(self, line: str) -> None:
        if line.startswith(_ERROR):
            self._reason = line.removeprefix(_ERROR)
            return
        self._last_line = line or self._last_line
        if line.startswith(_FAILED):
            self._reason = line
        if self._progress:
            print(line, flush=True)
        if line.startswith(_STARTING):
            self._begun.set()
            self._pass_stop_on()

    def _pass_stop_on(self) -> None:
        """Interrupt the process once, and not before it is ready for it. A second time it would leave at once."""
        with self._signals:
            if self._stop_asked and not self._stop_sent and self._begun.is_set() and self._process is not None:
                self._stop_sent = True
                self._process.send_signal(signal.SIGINT)

    def _failure(self, code: int) -> BaseException | None:
        if code in (EXIT_DONE, EXIT_INTERRUPTED):
            return None
        if code == EXIT_USAGE:
            return ConfigurationError(f"{self._reason}{self._wanted.advice}")
        reason = self._reason or f"its process ended with code {code}; its last line was: {self._last_line}"
        return TrainingFailedError(f"{reason} ({self.path})")
