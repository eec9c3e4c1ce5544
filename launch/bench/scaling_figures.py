"""The pictures of `tributary bench scaling`."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, LogLocator, NullFormatter, NullLocator, ScalarFormatter

from launch.results.pictures import COLOURS, figure, save
from shared.types import StageSeconds


def draw(folder: Path, result: dict[str, Any]) -> None:
    """Write throughput, stages and lag, each as PNG and SVG."""
    series: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in result["points"]:
        series.setdefault((row["gradients_per_update"], row["unroll"]), []).append(row)
    with figure() as (drawn, (axes,)):
        _throughput(axes, series)
        _save(drawn, folder / "throughput", result)
    with figure(width=max(7.0, 1.1 * len(result["points"]) + 2)) as (drawn, (axes,)):
        _stages(axes, result["points"])
        _save(drawn, folder / "stages", result)
    with figure() as (drawn, (axes,)):
        _lag(axes, series)
        _save(drawn, folder / "lag", result)


def _save(drawn: Figure, path: Path, result: dict[str, Any]) -> None:
    save(drawn, [path.with_suffix(".png"), path.with_suffix(".svg")], settings=result["settings"])


def _throughput(axes: Axes, series: dict[tuple[int, int], list[dict[str, Any]]]) -> None:
    for colour, ((count, unroll), rows) in zip(COLOURS, sorted(series.items()), strict=False):
        actors = np.array([row["actors"] for row in rows])
        rates = np.array([row["agent_steps_per_second"] for row in rows])
        errors = np.abs(np.array([[row["least"], row["most"]] for row in rows]).T - rates)
        label = f"K = {count}, unroll {unroll}"
        axes.errorbar(actors, rates, errors, color=colour, marker="o", capsize=3, label=f"{label}, median and range")
        axes.plot(
            actors,
            rates[0] / actors[0] * actors,
            color=colour,
            linestyle=":",
            label="ideal: as the fewest, times actors",
        )
        for bound, width, words in (("bound", 1.5, "alone"), ("bound_under_load", 0.8, "on busy cores")):
            if rows[0][bound] is not None:
                bounds = [row[bound] for row in rows]
                label = f"bound: cores / (e + a + g) {words}"
                axes.plot(actors, bounds, color=colour, linestyle="--", linewidth=width, label=label)
        ceiling = rows[0]["learner_ceiling"]
        if ceiling is not None:
            axes.axhline(
                ceiling, color=colour, linestyle="-.", linewidth=1, label=f"the learner's ceiling, K = {count}"
            )
    # Measurements and the learner's ceiling may be orders of magnitude apart.
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("agent steps per second")
    _actors_axis(axes, [row["actors"] for rows in series.values() for row in rows])
    axes.legend(fontsize=8)


def _stages(axes: Axes, points: list[dict[str, Any]]) -> None:
    names = [f"{p['actors']} actors\nK {p['gradients_per_update']}, T {p['unroll']}" for p in points]
    bottom = np.zeros(len(points))
    for colour, stage in zip(COLOURS, StageSeconds._fields, strict=False):
        costs = np.array([point["stage_microseconds"][stage] for point in points])
        axes.bar(names, costs, bottom=bottom, color=colour, label=stage, width=0.6)
        bottom += costs
    axes.set_ylabel("µs per agent step of an actor")
    axes.grid(visible=False, axis="x")
    axes.legend(fontsize=8, ncols=len(StageSeconds._fields), loc="upper center", bbox_to_anchor=(0.5, 1.13))


def _lag(axes: Axes, series: dict[tuple[int, int], list[dict[str, Any]]]) -> None:
    for colour, ((count, unroll), rows) in zip(COLOURS, sorted(series.items()), strict=False):
        actors = [row["actors"] for row in rows]
        for kind, style in (("mean", "-"), ("p95", "--"), ("max", ":")):
            lags = [row[f"policy_lag_{kind}"] for row in rows]
            axes.plot(actors, lags, style, color=colour, marker="o", label=f"{kind}, K = {count}, unroll {unroll}")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("policy lag, updates")
    _actors_axis(axes, [row["actors"] for rows in series.values() for row in rows])
    axes.legend(fontsize=8)


def _actors_axis(axes: Axes, actors: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted(set(actors))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set_xlabel("actors")
