"""Learning curves as a picture: the median of several seeds with its band, or one run by itself."""

from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter

from launch.output.pictures import COLOURS
from launch.results.curves import Band, XAxis

_X_LABELS = {"frames": "frames", "agent_steps": "agent steps", "seconds": "seconds of training"}


def draw_curves(axes: Axes, groups: Sequence[Band], x: XAxis, y: str) -> None:
    """Median and interquartile band of each group, and a thin line for each of its runs."""
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
        if several:
            axes.fill_between(band.x, band.low, band.high, color=colour, alpha=0.2, linewidth=0)
            label = f"{band.label}: median of {len(band.curves)} seeds, quartiles"
            axes.plot(band.x, band.median, color=colour, linewidth=1.8, label=label)
    axes.set_xlabel(_X_LABELS[x])
    axes.set_ylabel(metric_label(y))
    if x != "seconds":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.legend(loc="best", fontsize=8)


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
