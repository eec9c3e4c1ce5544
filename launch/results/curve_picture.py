"""Learning curves as a picture: the median of several seeds with its band, or one run by itself; a panel for each
environment."""

import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from launch.results.aggregate import Aggregate
from launch.results.curves import Band, Points, XAxis
from launch.results.pictures import COLOURS, figure

_LEGEND_CHARACTERS = 70
_PANELS_IN_A_ROW = 3
_PANEL_INCHES = (3.2, 2.5)
# That fit beside a row of panels.
_ROW_CHARACTERS = 30
_X_LABELS = {"frames": "frames", "agent_steps": "agent steps", "seconds": "seconds of training"}


@contextmanager
def curves_figure(
    groups: Sequence[Band],
    x: XAxis,
    y: str,
    *,
    size: tuple[float, float] = (7.0, 4.0),
    marks: Sequence[tuple[str, float]] = (),
) -> Iterator[Figure]:
    """Curves of one environment side by side. Several environments have a panel each: returns of two games have no
    common scale.

    Args:
        groups: at least one.
        x, y: what the axes are.
        size: inches of the picture of one environment.
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


def _draw_curves(axes: Axes, groups: Sequence[Band], x: XAxis, y: str, legend_characters: int) -> None:
    """Median and interquartile band of each group, a thin line for each run, and points for evaluations."""
    for colour, band in zip(_cycle(), groups, strict=False):
        several = len(band.curves) > 1
        for curve in band.curves:
            label = None if several else band.label
            axes.plot(
                curve.x,
                curve.y,
                color=colour,
                linewidth=0.6 if several else 1.6,
                alpha=0.45 if several else 1,
                label=label,
            )
            if curve.evaluations is not None:
                _draw_evaluations(axes, curve.evaluations, colour, several=several)
        if several:
            axes.fill_between(band.x, band.low, band.high, color=colour, alpha=0.2, linewidth=0)
            label = ": ".join(filter(None, (band.label, f"median of {len(band.curves)} seeds, quartiles")))
            axes.plot(band.x, band.median, color=colour, linewidth=1.8, label=label)
    _finish(axes, x, metric_label(y), legend_characters)


def _finish(axes: Axes, x: XAxis, y_label: str, legend_characters: int = _LEGEND_CHARACTERS) -> None:
    axes.set_xlabel(_X_LABELS[x])
    axes.set_ylabel(y_label)
    if x != "seconds":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    handles, labels = axes.get_legend_handles_labels()
    # A legend as wide as the picture would leave no room for curves.
    axes.legend(handles, [textwrap.fill(label, legend_characters) for label in labels], loc="best", fontsize=8)


@contextmanager
def aggregates_figure(groups: Sequence[Aggregate], x: XAxis, y: str) -> Iterator[Figure]:
    """Interquartile mean of each group, with its 95 % band."""
    with figure() as (drawn, (axes,)):
        for colour, group in zip(_cycle(), groups, strict=False):
            axes.fill_between(group.x, group.low, group.high, color=colour, alpha=0.2, linewidth=0)
            axes.plot(group.x, group.iqm, color=colour, linewidth=1.8, label=group.label)
        what = "human-normalised return" if groups[0].human_normalised else metric_label(y)
        _finish(axes, x, f"{what}\ninterquartile mean, 95 % bootstrap band")
        yield drawn


def _draw_evaluations(axes: Axes, points: Points, colour: str, *, several: bool) -> None:
    """A point and its standard error for each evaluation of one run; one entry of the legend for all runs."""
    words = "evaluations of the weights at that time, ± standard error"
    labelled = words in axes.get_legend_handles_labels()[1]
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
        label=None if labelled else words,
        zorder=3,
    )


def metric_label(name: str) -> str:
    """What a metric is called on an axis."""
    labels = {
        "mean_return_100": "return, mean of the last 100 training episodes",
        "evaluation_return": "return, mean of an evaluation",
    }
    return labels.get(name, name.replace("_", " "))


def _cycle() -> Iterator[str]:
    while True:
        yield from COLOURS
