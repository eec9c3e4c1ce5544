"""Runs as processes of this machine, one after another or several side by side."""

import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen
from typing import NamedTuple

from rich.console import Console

from launch.commands.interrupts import Interrupts
from launch.commands.training_process import last_line, training_process
from launch.output import EXIT_FAILED, EXIT_USAGE, print_line
from launch.run.folder import RunFolder, read_summary
from launch.run.status import reached_limit
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


def left_to_do(run: PlannedRun) -> PlannedRun | None:
    """The run as it is to be trained, from its beginning or from where it stopped; None if it has ended.

    Raises:
        ConfigurationError: its folder is in use.
    """
    folder = RunFolder(run.folder)
    if not (run.folder / "config.json").is_file():
        return run
    with folder:
        if reached_limit(run.config, read_summary(folder)) is not None:
            return None
        if folder.has_checkpoint:
            return run._replace(resume=True)
        # It was killed before there was anything to go on from.
        shutil.rmtree(run.folder)
    return run


def train_in_turn(runs: Sequence[PlannedRun], side_by_side: int, console: Console, interrupts: Interrupts) -> list[int]:
    """Train `runs` in their order, `side_by_side` at a time. Returns the exit codes of those that ran: all, unless an
    interrupt came.

    Each is a process. Alone a run shows its own progress; side by side its output goes to its log.

    Raises:
        ConfigurationError: one could not start; those that were under way have ended.
    """
    waiting, codes = list(runs), list[int]()
    running = list[tuple[PlannedRun, Popen[str]]]()
    refused: PlannedRun | None = None
    passed_on = False
    with ExitStack() as stack, interrupts.watched():
        while waiting or running:
            try:
                if interrupts.asked and not passed_on:
                    # The running ones save and end.
                    passed_on, waiting = True, []
                    _interrupt(running)
                while waiting and len(running) < side_by_side:
                    run = waiting.pop(0)
                    print_line(console, f"{run.name}: {run.folder}{', goes on' if run.resume else ''}")
                    running.append((run, _start(run, stack, alone=side_by_side == 1)))
                time.sleep(_POLL_SECONDS)
                for started in list(running):
                    run, process = started
                    code = process.poll()
                    if code is None:
                        continue
                    running.remove(started)
                    # Below 0: a signal has ended it.
                    code = EXIT_FAILED if code < 0 else code
                    codes.append(code)
                    if code == EXIT_USAGE:
                        # The others have the same settings.
                        refused, waiting = refused or run, []
                    if side_by_side > 1:
                        print_line(console, f"{run.name}: ended with exit code {code}")
            except KeyboardInterrupt:
                # They leave at once.
                _interrupt(running)
    if refused is not None:
        raise _cannot_start(refused)
    return codes


def _start(run: PlannedRun, stack: ExitStack, *, alone: bool) -> Popen[str]:
    """Start the process of a run, which ends at the latest with `stack`."""
    output = None
    if not alone:
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        output = stack.enter_context(run.log.open("a" if run.resume else "w"))
    started = training_process(run.config, run.folder, run.preset, output, resume=run.resume, start_from=run.start_from)
    return stack.enter_context(started)


def _interrupt(running: Sequence[tuple[PlannedRun, Popen[str]]]) -> None:
    for _, process in running:
        process.send_signal(signal.SIGINT)


def _cannot_start(run: PlannedRun) -> ConfigurationError:
    """The error for a run that ended with a mistake in the settings."""
    reason = "see the message above"
    if run.log.is_file():
        reason = last_line(run.log).removeprefix("error: ")
    return ConfigurationError(f"{run.name} could not start: {reason}")
