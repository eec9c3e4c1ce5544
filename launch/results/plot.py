"""`tributary plot RUN…`: learning curves, and the style of all pictures."""

import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console

from launch.output import (
    EXIT_DONE,
    check_json_file,
    check_output,
    hardware_line,
    print_line,
    provenance,
    provenance_text,
    write_json,
)
from launch.results.curves import Aggregate, Band, XAxis, aggregates, bands, read_curve
from launch.run.folder import RunFolder
from launch.run.status import RunPath
from shared.errors import ConfigurationError, setting_error

if TYPE_CHECKING:
    # Importing matplotlib takes a second: only functions that draw do.
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito 2008: distinct to readers of every kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "figure.dpi": 110,
    "savefig.dpi": 160,
    "svg.fonttype": "none",
    "font.size": 9.5,
}

_LEGEND_CHARACTERS = 70
_PANELS_IN_A_ROW = 3
_PANEL_INCHES = (3.2, 2.5)
# In the shared label beside a row of panels.
_ROW_CHARACTERS = 30
_X_LABELS = {"frames": "frames", "agent_steps": "agent steps", "seconds": "seconds of training"}


@dataclass(frozen=True)
class PlotArguments:
    """Draw learning curves of runs. Runs that differ only in their seed become one median with a band, and each
    environment has a panel."""

    runs: Annotated[tuple[RunPath, ...], tyro.conf.Positional]
    """Run folders, folders of run folders, latest, or zoo:NAME."""
    x: XAxis = "frames"
    """frames, agent_steps, or seconds of training."""
    y: str = "mean_return_100"
    """Any number of metrics.jsonl."""
    aggregate: Literal["median", "iqm"] = "median"
    """median: of runs that differ only in their seed, with quartiles. iqm: the interquartile mean over seeds and games
    with a 95 % stratified bootstrap band (arXiv 2108.13264); returns of several games are human-normalised."""
    output: Path | None = None
    """File to write, .png or .svg. Default: both, as curve.png and curve.svg in the run folder, or for several runs in
    their common parent folder, else in the working directory."""
    json: Path | None = None
    """File to write the curves to."""


def plot(arguments: PlotArguments) -> int:
    """Run `tributary plot`. Returns the exit code."""
    check_json_file(arguments.json)
    output = arguments.output
    check_output(output, (".png", ".svg"))
    runs = find_runs(arguments.runs)
    curves = [read_curve(run, arguments.x, arguments.y) for run in runs]
    if arguments.aggregate == "iqm":
        aggregated = aggregates(curves, arguments.y)
        picture = aggregates_figure(aggregated, arguments.x, arguments.y)
        lines = [aggregate_line(group, arguments.x) for group in aggregated]
        groups = [_aggregate_as_json(group) for group in aggregated]
    else:
        seeds = bands(curves)
        picture = curves_figure(seeds, arguments.x, arguments.y)
        lines, groups = band_lines(seeds), as_json(seeds)
    paths = [output] if output is not None else [default_output(runs, f"curve.{kind}") for kind in ("png", "svg")]
    with picture as drawn:
        save(drawn, paths, runs=[RunFolder(run).name for run in runs])
    console = Console()
    for line in lines:
        print_line(console, line)
    for path in paths:
        print_line(console, f"curves: {path}")
    if arguments.json is not None:
        how = {"x": arguments.x, "y": arguments.y, "aggregate": arguments.aggregate}
        write_json(arguments.json, {**how, "groups": groups, **provenance()})
    return EXIT_DONE


def find_runs(paths: tuple[Path, ...]) -> list[Path]:
    """The run folders among `paths` and directly below them.

    Raises:
        ConfigurationError: there is none.
    """
    if not paths:
        raise ConfigurationError("RUN: is missing; name at least one run folder, or latest")
    found: list[Path] = []
    for path in paths:
        inside = [path] if (path / "config.json").is_file() else sorted(p.parent for p in path.glob("*/config.json"))
        if not inside:
            raise setting_error("run", path, "is not the folder of a run, and holds none")
        found += inside
    return found


def default_output(runs: list[Path], name: str) -> Path:
    """The default path of a file about runs: in the run folder, or for several runs in their common parent folder, else
    in the working directory."""
    if len(runs) == 1:
        return RunFolder(runs[0]).output(name)
    parents = {run.absolute().parent for run in runs}
    in_one = len(parents) == 1 and not RunFolder(runs[0]).ships
    return (parents.pop() if in_one else Path.cwd()) / name


def band_lines(groups: list[Band]) -> list[str]:
    """A line with the last return of each run of each group."""
    ends = [", ".join(f"{c.y[-1]:.1f} (seed {c.config.seed})" for c in band.curves) for band in groups]
    return [f"{band.label}: at the end {end}" for band, end in zip(groups, ends, strict=True)]


def aggregate_line(group: Aggregate, x: XAxis) -> str:
    """A line with the score of a group at the end of its shortest run."""
    runs = ", ".join(f"{name} {count}" for name, count in group.games.items())
    what = "interquartile mean of human-normalised returns" if group.human_normalised else "interquartile mean"
    several = max(group.games.values()) > 1
    band = f"95 % {group.low[-1]:.2f} to {group.high[-1]:.2f}" if several else "no band from one run of each"
    return (
        f"{group.label}: at {group.x[-1]:,.0f} {x.replace('_', ' ')} {what} {group.iqm[-1]:.2f}, {band} (runs: {runs})"
    )


def _aggregate_as_json(group: Aggregate) -> dict[str, Any]:
    return {
        "label": group.label,
        "games": group.games,
        "runs": [{"folder": str(curve.folder), "seed": curve.config.seed} for curve in group.curves],
        "x": group.x.tolist(),
        "interquartile_mean": group.iqm.tolist(),
        "interval_95_low": group.low.tolist(),
        "interval_95_high": group.high.tolist(),
        "human_normalised": group.human_normalised,
    }


def as_json(groups: list[Band]) -> list[dict[str, Any]]:
    """The numbers of a picture."""
    return [
        {
            "label": band.label,
            "runs": [
                {"folder": str(c.folder), "seed": c.config.seed, "x": c.x.tolist(), "y": c.y.tolist()}
                for c in band.curves
            ],
            "x": band.x.tolist(),
            "seeds": band.seeds.tolist(),
            "lower_quartile": band.low.tolist(),
            "median": band.median.tolist(),
            "upper_quartile": band.high.tolist(),
        }
        for band in groups
    ]


@contextmanager
def curves_figure(
    groups: Sequence[Band],
    x: XAxis,
    y: str,
    *,
    size: tuple[float, float] = (7.0, 4.0),
    marks: Sequence[tuple[str, float]] = (),
) -> Iterator["Figure"]:
    """Curves in one panel for each environment, since returns of two games have no common scale.

    Args:
        groups: at least one.
        size: inches, for one environment.
        marks: environments, and a return at which each gets a dotted line.
    """
    panels: dict[str, list[Band]] = {}
    for band in groups:
        panels.setdefault(band.curves[0].config.environment.id, []).append(band)
    columns = min(len(panels), _PANELS_IN_A_ROW)
    rows = math.ceil(len(panels) / columns)
    if len(panels) > 1:
        size = (_PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * rows)
    with figure(*size, columns, rows) as (drawn, every):
        for axes, (environment, inside) in zip(every, panels.items(), strict=False):
            if len(panels) > 1:
                inside = [band._replace(label=band.label.removeprefix(environment).lstrip(", ")) for band in inside]
            _draw_curves(axes, inside, x, y, _LEGEND_CHARACTERS if len(panels) == 1 else _LEGEND_CHARACTERS // 2)
            for at in {at for marked, at in marks if marked == environment}:
                axes.axhline(at, color="black", linestyle=":", linewidth=1)
            if len(panels) > 1:
                axes.set(title=environment, xlabel="", ylabel="")
        for axes in every[len(panels) :]:
            axes.remove()
        if len(panels) > 1:
            drawn.supxlabel(_X_LABELS[x], fontsize="medium")
            drawn.supylabel(textwrap.fill(metric_label(y), _ROW_CHARACTERS * rows), fontsize="medium")
        yield drawn


def _draw_curves(axes: "Axes", groups: Sequence[Band], x: XAxis, y: str, legend_characters: int) -> None:
    """Median and interquartile band of each group, a thin line for each run, and points for evaluations."""
    for colour, band in zip(cycle(COLOURS), groups, strict=False):
        several = len(band.curves) > 1
        for curve in band.curves:
            label = None if several else band.label
            width, alpha = (0.6, 0.45) if several else (1.6, 1)
            axes.plot(curve.x, curve.y, color=colour, linewidth=width, alpha=alpha, label=label)
            if curve.evaluations is not None:
                # All runs share one entry of the legend.
                points, name = curve.evaluations, "evaluations of the weights at that time, ± standard error"
                axes.errorbar(
                    points.x,
                    points.y,
                    points.error,
                    color=colour,
                    linestyle="none",
                    marker="o",
                    markersize=2.5 if several else 4,
                    markerfacecolor="white",
                    markeredgewidth=0.9,
                    elinewidth=0.8,
                    alpha=0.7 if several else 1,
                    label=None if name in axes.get_legend_handles_labels()[1] else name,
                    zorder=3,
                )
        if several:
            axes.fill_between(band.x, band.low, band.high, color=colour, alpha=0.2, linewidth=0)
            label = ": ".join(filter(None, (band.label, f"median of {_seeds_of(band)}, quartiles")))
            axes.plot(band.x, band.median, color=colour, linewidth=1.8, label=label)
    _finish(axes, x, metric_label(y), legend_characters)


def _seeds_of(band: Band) -> str:
    """The number of seeds that a band is of, and that at its ends if some seeds start later or end earlier."""
    if not band.seeds.size:
        return f"{len(band.curves)} seeds, no two of which overlap"
    most, first, last = band.seeds.max(), band.seeds[0], band.seeds[-1]
    ends = [f"{count} at the {end}" for end, count in (("start", first), ("end", last)) if count < most]
    return f"{most} seeds" + (f" ({', '.join(ends)})" if ends else "")


def _finish(axes: "Axes", x: XAxis, y_label: str, legend_characters: int = _LEGEND_CHARACTERS) -> None:
    from matplotlib.ticker import EngFormatter

    axes.set_xlabel(_X_LABELS[x])
    axes.set_ylabel(y_label)
    axes.set_xlim(left=0)
    if x != "seconds":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    handles, labels = axes.get_legend_handles_labels()
    # Wrapped, because a legend as wide as the picture leaves no room for curves.
    axes.legend(handles, [textwrap.fill(label, legend_characters) for label in labels], loc="best", fontsize=8)


@contextmanager
def aggregates_figure(groups: Sequence[Aggregate], x: XAxis, y: str) -> Iterator["Figure"]:
    """Interquartile mean of each group, with its 95 % band."""
    with figure() as (drawn, (axes,)):
        for colour, group in zip(cycle(COLOURS), groups, strict=False):
            axes.fill_between(group.x, group.low, group.high, color=colour, alpha=0.2, linewidth=0)
            axes.plot(group.x, group.iqm, color=colour, linewidth=1.8, label=group.label)
        what = "human-normalised return" if groups[0].human_normalised else metric_label(y)
        _finish(axes, x, f"{what}\ninterquartile mean, 95 % bootstrap band")
        yield drawn


def metric_label(name: str) -> str:
    """The label of an axis for a metric."""
    labels = {
        "mean_return_100": "return, mean of the last 100 training episodes",
        "evaluation_return": "return, mean of an evaluation",
    }
    return labels.get(name, name.replace("_", " "))


@contextmanager
def figure(
    width: float = 7.0, height: float = 4.0, columns: int = 1, rows: int = 1
) -> Iterator[tuple["Figure", Sequence["Axes"]]]:
    """A figure with its axes, row by row. Without pyplot, whose windows and backend belong to the calling program."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        drawn = Figure(figsize=(width, height), layout="constrained")
        yield drawn, list(drawn.subplots(rows, columns, squeeze=False).flat)


def save(drawn: "Figure", paths: Sequence[Path], **made: Any) -> None:
    """Write a figure to each path, in the format of its suffix. Each file is replaced as a whole."""
    drawn.text(0.995, 0.002, hardware_line(provenance()), ha="right", va="bottom", fontsize=6, alpha=0.6)
    comment = provenance_text(**made)
    for path in paths:
        part = path.with_name(f"{path.stem}.part{path.suffix}")
        drawn.savefig(part, metadata={"Description": comment})
        part.replace(path)


def as_svg(drawn: "Figure") -> str:
    """A figure as an SVG element."""
    text = io.StringIO()
    drawn.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]
