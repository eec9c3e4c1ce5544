"""`tributary bench learning`: how long presets and variants of them take to learn, with several seeds of each.

A study is a folder with a run folder for each contender and seed, and the summary as JSON, CSV, Markdown and curves.
The seeds are the outer loop: contenders take turns, so that a slow hour of the machine is in all of them.
"""

import hashlib
import math
import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from launch.commands.options import (
    asks_for_help,
    help_page,
    parse,
    spelt_out,
    take_preset,
    unnamed_preset,
    with_full_help,
)
from launch.commands.seeds import PlannedRun, check_side_by_side, left_to_do, parse_seeds, train_in_turn
from launch.interrupts import Interrupts
from launch.output import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    check_json_file,
    hardware_line,
    make_folder,
    print_line,
    provenance,
    whole_csv,
    whole_file,
    write_json,
)
from launch.presets import PRESETS
from launch.presets.settings_files import set_of_one_run
from launch.results.curves import Band, Curve, XAxis, make_band, read_curve
from launch.run.folder import RunFolder, read_summary
from launch.run.status import reached_limit
from shared.config import RunConfig, flat_settings
from shared.errors import ConfigurationError, setting_error

_COMMAND = "bench learning [PRESET…]"
_TO_MARK = ("seconds_to_mark", "frames_to_mark", "agent_steps_to_mark")
_OTHERS = (
    "evaluation_mean_return", "mean_return_100", "frames", "agent_steps", "wall_seconds", "agent_steps_per_second",
)  # fmt: skip
_AXES: tuple[XAxis, ...] = ("seconds", "frames")


@dataclass(frozen=True)
class LearningArguments:
    """Train each preset with several seeds until a return is reached or for a number of minutes, and compare times,
    returns and curves. The same command resumes an interrupted study."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    mark: float | None = None
    """Return to reach, confirmed as with --stop-at-return. Default: the preset's, unless --minutes is given."""
    minutes: float | None = None
    """Limit on the minutes of each run. Without --mark, the returns at that time are compared."""
    seeds: str = "1-5"
    """Seeds like 1,2,3 or 1-10."""
    compare: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Settings of a variant of each preset, like --compare "--actor.environments 16". Repeatable."""
    side_by_side: int = 1
    """Runs at a time. Set --actors so that they fit on the cores."""
    output: Path | None = None
    """Folder of the study. Default: a folder below runs/ named by presets and settings."""
    json: Path | None = None
    """Output file of the result, besides learning.json in the folder."""


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
    """Run `tributary bench learning [PRESET…] [SETTINGS]` and return its exit code.

    Raises:
        ConfigurationError: a preset is unknown or a setting is invalid.
    """
    rest, presets = spelt_out(arguments), list[str]()
    while (preset := take_preset(rest)) is not None:
        presets.append(preset)
    presets = presets or [unnamed_preset(rest)]
    if asks_for_help(rest):
        purpose = " ".join(str(LearningArguments.__doc__).split())
        base = PRESETS[presets[0]].config
        print(help_page(_COMMAND, purpose, presets[0], base, LearningArguments), end="")
        return EXIT_DONE
    rest = _with_values_attached(with_full_help(rest), "--compare")
    return learning(*contenders_of(presets, rest))


def learning(arguments: LearningArguments, contenders: Sequence[Contender]) -> int:
    """Train the runs that have not ended, summarise all, and return the exit code.

    Raises:
        ConfigurationError: a setting is invalid or a run could not start.
    """
    seeds = parse_seeds(arguments.seeds)
    check_side_by_side(arguments.side_by_side)
    check_json_file(arguments.json)
    study = Study(arguments.output or _default_folder(contenders), contenders, seeds)
    runs = [
        PlannedRun(
            f"{contender.name}, seed {seed}",
            replace(contender.config, seed=seed),
            study.run(contender, seed),
            contender.preset,
        )
        for seed in seeds
        for contender in contenders
    ]
    left = [planned for run in runs if (planned := run_left(run)) is not None]
    make_folder(study.folder, "output")
    console = Console()
    print_line(console, f"study: {study.folder}, {len(left)} of {len(runs)} runs to do")
    with Interrupts() as interrupts:
        codes = train_in_turn(left, arguments.side_by_side, console, interrupts)
        result = summarise(study)
        write(study, result)
        show(console, result, study.folder)
        if arguments.json is not None:
            write_json(arguments.json, result)
        if not interrupts.asked:
            return max(codes, default=EXIT_DONE)
    print_line(console, "interrupted: the runs are saved, and the same command goes on")
    return EXIT_INTERRUPTED


def _parse(preset: str, arguments: Sequence[str]) -> LearningArguments:
    return parse(LearningArguments, _COMMAND, arguments, LearningArguments(PRESETS[preset].config))


def _with_values_attached(arguments: Sequence[str], name: str) -> list[str]:
    """`--name VALUE` as `--name=VALUE`, the only form in which the parser accepts a value that begins with a dash."""
    attached: list[str] = []
    for argument in arguments:
        if attached and attached[-1] == name:
            attached[-1] = f"{name}={argument}"
        else:
            attached.append(argument)
    return attached


def contenders_of(presets: Sequence[str], arguments: Sequence[str]) -> tuple[LearningArguments, list[Contender]]:
    """The arguments, and the contenders: each preset with the typed settings, alone and with each --compare."""
    contenders = []
    for preset in presets:
        typed = _parse(preset, arguments)
        for changes in ("", *typed.compare):
            try:
                words = shlex.split(changes)
            except ValueError as error:
                raise setting_error("compare", changes, f"cannot be read: {error}") from error
            changed = _parse(preset, [*arguments, *words])
            if replace(changed, config=typed.config) != typed:
                raise setting_error("compare", changes, "takes settings of training only")
            contenders.append(Contender(" ".join([preset, *words]), preset, _limited(changed, PRESETS[preset].config)))
    for name in ("name", "folder", "config"):
        seen = [getattr(contender, name) for contender in contenders]
        for contender, value in zip(contenders, seen, strict=True):
            if seen.count(value) > 1:
                raise ConfigurationError(f"{contender.name} would be compared with itself: name each once")
    return typed, contenders


def _limited(arguments: LearningArguments, preset: RunConfig) -> RunConfig:
    """The settings of a contender's runs, with the mark and the minutes as their limits."""
    config, mark = arguments.config, arguments.mark
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
    """The run as it has to be trained, new or resumed; None if it has ended.

    Raises:
        ConfigurationError: its folder is in use, or has a run with other settings.
    """
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
        contenders.append(
            {
                "name": contender.name,
                "preset": contender.preset,
                "mark": contender.config.stop_at_return,
                "minutes": _minutes(contender.config.stop_after_seconds),
                "runs_ended": len(ended),
                "runs_that_reached_the_mark": sum(run["seconds_to_mark"] is not None for run in ended),
                "over_seeds": _over_seeds(ended),
                "runs": runs,
                "settings": flat_settings(contender.config),
            }
        )
    return {"seeds": list(study.seeds), "contenders": contenders, **provenance()}


def _run(seed: int, folder: Path, config: RunConfig) -> dict[str, Any]:
    summary = read_summary(RunFolder(folder))
    # An interrupted run may have passed its limit already: then it is not resumed.
    ended = summary.get("status") == "failed" or reached_limit(config, summary) is not None
    reached = summary.get("confirmed_crossing") or {}
    return {
        "seed": seed,
        "folder": str(folder),
        "status": summary.get("status", "not ended" if folder.exists() else "not run"),
        "ended": ended,
        "seconds_to_mark": reached.get("seconds"),
        "frames_to_mark": reached.get("frames"),
        "agent_steps_to_mark": reached.get("agent_steps"),
        "evaluation_mean_return": reached.get("evaluation_mean_return"),
        "mean_return_100": summary.get("mean_return_100"),
        "frames": summary.get("frames"),
        "agent_steps": summary.get("agent_steps_sampled"),
        "wall_seconds": summary.get("wall_seconds"),
        "agent_steps_per_second": summary.get("agent_steps_per_second"),
    }


def _over_seeds(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    to_mark = {name: [math.inf if run[name] is None else run[name] for run in runs] for name in _TO_MARK}
    others = {name: [run[name] for run in runs if run[name] is not None] for name in _OTHERS}
    return {name: _spread(values) for name, values in (to_mark | others).items()}


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return {"median": None, "least": None, "most": None}
    # np.median of a number and an infinity is NaN.
    low, high = (float(np.percentile(values, 50, method=method)) for method in ("lower", "higher"))
    found = {"median": (low + high) / 2, "least": min(values), "most": max(values)}
    return {name: value if math.isfinite(value) else None for name, value in found.items()}


def _minutes(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / 60


def write(study: Study, result: dict[str, Any]) -> None:
    """Write learning.json, learning.csv, learning.md and the curves into the folder of the study."""
    write_json(study.folder / "learning.json", result)
    _write_rows(study.folder / "learning.csv", result)
    with whole_file(study.folder / "learning.md") as file:
        file.write(markdown(result))
    for x in _AXES:
        _draw(study, x)


def _write_rows(file: Path, result: dict[str, Any]) -> None:
    with whole_csv(file) as writer:
        names = list(result["contenders"][0]["runs"][0])
        writer.writerow(["contender", "mark", "minutes", *names])
        for contender in result["contenders"]:
            for run in contender["runs"]:
                values = (contender[name] for name in ("name", "mark", "minutes"))
                writer.writerow([*values, *(run[name] for name in names)])


def _draw(study: Study, x: XAxis) -> None:
    """Draw the return of all contenders over an axis, unless no run has a return yet."""
    found = (_band(study, contender, x) for contender in study.contenders)
    groups = [band for band in found if band is not None]
    if not groups:
        return
    from launch.results.plot import curves_figure, save

    configs = [contender.config for contender in study.contenders]
    marks = [(c.environment.id, c.stop_at_return) for c in configs if c.stop_at_return is not None]
    with curves_figure(groups, x, "mean_return_100", marks=marks) as drawn:
        paths = [study.folder / f"curves-{x}.{kind}" for kind in ("png", "svg")]
        save(drawn, paths, contenders=[contender.name for contender in study.contenders], seeds=list(study.seeds))


def _band(study: Study, contender: Contender, x: XAxis) -> Band | None:
    curves: list[Curve] = []
    for seed in study.seeds:
        # A run has no returns before its first episode ends.
        with suppress(ConfigurationError):
            curves.append(read_curve(study.run(contender, seed), x, "mean_return_100"))
    return make_band(contender.name, curves) if curves else None


def show(console: Console, result: dict[str, Any], folder: Path) -> None:
    """Print the table, with a row for each run, and the place of the files."""
    columns = _columns(result)
    table = Table(box=None, pad_edge=False)
    table.add_column("", overflow="fold")
    table.add_column("seeds", no_wrap=True)
    for column in columns:
        # Headings in two lines leave room for the contenders' long names.
        table.add_column("\n".join(column.heading.split(maxsplit=1)), justify="right", no_wrap=True)
    for contender in result["contenders"]:
        medians = (column.of(contender["over_seeds"][column.figure]["median"]) for column in columns)
        table.add_row(Text(contender["name"]), _reached(contender), *medians)
        for run in contender["runs"]:
            figures = (column.of(run[column.figure]) for column in columns)
            table.add_row(f"  seed {run['seed']}", run["status"].replace("_", " "), *figures, style="dim")
    console.print(table, highlight=False)
    console.print("a contender's figures are medians over its seeds", style="dim", highlight=False)
    print_line(console, f"table, figures and curves: {folder}")


def markdown(result: dict[str, Any]) -> str:
    """The table of medians and ranges for a document, with the command and the hardware."""
    columns = _columns(result)
    lines = [["", "seeds", *(column.heading for column in columns)], ["---"] * (2 + len(columns))]
    for contender in result["contenders"]:
        ranges = (column.range_of(contender["over_seeds"][column.figure]) for column in columns)
        lines.append([f"`{contender['name']}`", _reached(contender), *ranges])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    seeds = ", ".join(map(str, result["seeds"]))
    return f"{table}\n\n{_LEGEND} Seeds {seeds}. `{result['command']}` on {hardware_line(result)}.\n"


_LEGEND = "Median (least to most) over seeds; a mark is confirmed by an evaluation of the weights that crossed it."


def _count(count: float) -> str:
    return f"{count / 1e6:.2f} M" if count >= 1e5 else f"{count / 1e3:.1f} k"


def _in_minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f}" if seconds >= 60.0 else f"{seconds / 60:.2f}"


class _Column(NamedTuple):
    heading: str
    figure: str
    text: Callable[[float], str]

    def of(self, value: float | None) -> str:
        return "-" if value is None else self.text(value)

    def range_of(self, spread: dict[str, float | None]) -> str:
        if spread["least"] is None:
            return "-"
        return f"{self.of(spread['median'])} ({self.of(spread['least'])} to {self.of(spread['most'])})"


_MARK_COLUMNS = (
    _Column("minutes", "seconds_to_mark", _in_minutes),
    _Column("frames", "frames_to_mark", _count),
    _Column("agent steps", "agent_steps_to_mark", _count),
    _Column("evaluation", "evaluation_mean_return", lambda mean: f"{mean:,.1f}"),
)
_RETURN_COLUMN = _Column("return at the end", "mean_return_100", lambda mean: f"{mean:,.1f}")
_TIME_COLUMNS = (_Column("frames", "frames", _count), _Column("agent steps", "agent_steps", _count))
_SPEED_COLUMN = _Column("agent steps/s", "agent_steps_per_second", lambda rate: f"{rate:,.0f}")


def _columns(result: dict[str, Any]) -> list[_Column]:
    contenders = result["contenders"]
    by_mark, by_time = (any(c[limit] is not None for c in contenders) for limit in ("mark", "minutes"))
    return [
        *(_MARK_COLUMNS if by_mark else ()),
        *((_RETURN_COLUMN,) if by_time else ()),
        *(() if by_mark else _TIME_COLUMNS),
        _SPEED_COLUMN,
    ]


def _reached(contender: dict[str, Any]) -> str:
    ended, mark = contender["runs_ended"], contender["mark"]
    return f"{ended}" if mark is None else f"{contender['runs_that_reached_the_mark']} of {ended} to {mark:g}"
