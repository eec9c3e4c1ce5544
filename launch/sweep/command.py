"""`tributary sweep FILE`: search settings by many runs; the same command continues a sweep that was stopped."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import tyro
from rich.console import Console

from actors.environments import environment_spec
from launch.output import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    check_json_file,
    make_folder,
    print_line,
    quoted,
    write_json,
)
from launch.request import check_network
from launch.run.folder import FolderLock
from launch.run.trackers import check_trackers
from launch.sweep.file import Sweep, check_tune, read_sweep
from launch.sweep.results import outcome, show, values, write
from shared.errors import ConfigurationError, setting_error


@dataclass(frozen=True)
class SweepArguments:
    """Train trials with settings that a search chooses, side by side, and list the best. Ctrl-C once saves the runs
    under way; the same command continues the sweep, also after a crash."""

    file: Annotated[Path, tyro.conf.Positional]
    """TOML: settings as --config takes them, and a table [sweep]; see docs/sweeps.md."""
    output: Path | None = None
    """Folder of the sweep, with a run in it for each trial. Default: runs/ and the name of the file."""
    address: str = "local"
    """Ray cluster for the trials, each on one node: local, auto, or HOST:PORT. All nodes must share the folder."""
    json: Path | None = None
    """File for the result, besides sweep.json in the folder."""


def sweep(arguments: SweepArguments) -> int:
    """Run `tributary sweep`. Returns the exit code: 1 if no trial has a return.

    Raises:
        ConfigurationError: a mistake in the file, found before any trial started.
    """
    check_json_file(arguments.json)
    check_tune("tributary sweep", "optuna")
    plan = read_sweep(arguments.file)
    check_network(plan.base, environment_spec(plan.base.environment))
    check_trackers(plan.base)
    folder = (arguments.output or Path("runs") / arguments.file.stem).absolute()
    console = Console()
    make_folder(folder, "output")
    _check_same_sweep(folder, plan)
    lock = FolderLock(folder)
    try:
        print_line(console, f"sweep: {folder}, {plan.trials} trials")
        # Importing Tune takes seconds: after all that can be checked without it.
        from launch.sweep.tune import run_trials, score_name

        try:
            results = run_trials(plan, folder, arguments.address)
        except ConnectionError as error:
            raise setting_error("address", arguments.address, f"no Ray cluster answers there: {error}") from error
        found = outcome(plan, folder, results, score_name(plan))
        files = write(found)
        show(console, found)
        for file in files:
            print_line(console, f"written: {file}")
        if found.best is not None:
            print_line(
                console,
                f"best: {found.best.name}; train by its settings: tributary train --config "
                f"{quoted(folder / 'best.toml')}",
            )
        if arguments.json is not None:
            write_json(arguments.json, values(found))
        # Tune counts a trial that it interrupted as terminated.
        if sum(trial.ended is not None for trial in found.trials) < plan.trials:
            print_line(console, "interrupted: the runs under way are saved, and the same command continues")
            return EXIT_INTERRUPTED
        return EXIT_DONE if found.best is not None else EXIT_FAILED
    finally:
        lock.release()


def _check_same_sweep(folder: Path, plan: Sweep) -> None:
    """Refuse a folder of another sweep, or of an earlier version."""
    file, now = folder / "sweep-settings.json", msgspec.json.encode(plan)
    if file.is_file():
        try:
            before = msgspec.json.decode(file.read_bytes())
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"{file} cannot be read: {error}") from error
        if before != msgspec.json.decode(now):
            raise setting_error(
                "output", folder, "has a sweep with other settings, another space or search; name another folder"
            )
    elif any(folder.glob("*/config.json")):
        raise setting_error("output", folder, "has runs that are of no sweep; name another folder")
    else:
        write_json(file, msgspec.to_builtins(plan))
