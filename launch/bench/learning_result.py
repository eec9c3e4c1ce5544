"""What `tributary bench learning` makes of its runs: medians and ranges, tables, files, pictures."""

import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from launch.output import hardware_line, print_line, provenance, whole_csv, whole_file, write_json
from launch.results.curves import Band, Curve, XAxis, make_band, read_curve
from launch.run.folder import RunFolder, read_summary
from launch.run.status import reached_limit
from shared.config import RunConfig, flat_settings
from shared.errors import ConfigurationError

_TO_MARK = ("seconds_to_mark", "frames_to_mark", "agent_steps_to_mark")
_OTHERS = (
    "evaluation_mean_return", "mean_return_100", "frames", "agent_steps", "wall_seconds", "agent_steps_per_second",
)  # fmt: skip
_AXES: tuple[XAxis, ...] = ("seconds", "frames")


class Contender(NamedTuple):
    """What is compared. `name` is as it was typed."""

    name: str
    preset: str
    config: RunConfig

    @property
    def folder(self) -> str:
        """The folder of its runs in the study's."""
        return re.sub(r"[^A-Za-z0-9._]+", "-", self.name).strip("-")


class Study(NamedTuple):
    """Contenders, each with the same seeds, and the folder of all their runs."""

    folder: Path
    contenders: Sequence[Contender]
    seeds: Sequence[int]

    def run(self, contender: Contender, seed: int) -> Path:
        """The folder of a run."""
        return self.folder / contender.folder / f"seed-{seed}"


def summarise(study: Study) -> dict[str, Any]:
    """Each run, and for each contender median and range over its runs that have ended.

    A run that ended without its mark takes longer than any that reached it: where it is the median, or the most, that
    is None.
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
    # One that was interrupted may have passed its limit: the same command does not go on with it.
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
    # NumPy's own median of a number and an infinity is no number.
    low, high = (float(np.percentile(values, 50, method=method)) for method in ("lower", "higher"))
    found = {"median": (low + high) / 2, "least": min(values), "most": max(values)}
    return {name: value if math.isfinite(value) else None for name, value in found.items()}


def _minutes(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / 60


def write(study: Study, result: dict[str, Any]) -> None:
    """learning.json, learning.csv, learning.md and the pictures, into the folder of the study."""
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
    """Return over an axis, contenders beside each other; nothing where no run has a return yet."""
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
        # A run that has only begun has no returns.
        with suppress(ConfigurationError):
            curves.append(read_curve(study.run(contender, seed), x, "mean_return_100"))
    return make_band(contender.name, curves) if curves else None


def show(console: Console, result: dict[str, Any], folder: Path) -> None:
    """The table with each run, and where the files are."""
    columns = _columns(result)
    table = Table(box=None, pad_edge=False)
    table.add_column("", overflow="fold")
    table.add_column("seeds", no_wrap=True)
    for column in columns:
        # In two lines where that is narrower: contenders have long names.
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
    """The table for a document, with the command and the hardware."""
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
