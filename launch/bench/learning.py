"""`tributary bench learning`: how long presets and variants of them take to learn, with several seeds of each.

A study is a folder with a run folder for each contender and seed, and the summary in learning.json. The seeds are the
outer loop: contenders take turns, so that a slow hour of the machine is in all of them.
"""

import hashlib
import math
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from launch.arguments import ENVIRONMENT_OPTIONS, Operand, Repeated, parse
from launch.commands.seeds import PlannedRun, check_side_by_side, left_to_do, parse_seeds, train_in_turn
from launch.commands.settings import asks_for_help, print_help
from launch.interrupts import Interrupts
from launch.output import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    finite,
    make_folder,
    print_line,
    provenance,
    quoted,
    write_json,
)
from launch.presets import PRESETS
from launch.presets.settings_files import set_of_one_run
from launch.request import preset_of_environment, train_request
from launch.run.folder import RunFolder, read_summary
from launch.run.status import reached_limit
from shared.config import RunConfig, flat_settings
from shared.errors import ConfigurationError, setting_error

_COMMAND = "bench learning"


@dataclass(frozen=True)
class LearningArguments:
    """Train each preset with several seeds until a return is reached or for a number of minutes, and compare times
    and returns. The same command resumes an interrupted study."""

    presets: Operand[tuple[str, ...]] = ()
    config: RunConfig = field(default_factory=RunConfig)
    mark: float | None = None
    """Return to reach, confirmed as with --stop-at-return. Default: the preset's, unless --minutes is given."""
    minutes: float | None = None
    """Limit on the minutes of each run. Without --mark, the returns at that time are compared."""
    seeds: str = "1-5"
    """Seeds like 1,2,3 or 1-10."""
    compare: Repeated[str] = ()
    """Settings of a variant of each preset, like --compare "--actor.environments 16". Repeatable."""
    side_by_side: int = 1
    """Runs at a time. Set --actors so that they fit on the cores."""
    output: Path | None = None
    """Folder of the study. Default: a folder below runs/ named by presets and settings."""
    json: Path | None = None
    """Output file of the result, besides learning.json in the folder."""


# The columns of the table, by the limit that they are shown for: name in learning.json, heading and format.
_COLUMNS: dict[str | None, list[tuple[str, str, Callable[[float], str]]]] = {
    "mark": [
        ("seconds_to_mark", "minutes", lambda seconds: f"{seconds / 60:.1f}"),
        ("frames_to_mark", "frames", "{:,.0f}".format),
        ("agent_steps_to_mark", "agent steps", "{:,.0f}".format),
        ("evaluation_mean_return", "evaluation", "{:,.1f}".format),
    ],
    "minutes": [("mean_return_100", "return at the end", "{:,.1f}".format)],
    None: [("agent_steps_per_second", "agent steps/s", "{:,.0f}".format)],
}


class Contender(NamedTuple):
    """One preset with its changes. `name` is the preset and the changes as typed."""

    name: str
    preset: str
    config: RunConfig

    @property
    def folder(self) -> str:
        """Name of the folder of its runs within the study."""
        return re.sub(r"[^A-Za-z0-9._]+", "-", self.name).strip("-")


class Study(NamedTuple):
    """The contenders, their common seeds, and the folder of all runs."""

    folder: Path
    contenders: Sequence[Contender]
    seeds: Sequence[int]

    def run(self, contender: Contender, seed: int) -> Path:
        return self.folder / contender.folder / f"seed-{seed}"


def learning_line(arguments: Sequence[str]) -> int:
    """Run `tributary bench learning [PRESET…] [SETTINGS]` and return its exit code."""
    if asks_for_help(arguments):
        typed, settings = parse(LearningArguments, _COMMAND, arguments)
        preset, _ = _starts(typed, settings)[0]
        print_help(LearningArguments, _COMMAND, arguments, PRESETS[preset].config, preset)
        return EXIT_DONE
    return learning(*contenders_of(arguments))


def learning(arguments: LearningArguments, contenders: Sequence[Contender]) -> int:
    """Train the runs that have not ended, summarise all, and return the exit code."""
    seeds = parse_seeds(arguments.seeds)
    check_side_by_side(arguments.side_by_side)
    study = Study(arguments.output or _default_folder(contenders), contenders, seeds)
    runs = [
        PlannedRun(f"{one.name}, seed {seed}", replace(one.config, seed=seed), study.run(one, seed), one.preset)
        for seed in seeds
        for one in contenders
    ]
    left = [planned for run in runs if (planned := run_left(run)) is not None]
    make_folder(study.folder, "output")
    console = Console()
    print_line(console, f"study: {study.folder}, {len(left)} of {len(runs)} runs to do")
    with Interrupts() as interrupts:
        codes = train_in_turn(left, arguments.side_by_side, console, interrupts)
        result = summarise(study)
        write_json(study.folder / "learning.json", result)
        show(console, result, study.folder)
        write_json(arguments.json, result)
        if not interrupts.asked:
            return max(codes, default=EXIT_DONE)
    print_line(console, "interrupted: the runs are saved, and the same command goes on")
    return EXIT_INTERRUPTED


def _starts(arguments: LearningArguments, settings: dict[str, Any]) -> list[tuple[str, RunConfig]]:
    """Each preset, and its settings with the typed ones."""
    options = settings.get(ENVIRONMENT_OPTIONS, {})
    others = {name: value for name, value in settings.items() if name != ENVIRONMENT_OPTIONS}
    requests = [train_request(word, others, options=options) for word in arguments.presets or (None,)]
    presets = [request.preset or preset_of_environment(request.environment_id) for request in requests]
    return [(p, request.changed(PRESETS[p].config)) for p, request in zip(presets, requests, strict=True)]


def contenders_of(line: Sequence[str]) -> tuple[LearningArguments, list[Contender]]:
    """The arguments of a line, and the contenders: each preset with the typed settings, alone and with each
    --compare."""
    typed, _ = parse(LearningArguments, _COMMAND, line)
    variants = []
    for changes in ("", *typed.compare):
        try:
            words = shlex.split(changes)
        except ValueError as error:
            raise setting_error("compare", changes, f"cannot be read: {error}") from error
        changed, settings = parse(LearningArguments, _COMMAND, [*line, *words])
        if changed != typed:
            raise setting_error("compare", changes, "takes settings of training only")
        variants.append([(preset, words, config) for preset, config in _starts(typed, settings)])
    contenders = [
        Contender(" ".join([preset, *words]), preset, _limited(typed, config, PRESETS[preset].config))
        for of_preset in zip(*variants, strict=True)
        for preset, words, config in of_preset
    ]
    for name in ("name", "folder", "config"):
        seen = [getattr(contender, name) for contender in contenders]
        for contender, value in zip(contenders, seen, strict=True):
            if seen.count(value) > 1:
                raise ConfigurationError(f"{contender.name} would be compared with itself: name each once")
    return typed, contenders


def _limited(arguments: LearningArguments, config: RunConfig, preset: RunConfig) -> RunConfig:
    """The settings of a contender's runs, with the mark and the minutes as their limits."""
    mark = arguments.mark
    for name, instead in (("stop_at_return", "--mark"), ("stop_after_seconds", "--minutes"), ("seed", "--seeds")):
        if getattr(config, name) != getattr(preset, name):
            raise setting_error(name, getattr(config, name), f"is given by {instead} here")
    for name in set_of_one_run(config):
        raise setting_error(name, getattr(config, name), "is for one run, and a study has several")
    if arguments.minutes is None:
        mark = preset.stop_at_return if mark is None else mark
        if mark is None:
            raise ConfigurationError("no limit: give --mark R, the return to reach, or --minutes N")
    elif not arguments.minutes > 0:
        raise setting_error("minutes", arguments.minutes, "must be greater than 0")
    seconds = None if arguments.minutes is None else 60.0 * arguments.minutes
    return replace(config, stop_at_return=mark, stop_after_seconds=seconds)


def _default_folder(contenders: Sequence[Contender]) -> Path:
    """A function of the contenders, so that the same command resumes the study."""
    settings = msgspec.json.encode([(contender.name, contender.config) for contender in contenders])
    presets = "-".join(dict.fromkeys(contender.preset for contender in contenders))
    return Path("runs") / f"learning-{presets}-{hashlib.sha256(settings).hexdigest()[:8]}"


def run_left(run: PlannedRun) -> PlannedRun | None:
    """The run as it has to be trained, new or resumed; None if it has ended. Refuses a run with other settings."""
    if not (run.folder / "config.json").is_file():
        return run
    before, now = flat_settings(RunFolder(run.folder).read_settings("output")), flat_settings(run.config)
    for name, value in now.items():
        if before.get(name) != value:
            raise setting_error(
                "output", run.folder, f"has a run with {name} {before.get(name)}, and not {value}; name another folder"
            )
    return left_to_do(run)


def summarise(study: Study) -> dict[str, Any]:
    """Each run, and for each contender the median and range over its runs that have ended.

    The time to the mark of a run that missed it counts as infinite, and an infinite median or maximum is None.
    """
    contenders = []
    for contender in study.contenders:
        runs = [_run(seed, study.run(contender, seed), contender.config) for seed in study.seeds]
        ended = [run for run in runs if run["ended"]]
        seconds = contender.config.stop_after_seconds
        contenders.append(
            {
                "name": contender.name,
                "preset": contender.preset,
                "mark": contender.config.stop_at_return,
                "minutes": None if seconds is None else seconds / 60,
                "runs_ended": len(ended),
                "runs_that_reached_the_mark": sum(run["seconds_to_mark"] is not None for run in ended),
                "over_seeds": _over_seeds(runs),
                "runs": runs,
                "settings": flat_settings(contender.config),
            }
        )
    return {"seeds": list(study.seeds), "contenders": contenders, **provenance()}


def _run(seed: int, folder: Path, config: RunConfig) -> dict[str, Any]:
    summary = read_summary(RunFolder(folder))
    reached = summary.get("confirmed_crossing") or {}
    return {
        "seed": seed,
        "folder": str(folder),
        "status": summary.get("status", "not ended" if folder.exists() else "not run"),
        # An interrupted run may have passed its limit already: then it is not resumed.
        "ended": summary.get("status") == "failed" or reached_limit(config, summary) is not None,
        **{f"{unit}_to_mark": reached.get(unit) for unit in ("seconds", "frames", "agent_steps")},
        "evaluation_mean_return": reached.get("evaluation_mean_return"),
        "agent_steps": summary.get("agent_steps_sampled"),
        **{name: summary.get(name) for name in ("mean_return_100", "frames", "wall_seconds", "agent_steps_per_second")},
    }


def _over_seeds(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Medians and ranges over the runs that have ended."""
    found = {}
    for name in (name for name in runs[0] if name not in ("seed", "folder", "status", "ended")):
        missing = math.inf if name.endswith("_to_mark") else None
        values = [missing if run[name] is None else run[name] for run in runs if run["ended"]]
        known = [value for value in values if value is not None]
        spread = (median(known), min(known), max(known)) if known else (None, None, None)
        found[name] = finite(dict(zip(("median", "least", "most"), spread, strict=True)))
    return found


def show(console: Console, result: dict[str, Any], folder: Path) -> None:
    """Print the table, with a row for each run, and the place of the files."""
    columns = {
        name: (heading, text)
        for limit, of_limit in _COLUMNS.items()
        if limit is None or any(contender[limit] is not None for contender in result["contenders"])
        for name, heading, text in of_limit
    }
    table = Table(box=None, pad_edge=False)
    table.add_column("", overflow="fold")
    table.add_column("seeds", no_wrap=True)
    for heading, _ in columns.values():
        # Headings in two lines leave room for the contenders' long names.
        table.add_column("\n".join(heading.split(maxsplit=1)), justify="right", no_wrap=True)

    def cells(values: dict[str, Any]) -> list[str]:
        return ["-" if values[name] is None else text(values[name]) for name, (_, text) in columns.items()]

    for contender in result["contenders"]:
        ended, mark = contender["runs_ended"], contender["mark"]
        seeds = f"{ended}" if mark is None else f"{contender['runs_that_reached_the_mark']} of {ended} to {mark:g}"
        medians = {name: spread["median"] for name, spread in contender["over_seeds"].items()}
        table.add_row(Text(contender["name"]), seeds, *cells(medians))
        for run in contender["runs"]:
            table.add_row(f"  seed {run['seed']}", run["status"].replace("_", " "), *cells(run), style="dim")
    console.print(table, highlight=False)
    console.print("a contender's figures are medians over its seeds", style="dim", highlight=False)
    print_line(console, f"figures: {folder / 'learning.json'}; curves: tributary plot {quoted(folder)}/*/")
