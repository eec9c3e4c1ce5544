"""What `tributary bench scaling` makes of its measurements: medians, words, tables, files."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from launch.bench.throughput import DRIFT
from launch.output import provenance, whole_csv, write_json

# Stages in which an actor does nothing but wait for weights.
_WAITING_STAGES = ("synchronise", "wait")
# A learner this busy is what holds the rest back; actors that wait this share of their time wait for something.
_BUSY, _WAITING = 0.8, 0.15


class Point(NamedTuple):
    """What varies."""

    actors: int
    gradients_per_update: int
    unroll: int


def summarise(
    settings: dict[str, Any], points: Sequence[Point], measurements: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Medians over repeats, speed-up and efficiency against one actor and against the bound, and words."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for measurement in measurements:
        by_kind.setdefault(measurement["kind"], []).append(measurement)
    ceilings = by_kind["ceiling"][-1]["gradients_per_second"] if "ceiling" in by_kind else {}
    rows = []
    for point in points:
        made = [m for m in by_kind.get("throughput", []) if Point(*m["point"]) == point]
        if not made:
            continue
        rates = [m["agent_steps_per_second"] for m in made]
        ceiling = ceilings.get(str(point.gradients_per_update))
        until = next((m for m in by_kind.get("until", []) if Point(*m["point"]) == point), None)
        rows.append(
            {
                **point._asdict(),
                "repeats": len(made),
                "agent_steps_per_second": float(np.median(rates)),
                "least": min(rates),
                "most": max(rates),
                **{
                    name: float(np.median([m[name] for m in made]))
                    for name in ("frames_per_second", "updates_per_second", "policy_lag_mean", "learner_utilisation")
                },
                # Measurements of older versions, and those without reuse, have none.
                **{
                    name: float(np.median([m["drift"][name] for m in made])) if made[0].get("drift") else None
                    for name in DRIFT
                },
                "policy_lag_p95": max(m["policy_lag_p95"] for m in made),
                "policy_lag_max": max(m["policy_lag_max"] for m in made),
                "stage_microseconds": {
                    stage: 1e6 * float(np.median([m["stage_seconds_per_step"][stage] for m in made]))
                    for stage in made[0]["stage_seconds_per_step"]
                },
                "agent_steps_dropped": dict(sum((Counter(m["agent_steps_dropped"]) for m in made), Counter())),
                **_bounds(point, by_kind.get("components", [])),
                "learner_ceiling": None if ceiling is None else ceiling * agent_steps_per_gradient(settings, point),
                "seconds_to_return": until["seconds"] if until else None,
                "frames_to_return": until["frames"] if until else None,
            }
        )
    for row in rows:
        fewest = min((r for r in rows if _series(r) == _series(row)), key=lambda r: r["actors"])
        row["speed_up"] = row["agent_steps_per_second"] / fewest["agent_steps_per_second"] * fewest["actors"]
        row["efficiency"] = row["speed_up"] / row["actors"]
        for bound in ("bound", "bound_under_load"):
            row[f"fraction_of_{bound}"] = None if row[bound] is None else row["agent_steps_per_second"] / row[bound]
    return {
        "points": rows,
        "verdict": [
            verdict([r for r in rows if _series(r) == series]) for series in sorted({_series(r) for r in rows})
        ],
        "settings": settings,
        **provenance(),
    }


def agent_steps_per_gradient(settings: dict[str, Any], point: Point) -> float:
    """On average: a gradient of a later epoch has none of its own. Settings of older versions have no reuse."""
    gradients = settings.get("epochs", 1) * settings.get("minibatches", 1)
    return settings["envs"] * point.unroll / gradients


def _bounds(point: Point, measurements: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Agent steps per second that the point's cores cannot exceed: as fast as one alone, and as all of them at once.

    A measurement of an older version has the first only.
    """
    unroll = str(point.unroll)
    cores = min([point.actors, *(m["cores"] for m in measurements if m.get("cores"))])
    alone = [m["seconds"][unroll] for m in measurements]
    loads = [m["seconds_under_load"][unroll] for m in measurements if "seconds_under_load" in m]
    # A cluster's machines have more cores than this one may: the most that were at work here stand for them.
    loaded = [load[str(min(point.actors, max(map(int, load))))] for load in loads]
    return {
        name: cores / float(np.median([sum(parts.values()) for parts in costs])) if costs else None
        for name, costs in (("bound", alone), ("bound_under_load", loaded))
    }


def verdict(rows: Sequence[dict[str, Any]]) -> str:
    """Where a series of growing actor counts saturates, and on what, in words."""
    last = max(rows, key=lambda row: row["actors"])
    series = f"K = {last['gradients_per_update']}, unroll {last['unroll']}: "
    stages = last["stage_microseconds"]
    waiting = sum(stages[stage] for stage in _WAITING_STAGES) / sum(stages.values())
    seen = f"{last['actors']} actors reach {last['speed_up']:.2f} times one"
    if last["efficiency"] >= 0.9 or len(rows) == 1:
        limit = last["learner_ceiling"]
        where = "" if limit is None else f"; the learner would hold back from about {limit:,.0f} agent steps/s on"
        return f"{series}{seen}: no saturation in this range{where}"
    if last["learner_utilisation"] >= _BUSY:
        return f"{series}{seen}: the learner is busy {last['learner_utilisation']:.0%} of the time and holds them back"
    if waiting >= _WAITING:
        return f"{series}{seen}: actors wait {waiting:.0%} of their time for weights; try two calls in flight"
    first = min(rows, key=lambda row: row["actors"])["stage_microseconds"]
    working = [stage for stage in stages if stage not in _WAITING_STAGES]
    slower = max(working, key=lambda stage: stages[stage] - first[stage])
    return (
        f"{series}{seen}: the cores hold them back; {slower} takes {stages[slower]:.0f} µs per agent step where it "
        f"took {first[slower]:.0f}"
    )


def _series(row: dict[str, Any]) -> tuple[int, int]:
    return row["gradients_per_update"], row["unroll"]


_COLUMNS = (
    "actors",
    "gradients_per_update",
    "unroll",
    "repeats",
    "agent_steps_per_second",
    "least",
    "most",
    "frames_per_second",
    "updates_per_second",
    "speed_up",
    "efficiency",
    "bound",
    "fraction_of_bound",
    "bound_under_load",
    "fraction_of_bound_under_load",
    "learner_ceiling",
    "learner_utilisation",
    "policy_lag_mean",
    "policy_lag_p95",
    "policy_lag_max",
    *DRIFT,
    "seconds_to_return",
    "frames_to_return",
)


def write(folder: Path, result: dict[str, Any]) -> None:
    """scaling.json, scaling.csv and the pictures."""
    from launch.bench.scaling_figures import draw

    write_json(folder / "scaling.json", result)
    stages = list(result["points"][0]["stage_microseconds"])
    with whole_csv(folder / "scaling.csv") as writer:
        writer.writerow([*_COLUMNS, *(f"{stage}_microseconds" for stage in stages), "agent_steps_dropped"])
        for row in result["points"]:
            costs = [f"{row['stage_microseconds'][stage]:.2f}" for stage in stages]
            writer.writerow([*(row[name] for name in _COLUMNS), *costs, json.dumps(row["agent_steps_dropped"])])
    draw(folder, result)


def show(console: Console, result: dict[str, Any], folder: Path) -> None:
    """The table, the words, and where the files are."""
    table = Table(box=None, pad_edge=False)
    headings: tuple[str, ...] = (
        "actors", "K", "T", "agent\nsteps/s", "times", "efficiency", "of bound", "busy", "lag", "drift", "dropped",
    )  # fmt: skip
    drifts = any(row["ratio_deviation"] is not None for row in result["points"])
    headings = tuple(heading for heading in headings if drifts or heading != "drift")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in result["points"]:
        fractions = [row[f"fraction_of_{bound}"] for bound in ("bound", "bound_under_load")]
        table.add_row(
            str(row["actors"]),
            str(row["gradients_per_update"]),
            str(row["unroll"]),
            f"{row['agent_steps_per_second']:,.0f}",
            f"{row['speed_up']:.2f}",
            f"{row['efficiency']:.2f}",
            "/".join("-" if fraction is None else f"{fraction:.2f}" for fraction in fractions),
            f"{row['learner_utilisation']:.0%}",
            f"{row['policy_lag_mean']:.1f}/{row['policy_lag_p95']}/{row['policy_lag_max']}",
            *([f"{row['ratio_deviation']:.3f}"] if drifts else []),
            f"{sum(row['agent_steps_dropped'].values()):,}",
        )
    console.print(table, highlight=False)
    legend = (
        "medians; T unroll, times: speed-up over the fewest actors, of bound: share of what the cores could do, each "
        "alone/all at once, busy: learner, lag: mean/95 %/most, in updates"
        + ("; drift: mean |ratio - 1| of the policy to the one that acted" if drifts else "")
    )
    console.print(legend, style="dim", highlight=False)
    for line in (*result["verdict"], f"table, figures and pictures: {folder}"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
