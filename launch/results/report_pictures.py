"""The pictures of a report, as SVG elements."""

from collections import Counter

from matplotlib.ticker import MaxNLocator

from launch.results.pictures import COLOURS, as_svg, figure
from launch.results.time_spent import TimeSpent


def stages_svg(spent: TimeSpent) -> str:
    """What an agent step cost an actor in each stage."""
    stages, shares = spent.microseconds, spent.shares
    with figure(width=5.6, height=2.6) as (drawn, (axes,)):
        names = list(stages)[::-1]
        colours = [COLOURS[i] for i in range(len(names))][::-1]
        bars = axes.barh(names, [stages[name] for name in names], color=colours)
        axes.bar_label(bars, [f"{stages[name]:,.0f} µs, {shares[name]:.0%}" for name in names], padding=3, fontsize=8.5)
        axes.set_xlim(0, 1.3 * (max(stages.values()) or 1.0))
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("µs per agent step of an actor")
        return as_svg(drawn)


def lags_svg(counts: Counter[int]) -> str:
    """How many gradients had which policy lag."""
    total = max(counts.total(), 1)
    with figure(width=5.6, height=2.6) as (drawn, (axes,)):
        axes.bar(list(counts), [100 * count / total for count in counts.values()], color=COLOURS[0])
        axes.set_xlabel("policy lag of a gradient, updates")
        axes.set_ylabel("% of gradients")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return as_svg(drawn)
