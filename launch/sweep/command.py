"""`tributary sweep FILE`: search settings by many runs; the same command continues a sweep that was stopped.

The results are a table, trials.csv, sweep.json, and best.toml with the best settings.
"""

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from actors.environments import environment_spec
from launch.arguments import Operand
from launch.checks import check_effects, check_network
from launch.commands.settings import as_toml
from launch.output import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    finite,
    make_folder,
    print_line,
    provenance,
    quoted,
    short,
    to_json,
    whole_file,
    write_json,
)
from launch.presets.settings_files import with_settings
from launch.run.folder import lock_folder
from launch.run.trackers import check_trackers
from launch.sweep.file import Settings, Sweep, check_tune, read_sweep
from shared.config import RunConfig, flat_settings
from shared.errors import ConfigurationError, setting_error

Ended = Literal["done", "stopped", "refused", "failed"]
"""stopped: by the scheduler, or by hand; refused: its settings are invalid together; failed: its training failed."""


@dataclass(frozen=True)
class SweepArguments:
    """Train trials with settings that a search chooses, side by side, and list the best. Ctrl-C once saves the runs
    under way; the same command continues the sweep, also after a crash."""

    file: Operand[Path]
    """TOML: settings as --config takes them, and a table [sweep]; see docs/sweeps.md."""
    output: Path | None = None
    """Folder of the sweep, with a run in it for each trial. Default: runs/ and the name of the file."""
    address: str = "local"
    """Ray cluster for the trials, each on one node: local, auto, or HOST:PORT. All nodes must share the folder."""
    json: Path | None = None
    """File for the result, besides sweep.json in the folder."""


class Trial(NamedTuple):
    """One trial. `ended` is None for one that has not ended, `score` for one without a return."""

    number: int
    settings: Settings
    ended: Ended | None
    frames: int
    score: float | None
    reason: str | None

    @property
    def name(self) -> str:
        return f"trial-{self.number:02}"


def sweep(arguments: SweepArguments) -> int:
    """Run `tributary sweep`. Returns the exit code: 1 if no trial has a return."""
    check_tune("tributary sweep", "optuna")
    plan = read_sweep(arguments.file)
    check_network(plan.base, environment_spec(plan.base.environment))
    check_trackers(plan.base)
    folder = (arguments.output or Path("runs") / arguments.file.stem).absolute()
    console = Console()
    make_folder(folder, "output")
    _check_same_sweep(folder, plan)
    with lock_folder(folder):
        print_line(console, f"sweep: {folder}, {plan.trials} trials")
        # Importing Tune takes seconds: after all that can be checked without it.
        from launch.sweep.tune import run_trials, score_name

        try:
            results = run_trials(plan, folder, arguments.address)
        except ConnectionError as error:
            raise setting_error("address", arguments.address, f"no Ray cluster answers there: {error}") from error
        trials = trials_of(plan, results, score_name(plan))
        best = best_of(trials)
        write(plan, folder, trials, best, arguments.json)
        _show(console, plan, trials, best)
        print_line(console, f"written: trials.csv and sweep.json in {folder}")
        if best is not None:
            best_file = quoted(folder / "best.toml")
            print_line(console, f"best: {best.name}; train by its settings: tributary train --config {best_file}")
        # Tune counts a trial that it interrupted as terminated.
        if sum(trial.ended is not None for trial in trials) < plan.trials:
            print_line(console, "interrupted: the runs under way are saved, and the same command continues")
            return EXIT_INTERRUPTED
        return EXIT_DONE if best is not None else EXIT_FAILED


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


def trials_of(plan: Sweep, results: Iterable[Any], score: str) -> list[Trial]:
    """The trials of Tune's `ResultGrid` that have reported, with the column `score` of their last rows."""
    trials = []
    for result in results:
        if not result.config:
            continue
        row = result.metrics
        ended = row.get("ended", "stopped") if row.get("done") else None
        trials.append(
            Trial(
                int(Path(result.path).name.removeprefix("trial-")),
                {name: result.config[name] for name in plan.space},
                "failed" if result.error else ended,
                row.get("frames", 0),
                finite(row.get(score)),
                row.get("reason") or (result.error and "its process ended too often"),
            )
        )
    return sorted(trials)


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The trial with the highest score, among those that trained to their end if there is one."""
    scored = [trial for trial in trials if trial.score is not None and trial.ended in ("done", "stopped")]
    done = [trial for trial in scored if trial.ended == "done"]
    return max(done or scored, key=lambda trial: trial.score or -math.inf, default=None)


def write(plan: Sweep, folder: Path, trials: Sequence[Trial], best: Trial | None, json: Path | None) -> None:
    """Write trials.csv, sweep.json and best.toml into the sweep's folder."""
    names = list(plan.space)
    with whole_file(folder / "trials.csv") as file:
        file.write(f"# {to_json(provenance())}\n")
        writer = csv.writer(file)
        writer.writerow(["trial", "ended", "score", "frames", *names, "run", "reason"])
        for trial in trials:
            settings, run = [trial.settings[name] for name in names], folder / trial.name
            writer.writerow([trial.number, trial.ended, trial.score, trial.frames, *settings, run, trial.reason])
    result = {
        "preset": plan.preset,
        "search": plan.plan.search,
        "maximise": plan.plan.maximise,
        "trials": [{**trial._asdict(), "run": str(folder / trial.name)} for trial in trials],
        "trials_planned": plan.trials,
        "best": None if best is None else best.number,
        "settings": flat_settings(plan.base),
        **provenance(),
    }
    write_json(folder / "sweep.json", result)
    write_json(json, result)
    if best is not None:
        with whole_file(folder / "best.toml") as text:
            text.write(f"# {best.name} of {folder.name}: return {best.score} after {best.frames:,} frames\n")
            tried = with_settings(plan.base, best.settings)
            used = {name: value for name, value in best.settings.items() if _has_effect(tried, name)}
            text.write(as_toml(with_settings(plan.base, used), plan.preset))


def _has_effect(config: RunConfig, name: str) -> bool:
    try:
        check_effects(config, [name])
    except ConfigurationError:
        return False
    return True


def _show(console: Console, plan: Sweep, trials: Sequence[Trial], best: Trial | None) -> None:
    """Print the table, the best trial first."""
    table = Table(box=None, pad_edge=False)
    table.add_column("trial", no_wrap=True)
    table.add_column("ended", no_wrap=True)
    for heading in ("return", "frames", *(name.rpartition(".")[2] for name in plan.space)):
        table.add_column(heading, justify="right", overflow="fold")
    for trial in sorted(trials, key=lambda trial: math.inf if trial.score is None else -trial.score):
        settings = [short(trial.settings[name]) for name in plan.space]
        score = "-" if trial.score is None else f"{trial.score:.2f}"
        style = "bold" if trial == best else None
        table.add_row(trial.name, trial.ended or "not ended", score, f"{trial.frames:,}", *settings, style=style)
    console.print(table, highlight=False)
    for trial in trials:
        if trial.reason is not None:
            print_line(console, f"{trial.name}: {trial.reason}")
