"""`tributary plot RUN…`: learning curves, and the style of all pictures."""

import io
import math
import textwrap
from collections import Counter
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
    Curve,
    XAxis,
    bands,
    common_x,
    curve_of,
    read_metrics,
    seeds_of,
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
    "figure.dpi": 110,
    "savefig.dpi": 160,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # TrueType: journals refuse Type 3
    "font.size": 9.5,
}

_Read = TypeVar("_Read")

_Y_CHARACTERS = 30
# Characters of an inch, and the inches of a panel that its title and the text of its legend do not have.
_TITLE_CHARACTERS, _LEGEND_CHARACTERS = (14, 0.9), (17, 1.3)
# Runs with the same number of frames end within a few rows.
_SAME_END = 1.02
# Inches below the axes of the numbers and the label of x.
_X_INCHES = 0.42
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
            problem = f"{len(groups)} are needed, for {'; '.join(band.label for band in groups)}"
            raise setting_error("labels", " ".join(arguments.labels), problem)
        groups = [band._replace(label=label) for band, label in zip(groups, arguments.labels, strict=True)]
    output = arguments.output
    paths = [output] if output is not None else [default_output(runs, f"curve.{kind}") for kind in ("png", "svg")]
    with curves_figure(groups, x, y) as chart:
        save(chart, paths, runs=[curve.run.folder.name for curve in curves])
    console = Console()
    for line in (*map(band_line, groups), *(f"curves: {path}" for path in paths)):
        print_line(console, line)
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
    once: dict[Path, Path] = {}
    for path in folders:
        once.setdefault(path.resolve(), path)
    return list(once.values())


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


def band_line(band: Band) -> str:
    """A line with the last return of each run of a group."""
    ends = ", ".join(f"{curve.y[-1]:.1f} (seed {curve.run.config.seed})" for curve in band.curves)
    runs = [curve.run for curve in band.curves]
    count = f"{seeds_of(runs)}, " if len({run.config.seed for run in runs}) < len(runs) else ""
    return f"{band.label}: {count}at the end {ends}"


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
def curves_figure(groups: Sequence[Band], x: XAxis, y: str) -> Iterator["Figure"]:
    """Curves of at least one group, in one panel for each environment: returns of two games have no common scale."""
    panels = _by_environment(groups)
    columns = min(len(panels), _PANELS_IN_A_ROW)
    rows = math.ceil(len(panels) / columns)
    width, height = _PANEL_INCHES if len(panels) > 1 else _ONLY_PANEL_INCHES
    with figure(width * columns, height * rows, columns, rows) as (chart, every):
        for axes, inside in zip(every, panels, strict=False):
            _draw_panel(axes, inside, y, width)
        for axes in every[len(panels) :]:
            axes.remove()
        _label_x(chart, x)
        _make_room_for_legends(chart, columns)
        yield chart


def panels_svg(curves: Sequence[Curve], x: XAxis, y: str, size: tuple[float, float], *, legend: bool) -> Iterator[str]:
    """A picture of the curves of each environment, `size` inches large."""
    for groups in _by_environment(bands(curves)):
        with figure(*size) as (chart, (axes,)):
            _draw_panel(axes, groups, y, size[0], legend=legend)
            _label_x(chart, x)
            _make_room_for_legends(chart)
            yield as_svg(chart)


def _by_environment(groups: Sequence[Band]) -> list[list[Band]]:
    by_environment: dict[str, list[Band]] = {}
    for band in groups:
        by_environment.setdefault(band.environment, []).append(band)
    return list(by_environment.values())


def _label_x(chart: "Figure", x: XAxis) -> None:
    """The label and the ticks of all panels: of a time in the largest unit of which it is at least two."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    longest = max(axes.get_xlim()[1] for axes in chart.axes)
    unit, seconds = next((item for item in _SECONDS.items() if longest >= 2 * item[1]), ("seconds", 1))
    for axes in chart.axes:
        if x == "seconds":
            last = axes.get_xlim()[1] / seconds
            ticks = np.array(MaxNLocator(6, steps=(1, 2, 5, 10)).tick_values(0, last))
            ticks = ticks[ticks <= last]
            axes.set_xticks(ticks * seconds, [f"{tick:g}" for tick in ticks])
        else:
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_xlabel(f"{unit} of training" if x == "seconds" else x.replace("_", " "))


def _draw_panel(axes: "Axes", groups: Sequence[Band], y: str, width: float, *, legend: bool = True) -> None:
    """Draw groups of one environment, which is the title. The panel is `width` inches wide."""
    from matplotlib.transforms import ScaledTranslation

    for colour, band in zip(cycle(COLOURS), groups, strict=False):
        _draw_band(axes, colour, band)
    single = all(len(band.curves) == 1 for band in groups)
    how = ", one run" + " each" * (len(groups) > 1) if single else ""
    y_label = textwrap.fill(_Y_LABELS.get(y, y.replace("_", " ")), _Y_CHARACTERS)
    axes.set(title=_filled(groups[0].environment + how, width, *_TITLE_CHARACTERS), ylabel=y_label)
    axes.set_xlim(left=0)
    handles, labels = axes.get_legend_handles_labels()
    if legend and handles:
        # Below the axes: the place in them with the fewest curves has some where there are many.
        axes.legend(
            handles,
            [_filled(label, width, *_LEGEND_CHARACTERS) for label in labels],
            loc="upper left",
            bbox_to_anchor=(0, 0),
            bbox_transform=axes.transAxes + ScaledTranslation(0, -_X_INCHES, axes.figure.dpi_scale_trans),
            borderaxespad=0,
            fontsize=8,
        )


def _filled(text: str, width: float, in_an_inch: int, less: float) -> str:
    """`text` in lines that are no wider than a panel."""
    return textwrap.fill(text, int(in_an_inch * (width - less)))


def _make_room_for_legends(chart: "Figure", columns: int = 1) -> None:
    """Make a figure higher by the highest legend of each row of panels, so that axes keep their size."""
    legends = [axes.get_legend() for axes in chart.axes]
    heights = [0.0 if legend is None else legend.get_window_extent().height / chart.dpi for legend in legends]
    rows = [max(heights[first : first + columns]) for first in range(0, len(heights), columns)]
    chart.set_figheight(chart.get_figheight() + sum(rows))


def _draw_band(axes: "Axes", colour: str, band: Band) -> None:
    """The band of a group, with a thin line for each run and points for evaluations; for one run, its line."""
    several, name = len(band.curves) > 1, band.label.removeprefix(band.environment).lstrip(", ")
    for curve in band.curves:
        width, alpha = (0.6, 0.45) if several else (1.6, 1)
        axes.plot(curve.x, curve.y, color=colour, linewidth=width, alpha=alpha, label="" if several else name)
        if curve.evaluations.size:
            # All runs share one entry of the legend.
            label = "evaluations of the weights at that time, ± standard error"
            axes.errorbar(
                *curve.evaluations,
                color=colour,
                linestyle="none",
                marker="o",
                markersize=2.5 if several else 4,
                markerfacecolor="white",
                markeredgewidth=0.9,
                elinewidth=0.8,
                alpha=0.7 if several else 1,
                label="" if label in axes.get_legend_handles_labels()[1] else label,
                zorder=3,
            )
    if several:
        median = ": ".join(filter(None, (name, f"median of {_seeds_of(band)}, quartiles; thin: each run")))
        axes.fill_between(band.x, band.lower_quartile, band.upper_quartile, color=colour, alpha=0.2, linewidth=0)
        axes.plot(band.x, band.median, color=colour, linewidth=1.8, label=median)


def _seeds_of(band: Band) -> str:
    """The number of runs in a band, the number at its start if some start later, and where it ends."""
    runs = [curve.run for curve in band.curves]
    if not band.seeds.size:
        return f"{seeds_of(runs)}, no two of which overlap"
    most, first = band.seeds.max(), band.seeds[0]
    go_on = max(curve.x[-1] for curve in band.curves) > _SAME_END * band.x[-1]
    start = f" ({first} at the start)" if first < most else ""
    return seeds_of(runs, most) + start + (" until the first one ends" if go_on else "")


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
    chart.text(0.995, 0.002, hardware_line(provenance()), ha="right", va="bottom", fontsize=6, alpha=0.6)
    comment = provenance_text(**description)
    for path in paths:
        with replacement(path) as part:
            chart.savefig(part, metadata={"Subject" if path.suffix == ".pdf" else "Description": comment})


def as_svg(chart: "Figure") -> str:
    text = io.StringIO()
    chart.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def stages_svg(microseconds: dict[str, float]) -> str:
    """A bar chart of an actor's microseconds per agent step, by stage, with their shares."""
    total = sum(microseconds.values()) or 1.0
    names = list(microseconds)[::-1]
    with figure(width=5.6, height=2.6) as (chart, (axes,)):
        bars = axes.barh(names, [microseconds[name] for name in names], color=COLOURS[: len(names)][::-1])
        labels = [f"{microseconds[name]:,.0f} µs, {microseconds[name] / total:.0%}" for name in names]
        axes.bar_label(bars, labels, padding=3, fontsize=8.5)
        axes.set_xlim(0, 1.3 * (max(microseconds.values()) or 1.0))
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("µs per agent step of an actor")
        return as_svg(chart)


def lags_svg(counts: Counter[int]) -> str:
    from matplotlib.ticker import MaxNLocator

    total = max(counts.total(), 1)
    with figure(width=5.6, height=2.6) as (chart, (axes,)):
        axes.bar(list(counts), [100 * count / total for count in counts.values()], color=COLOURS[0])
        axes.set_xlabel("policy lag of a gradient, updates")
        axes.set_ylabel("% of gradients")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return as_svg(chart)
