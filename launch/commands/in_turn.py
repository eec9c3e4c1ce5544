"""Runs in processes of their own, one after another or a few side by side."""

import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen
from typing import NamedTuple

from rich.console import Console

from launch.commands.interrupts import Interrupts
from launch.commands.training_process import training_process
from launch.output.exit_codes import EXIT_USAGE
from launch.output.lines import print_line
from shared.config import RunConfig
from shared.errors import ConfigurationError, setting_error

_POLL_SECONDS = 0.5


class PlannedRun(NamedTuple):
    """A run that is to be trained. `name` is what it is called on the screen; `resume`: it goes on in its folder;
    `start_from` is the folder of a run whose weights it starts with."""

    name: str
    config: RunConfig
    folder: Path
    preset: str
    resume: bool = False
    start_from: Path | None = None

    @property
    def log(self) -> Path:
        """Where its output goes when it does not run alone."""
        return self.folder.with_name(f"{self.folder.name}.log")


def check_side_by_side(side_by_side: int) -> None:
    """Refuse a number of runs at a time that cannot be.

    Raises:
        ConfigurationError: it is below 1.
    """
    if side_by_side < 1:
        raise setting_error("side_by_side", side_by_side, "must be at least 1")


def train_in_turn(runs: Sequence[PlannedRun], side_by_side: int, console: Console, interrupts: Interrupts) -> list[int]:
    """Train them in their order, `side_by_side` at a time. Returns the exit codes of those that ran: all, unless an
    interrupt came.

    Alone a run shows its own progress; side by side its output goes to its log.

    Raises:
        ConfigurationError: one could not start.
    """
    waiting, codes = list(runs), list[int]()
    running: list[tuple[PlannedRun, Popen[str]]] = []
    passed_on = False
    with ExitStack() as stack, interrupts.watched():
        while waiting or running:
            try:
                if interrupts.asked.is_set() and not passed_on:
                    # Those that run save and end.
                    passed_on, waiting = True, []
                    _interrupt(running)
                while waiting and len(running) < side_by_side:
                    run = waiting.pop(0)
                    print_line(console, f"{run.name}: {run.folder}{', goes on' if run.resume else ''}")
                    output = None
                    if side_by_side > 1:
                        run.folder.parent.mkdir(parents=True, exist_ok=True)
                        output = stack.enter_context(run.log.open("a" if run.resume else "w"))
                    started = training_process(
                        run.config, run.folder, run.preset, output, resume=run.resume, start_from=run.start_from
                    )
                    running.append((run, stack.enter_context(started)))
                time.sleep(_POLL_SECONDS)
                for run, process in [pair for pair in running if pair[1].poll() is not None]:
                    running.remove((run, process))
                    codes.append(process.returncode)
                    if process.returncode == EXIT_USAGE:
                        raise _cannot_start(run)
                    if side_by_side > 1:
                        print_line(console, f"{run.name}: ended with exit code {process.returncode}")
            except KeyboardInterrupt:
                # They leave at once.
                _interrupt(running)
    return codes


def _interrupt(running: Sequence[tuple[PlannedRun, Popen[str]]]) -> None:
    for _, process in running:
        process.send_signal(signal.SIGINT)


def _cannot_start(run: PlannedRun) -> ConfigurationError:
    """The error for a run that ended with a mistake in the settings."""
    reason = "see the message above"
    if run.log.is_file():
        reason = (run.log.read_text().splitlines() or [""])[-1].removeprefix("error: ")
    return ConfigurationError(f"{run.name} could not start: {reason}")
