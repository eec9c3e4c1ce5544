"""Runs by themselves, one after another or a few side by side: in processes here, or wherever they are started."""

import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen
from typing import NamedTuple, Protocol

from rich.console import Console

from launch.commands.interrupts import Interrupts
from launch.commands.training_process import last_line, training_process
from launch.output.exit_codes import EXIT_FAILED, EXIT_USAGE
from launch.output.lines import print_line
from launch.run.finished import reached_limit, read_summary
from launch.run.folder import RunFolder
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


class StartedRun(Protocol):
    """A run under way."""

    def poll(self) -> int | None:
        """Its exit code; None while it goes on."""

    def interrupt(self) -> None:
        """Ask it to save and end; the second time, to end at once."""


class Starter(Protocol):
    """Starts runs, each in one of several places that are numbered from 0."""

    def has_room(self, place: int) -> bool:
        """Whether a run can be started in a place that is free."""

    def start(self, run: PlannedRun, place: int) -> StartedRun:
        """Start a run."""


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


def train_in_turn(
    runs: Sequence[PlannedRun],
    side_by_side: int,
    console: Console,
    interrupts: Interrupts,
    starter: Starter | None = None,
) -> list[int]:
    """Train them in their order, `side_by_side` at a time. Returns the exit codes of those that ran: all, unless an
    interrupt came.

    In processes of this machine, unless there is another starter: alone a run shows its own progress, and side by side
    its output goes to its log.

    Raises:
        ConfigurationError: one could not start; those that were under way have ended.
    """
    waiting, codes = list(runs), list[int]()
    free, running = list(range(side_by_side)), list[tuple[PlannedRun, int, StartedRun]]()
    refused: PlannedRun | None = None
    passed_on = False
    with ExitStack() as stack, interrupts.watched():
        if starter is None:
            starter = _Processes(stack, alone=side_by_side == 1)
        while (waiting and free) or running:
            try:
                if interrupts.asked and not passed_on:
                    # Those that run save and end.
                    passed_on, waiting = True, []
                    _interrupt(running)
                while waiting and free:
                    place = free.pop(0)
                    if not starter.has_room(place):
                        continue
                    run = waiting.pop(0)
                    print_line(console, f"{run.name}: {run.folder}{', goes on' if run.resume else ''}")
                    running.append((run, place, starter.start(run, place)))
                time.sleep(_POLL_SECONDS)
                for started in list(running):
                    run, place, state = started
                    code = state.poll()
                    if code is None:
                        continue
                    running.remove(started)
                    free.append(place)
                    codes.append(code)
                    if code == EXIT_USAGE:
                        # What is wrong with its settings is so with those of the others.
                        refused, waiting = refused or run, []
                    if side_by_side > 1:
                        print_line(console, f"{run.name}: ended with exit code {code}")
            except KeyboardInterrupt:
                # They leave at once.
                _interrupt(running)
    if refused is not None:
        raise _cannot_start(refused)
    if waiting:
        print_line(console, f"no place is left for {', '.join(run.name for run in waiting)}")
        codes.append(EXIT_FAILED)
    return codes


class _Process:
    """A run in a process of this machine."""

    def __init__(self, process: Popen[str]) -> None:
        self._process = process

    def poll(self) -> int | None:
        code = self._process.poll()
        # Below 0: a signal has ended it.
        return EXIT_FAILED if code is not None and code < 0 else code

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)


class _Processes:
    """Starts runs in processes of this machine, which end at the latest with `stack`. `alone`: one at a time."""

    def __init__(self, stack: ExitStack, *, alone: bool) -> None:
        self._stack, self._alone = stack, alone

    def has_room(self, place: int) -> bool:  # noqa: ARG002
        return True

    def start(self, run: PlannedRun, place: int) -> _Process:  # noqa: ARG002
        output = None
        if not self._alone:
            run.folder.parent.mkdir(parents=True, exist_ok=True)
            output = self._stack.enter_context(run.log.open("a" if run.resume else "w"))
        started = training_process(
            run.config, run.folder, run.preset, output, resume=run.resume, start_from=run.start_from
        )
        return _Process(self._stack.enter_context(started))


def _interrupt(running: Sequence[tuple[PlannedRun, int, StartedRun]]) -> None:
    for _, _, started in running:
        started.interrupt()


def _cannot_start(run: PlannedRun) -> ConfigurationError:
    """The error for a run that ended with a mistake in the settings."""
    reason = "see the message above"
    if run.log.is_file():
        reason = last_line(run.log).removeprefix("error: ")
    return ConfigurationError(f"{run.name} could not start: {reason}")
