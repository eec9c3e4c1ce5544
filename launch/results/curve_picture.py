"""Learning curves as a picture: the median of several seeds with its band, or one run by itself."""

import textwrap
from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter

from launch.output.pictures import COLOURS
from launch.results.aggregate import Aggregate
from launch.results.curves import Band, Points, XAxis

_LEGEND_CHARACTERS = 70
_X_LABELS = {"frames": "frames", "agent_steps": "agent steps", "seconds": "seconds of training"}


def draw_curves(axes: Axes, groups: Sequence[Band], x: XAxis, y: str) -> None:
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
            label = f"{band.label}: median of {len(band.curves)} seeds, quartiles"
            axes.plot(band.x, band.median, color=colour, linewidth=1.8, label=label)
    _finish(axes, x, metric_label(y))


def _finish(axes: Axes, x: XAxis, y_label: str) -> None:
    axes.set_xlabel(_X_LABELS[x])
    axes.set_ylabel(y_label)
    if x != "seconds":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    handles, labels = axes.get_legend_handles_labels()
    # A legend as wide as the picture would leave no room for curves.
    axes.legend(handles, [textwrap.fill(label, _LEGEND_CHARACTERS) for label in labels], loc="best", fontsize=8)


def draw_aggregates(axes: Axes, groups: Sequence[Aggregate], x: XAxis, y: str) -> None:
    """Interquartile mean of each group, with its 95 % band."""
    for colour, group in zip(_cycle(), groups, strict=False):
        axes.fill_between(group.x, group.low, group.high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(group.x, group.iqm, color=colour, linewidth=1.8, label=group.label)
    what = "human-normalised return" if groups[0].human_normalised else metric_label(y)
    _finish(axes, x, f"{what}\ninterquartile mean, 95 % bootstrap band")


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
