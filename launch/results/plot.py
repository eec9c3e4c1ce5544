"""`tributary plot RUN…`: learning curves. Also the selection of runs, and the style and saving of all plots."""

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
from rich.console import Console

from launch.files import check_can_be_written, replacement, write_json
from launch.output import print_line
from launch.provenance import hardware_line, provenance, provenance_text
from launch.results.curves import (
    EVALUATION_RETURN,
    TRAINING_RETURN,
    Band,
    XAxis,
    bands,
    common_x,
    curve_of,
    read_metrics,
)
from launch.run.folder import RunFolder
from launch.run.lookup import RunPath
from launch.settings.parse import Operand
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
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.title_fontsize": 8,
    "figure.dpi": 110,
    "savefig.dpi": 160,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # TrueType: journals refuse Type 3
    "font.size": 9.5,
}
_POINT: Any = {"fmt": "o", "markerfacecolor": "white", "markeredgewidth": 0.9, "elinewidth": 0.8, "zorder": 3}

_Read = TypeVar("_Read")

_Y_CHARACTERS = 30
# Characters of an inch of a title.
_IN_AN_INCH = 14
_BANDS = "thick: median and quartiles, where all runs have data; thin: each run"
_POINTS = "points: evaluations of the weights at that time, ± standard error"
_PANELS_IN_A_ROW = 3
_PANEL_INCHES, _ONLY_PANEL_INCHES = (3.2, 2.5), (7.0, 4.0)
_SECONDS = {"hours": 3600, "minutes": 60, "seconds": 1}
_Y_LABELS = {
    TRAINING_RETURN: "return, mean of the last 100 training episodes",
    EVALUATION_RETURN: "return, mean of an evaluation",
}


@dataclass(frozen=True)
class PlotArguments:
    """Draw learning curves of runs. Runs that differ only in their seed become one median with a band, and each
    environment has a panel."""

    runs: Operand[tuple[RunPath, ...]]
    """Run folders, folders of run folders, latest, or zoo:NAME."""
    x: XAxis = "frames"
    """frames, agent_steps, or seconds of training."""
    y: str = "mean_return_100"
    """Any number of metrics.jsonl."""
    labels: tuple[str, ...] = ()
    """Names for the legend, one for each line of the output, in its order. Default: the settings that differ."""
    output: Path | None = None
    """File to write, .png, .svg or .pdf. Default: the first two, as curve.png and curve.svg in the run folder, or for
    several runs in their common parent folder, else in the working directory."""
    json: Path | None = None
    """File to write the curves to; `on_grid` has them at the x of `grid`, where all runs have data."""


def plot(arguments: PlotArguments) -> None:
    check_can_be_written(arguments.output, "output", (".png", ".svg", ".pdf"))
    runs, x, y = find_runs(arguments.runs), arguments.x, arguments.y
    curves = read_each(runs, lambda path: curve_of(read_metrics(path), x, y))
    groups = bands(curves)
    if arguments.labels:
        if len(arguments.labels) != len(groups):
            problem = f"{len(groups)} labels are needed, for {'; '.join(band.label for band in groups)}"
            raise setting_error("labels", " ".join(arguments.labels), problem)
        groups = [band._replace(label=label) for band, label in zip(groups, arguments.labels, strict=True)]
    output = arguments.output
    paths = [output] if output is not None else [default_output(runs, f"curve.{kind}") for kind in ("png", "svg")]
    with curves_figure(groups, x, y) as chart:
        save(chart, paths, runs=[curve.run.folder.name for curve in curves])
    console = Console()
    for band in groups:
        ends = ", ".join(f"{curve.y[-1]:.1f} (seed {curve.run.config.seed})" for curve in band.curves)
        print_line(console, f"{band.label}: at the end {ends}")
    for path in paths:
        print_line(console, f"curves: {path}")
    grid = common_x(curves)
    figures = {"x": x, "y": y, "grid": grid.tolist(), "groups": [as_json(band, grid) for band in groups]}
    write_json(arguments.json, figures | provenance())


def find_runs(paths: tuple[Path, ...]) -> list[Path]:
    """The run folders among `paths` and directly below them, each of them once."""
    folders: list[Path] = []
    for path in paths:
        inside = [path] if (path / "config.json").is_file() else sorted(p.parent for p in path.glob("*/config.json"))
        if not inside:
            raise setting_error("run", path, "is not the folder of a run, and holds none")
        folders += inside
    # By a folder of runs and by a path of its own, a run would count twice.
    return list(dict.fromkeys(path.resolve() for path in folders))


def read_each(paths: Sequence[Path], read: Callable[[Path], _Read]) -> list[_Read]:
    """The result of `read` for each run. Runs without a result yet are named and left out, unless no run has one."""
    results: list[_Read] = []
    refused: list[ConfigurationError] = []
    for path in paths:
        try:
            results.append(read(path))
        except ConfigurationError as error:
            refused.append(error)
    if not results:
        raise refused[0]
    for reason in refused:
        print_line(Console(), f"left out: {reason}")
    return results


def default_output(runs: list[Path], name: str) -> Path:
    """The default path of a file about runs: in the run folder, or for several runs in their common parent folder, else
    in the working directory."""
    if len(runs) == 1:
        return RunFolder(runs[0]).output(name)
    parents = {run.absolute().parent for run in runs}
    in_one = len(parents) == 1 and not RunFolder(runs[0]).ships
    return (parents.pop() if in_one else Path.cwd()) / name


def as_json(band: Band, grid: npt.NDArray[np.float64]) -> dict[str, Any]:
    runs = [
        {
            "folder": str(run.folder.path),
            "seed": run.config.seed,
            "x": x.tolist(),
            "y": y.tolist(),
            "on_grid": np.interp(grid, x, y).tolist(),
        }
        for run, x, y, _ in band.curves
    ]
    numbers = {name: values.tolist() for name, values in band._asdict().items() if isinstance(values, np.ndarray)}
    return {"label": band.label, "runs": runs, **numbers}


@contextmanager
def curves_figure(
    groups: Sequence[Band], x: XAxis, y: str, size: tuple[float, float] | None = None, *, legend: bool = True
) -> Iterator["Figure"]:
    """Curves of at least one group, in one panel for each environment: returns of two games have no common scale.

    A time is in the largest unit of which it is at least two. `size`: width and height of a panel in inches.
    """
    from matplotlib.ticker import EngFormatter

    by_environment: dict[str, list[Band]] = {}
    for band in groups:
        by_environment.setdefault(band.environment, []).append(band)
    panels = list(by_environment.values())
    columns = min(len(panels), _PANELS_IN_A_ROW)
    rows = math.ceil(len(panels) / columns)
    width, height = size or (_PANEL_INCHES if len(panels) > 1 else _ONLY_PANEL_INCHES)
    x_label, scale, colours = x.replace("_", " "), 1, cycle(COLOURS)
    if x == "seconds":
        longest = max(curve.x[-1] for band in groups for curve in band.curves)
        unit, scale = next((item for item in _SECONDS.items() if longest >= 2 * item[1]), ("seconds", 1))
        x_label = f"{unit} of training"
    with figure(width * columns, height * rows, columns, rows) as (chart, every):
        for axes, inside in zip(every, panels, strict=False):
            for band in inside:
                _draw_band(axes, next(colours), band, scale)
            single = all(len(band.curves) == 1 for band in inside)
            title = inside[0].environment + (", one run" + " each" * (len(inside) > 1) if single else "")
            y_label = textwrap.fill(_Y_LABELS.get(y, y.replace("_", " ")), _Y_CHARACTERS)
            axes.set(title=textwrap.fill(title, int(_IN_AN_INCH * (width - 0.9))), xlabel=x_label, ylabel=y_label)
            axes.set_xlim(left=0)
            if x != "seconds":
                axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        for axes in every[len(panels) :]:
            axes.remove()
        if legend:
            _draw_legend(chart, groups)
        yield chart


def _draw_legend(chart: "Figure", groups: Sequence[Band]) -> None:
    """Draw the legend below the axes, which keep their size."""
    handles = [handle for axes in chart.axes for handle in axes.get_legend_handles_labels()[0]]
    shown = {
        _BANDS: any(len(band.curves) > 1 for band in groups),
        _POINTS: any(len(curve.evaluations[0]) for band in groups for curve in band.curves),
    }
    title = "\n".join(line for line, applies in shown.items() if applies)
    below = chart.legend(handles=handles, title=title, loc="outside lower left", alignment="left")
    chart.set_figheight(chart.get_figheight() + below.get_window_extent().height / chart.dpi)


def _draw_band(axes: "Axes", colour: str, band: Band, scale: int) -> None:
    """The band of a group, with a thin line for each run and points for evaluations; for one run, its line."""
    several = len(band.curves) > 1
    for curve in band.curves:
        width, alpha = (0.6, 0.45) if several else (1.6, 1)
        label = "" if several else band.label
        # A line through one point is invisible.
        marker = "o" if len(curve.x) == 1 else None
        axes.plot(curve.x / scale, curve.y, marker=marker, color=colour, linewidth=width, alpha=alpha, label=label)
        evaluated, means, errors = curve.evaluations
        size, alpha = (2.5, 0.7) if several else (4, 1)
        axes.errorbar(evaluated / scale, means, errors, color=colour, markersize=size, alpha=alpha, **_POINT)
    if several:
        at, label = band.x / scale, f"{band.label}: {len(band.curves)} runs"
        axes.fill_between(at, band.lower_quartile, band.upper_quartile, color=colour, alpha=0.2, linewidth=0)
        axes.plot(at, band.median, color=colour, linewidth=1.8, label=label)


@contextmanager
def figure(width: float, height: float, columns: int = 1, rows: int = 1) -> Iterator[tuple["Figure", Sequence["Axes"]]]:
    """A figure with its axes, row by row. Without pyplot, whose windows and backend belong to the calling program."""
    from matplotlib import style
    from matplotlib.figure import Figure

    # Not in the style of the user's matplotlibrc, which may need LaTeX.
    with style.context(["default", _STYLE]):
        chart = Figure(figsize=(width, height), layout="constrained")
        yield chart, list(chart.subplots(rows, columns, squeeze=False).flat)


def save(chart: "Figure", paths: Sequence[Path], **description: Any) -> None:
    """Write a figure to each path, in the format of its suffix. Each file is replaced as a whole."""
    chart.text(0.995, 0.002, f"drawn on {hardware_line(provenance())}", ha="right", va="bottom", fontsize=6, alpha=0.6)
    comment = provenance_text(**description)
    for path in paths:
        with replacement(path) as part:
            chart.savefig(part, metadata={"Subject" if path.suffix == ".pdf" else "Description": comment})
