"""`tributary sweep FILE`: search settings; the same command goes on where it stopped."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import tyro
from rich.console import Console

from actors.environments import environment_spec
from launch.machine.import_path import check_packages
from launch.machine.interrupts import Interrupts
from launch.output import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, check_json_file, make_folder, print_line, write_json
from launch.request import check_network
from launch.run.folder import FolderLock, holder_of
from launch.run.trackers import check_trackers
from launch.sweep.book import TrialBook
from launch.sweep.extra import check_tune
from launch.sweep.file import Sweep, read_sweep
from launch.sweep.outcome import outcome
from launch.sweep.results import show, values, write
from launch.sweep.search import make_search
from shared.errors import ConfigurationError, setting_error

_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class SweepArguments:
    """Train trials with settings that a search chooses, side by side, and say which are the best. Ctrl-C once saves the
    runs under way; the same command goes on, after a crash too."""

    file: Annotated[Path, tyro.conf.Positional]
    """TOML: settings as --config takes them, and a table [sweep]; see docs/sweeps.md."""
    output: Path | None = None
    """Folder of the sweep, with a run in it for each trial. Default: runs/ and the name of the file."""
    address: str = "local"
    """Ray cluster to play the trials on, each on one node: local, auto, or HOST:PORT. All nodes must see the folder."""
    json: Path | None = None
    """File to write the result to, besides sweep.json in the folder."""


def sweep(arguments: SweepArguments) -> int:
    """Run `tributary sweep`. Returns the exit code: 1 if no trial has a return.

    Raises:
        ConfigurationError: a mistake in the file, found before any trial started.
    """
    check_json_file(arguments.json)
    check_packages()
    check_tune("tributary sweep", "optuna")
    plan = read_sweep(arguments.file)
    check_network(plan.base, environment_spec(plan.base.environment))
    check_trackers(plan.base)
    folder = (arguments.output or Path("runs") / arguments.file.stem).absolute()
    console = Console()
    say = partial(print_line, console)
    make_folder(folder, "output")
    _check_same_sweep(folder, plan)
    lock = FolderLock(folder)
    try:
        book = TrialBook(folder)
        left = sum(trial.ended is None for trial in book.trials.values()) + plan.trials - len(book.trials)
        say(f"sweep: {folder}, {max(0, left)} of {plan.trials} trials to do")
        with Interrupts() as interrupts, interrupts.training():
            if left > 0:
                from launch.sweep.tuning import run_trials

                search = make_search(plan, [book.trials[number] for number in sorted(book.trials)])
                run_trials(plan, folder, book, search, arguments.address, lambda: interrupts.asked, say)
                _wait_for_runs(folder, book, say)
            found = outcome(plan, folder, book)
            files = write(found)
            show(console, found)
        for file in files:
            say(f"written: {file}")
        if found.best is not None:
            say(f"best: {found.best.name}; tributary train --config {folder / 'best.toml'} trains by its settings")
        if arguments.json is not None:
            write_json(arguments.json, values(found))
        if interrupts.asked:
            say("interrupted: the runs under way are saved, and the same command goes on")
            return EXIT_INTERRUPTED
        return EXIT_DONE if found.best is not None else EXIT_FAILED
    except ConnectionError as error:
        raise setting_error("address", arguments.address, f"no Ray cluster answers there: {error}") from error
    finally:
        lock.release()


def _check_same_sweep(folder: Path, plan: Sweep) -> None:
    """Refuse a folder in which another sweep began; more trials of the same one may be asked for."""
    file = folder / "sweep-settings.json"
    now = msgspec.to_builtins(plan)
    del now["trials"], now["plan"]["trials"]
    if file.is_file():
        try:
            before = msgspec.json.decode(file.read_bytes())
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"{file} cannot be read: {error}") from error
        if before != msgspec.json.decode(msgspec.json.encode(now)):
            raise setting_error(
                "output", folder, "has a sweep with other settings, another space or search; name another folder"
            )
    elif any(folder.glob("*/config.json")):
        raise setting_error("output", folder, "has runs that are of no sweep; name another folder")
    else:
        write_json(file, now)


def _wait_for_runs(folder: Path, book: TrialBook, say: Callable[[str], None]) -> None:
    """Processes that were asked to end save what they have."""
    names = [trial.name for trial in book.trials.values()]
    waited = False
    while saving := [name for name in names if holder_of(folder / name) is not None]:
        if not waited:
            say(f"waiting for {', '.join(saving)} to be saved")
            waited = True
        time.sleep(_POLL_SECONDS)
