"""`tributary bench scaling --synthetic`: how gradients are added on their way, by actors that only send messages.

Many of them fit on one machine, on logical nodes of it, and each sends at the rate of a real one. What is compared is
what a gradient costs the learner, beside what `tributary plan` predicts from what each part costs by itself.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from actors.environments import EnvironmentSpec
from launch.bench.components import measure_components
from launch.bench.learner_costs import idle_cost, learner_costs, slices_costs
from launch.bench.learner_on_nodes import measure_on_nodes
from launch.bench.queueing import Costs, Tree, group_tree, predict
from launch.bench.scaling_measurements import Store
from launch.bench.scaling_result import Point, agent_steps_per_gradient
from launch.bench.scaling_settings import ScalingArguments, bench_config
from launch.on_ray.tree import Aggregation, node_share
from launch.output import provenance, usable_cores
from shared.errors import setting_error

_LEVELS = {"none": "nowhere", "node": "on nodes", "group": "in two levels"}
# A machine that is this busy holds back what is measured on it.
_FULL = 0.9
_MEDIANS = (
    "gradients_per_second",
    "updates_per_second",
    "cpu_seconds_per_gradient",
    "busy_fraction",
    "policy_lag_mean",
    "policy_lag_max",
)


class Way(NamedTuple):
    """A point, where its gradients are added, and how many slices the learner is in."""

    point: Point
    level: Literal["none", "node", "group"]
    shards: int = 1

    @property
    def key(self) -> tuple[Any, ...]:
        """What its measurements are stored by."""
        return (*self.point, self.level, *([self.shards] if self.shards > 1 else []))


def check_synthetic(arguments: ScalingArguments, points: Sequence[Point]) -> None:
    """Refuse what could not be measured.

    Raises:
        ConfigurationError: names the setting.
    """
    if arguments.address != "local":
        raise setting_error("address", arguments.address, "--synthetic makes nodes of its own; leave --address out")
    if arguments.shards < 1:
        raise setting_error("shards", arguments.shards, "must be at least 1")
    if arguments.nodes < 1:
        raise setting_error("nodes", arguments.nodes, "must be at least 1")
    for point in points:
        if point.actors % arguments.nodes:
            raise setting_error("nodes", arguments.nodes, f"does not divide the {point.actors} actors of --actors")


def ways_of(points: Sequence[Point], shards: int) -> list[Way]:
    """The ways to measure. A gradient that is applied by itself is added nowhere, and the others on each level."""
    alone = [
        Way(point, "none", slices)
        for point in points
        if point.gradients_per_update == 1
        for slices in sorted({1, shards})
    ]
    return alone + [
        Way(point, level) for point in points if point.gradients_per_update > 1 for level in ("node", "group")
    ]


def measure_synthetic(
    arguments: ScalingArguments, points: Sequence[Point], spec: EnvironmentSpec, store: Store, console: Console
) -> None:
    """Measure what is not measured yet."""
    done = Counter((m["kind"], *m.get("of", ())) for m in store.read())
    if not done[("components",)]:
        console.print("environment, acting and gradient, with all cores busy …", style="dim")
        cores = usable_cores()
        components = measure_components(bench_config(arguments, points[0]), spec, (cores,))[cores]
        store.add("components", seconds_per_agent_step=components.step_seconds())
    if not done[("idle",)]:
        store.add("idle", share_of_core=idle_cost(arguments.network, arguments.nodes))
    idle = _last(store.read(), "idle")["share_of_core"]
    seconds_per_agent_step = _last(store.read(), "components")["seconds_per_agent_step"]
    for point in points:
        count, share = point.gradients_per_update, _node_gradients(arguments, point)
        pace = _seconds_per_gradient(arguments, point, seconds_per_agent_step) / point.actors
        name = f"a gradient costs every {1e3 * pace:.0f} ms"
        if not done[("costs", *point)]:
            console.print(f"what {name}, K = {count} …", style="dim", highlight=False)
            costs = learner_costs(arguments.network, count, share, ("float32",), idle, pace)
            store.add("costs", of=point, seconds=costs)
        if count == 1 and arguments.shards > 1 and not done[("slices", arguments.shards, *point)]:
            console.print(f"what {name} in {arguments.shards} slices …", style="dim", highlight=False)
            costs = slices_costs(arguments.network, 1, arguments.shards, ("float32",), idle, pace)
            store.add("slices", of=(arguments.shards, *point), seconds=costs)
    for repeat in range(arguments.repeats):
        for way in ways_of(points, arguments.shards):
            if done[("synthetic", *way.key)] <= repeat:
                name = f"{way.point.actors} actors, K = {way.point.gradients_per_update}"
                added = _added(way.level, way.shards)
                console.print(f"{name}, added {added}, repeat {repeat + 1} …", style="dim", highlight=False)
                measured = _measure(arguments, spec, way, seconds_per_agent_step)
                store.add("synthetic", of=way.key, **measured)


def _added(level: str, shards: int) -> str:
    return _LEVELS[level] if shards == 1 else f"in {shards} slices"


def _measure(
    arguments: ScalingArguments, spec: EnvironmentSpec, way: Way, seconds_per_agent_step: float
) -> dict[str, Any]:
    config = bench_config(arguments, way.point)
    config = replace(
        config,
        address="auto",
        aggregation=way.level,
        # There are no images, and nobody plays.
        network=replace(config.network, centre_observations=False),
        evaluation=replace(config.evaluation, every_frames=0),
        learner=replace(config.learner, shards=way.shards),
    )
    together = _node_gradients(arguments, way.point) if way.level == "group" else way.point.gradients_per_update
    aggregation = Aggregation(way.level, together, "as asked for")
    pace = _seconds_per_gradient(arguments, way.point, seconds_per_agent_step)
    return measure_on_nodes(config, spec, aggregation, arguments.nodes, pace, arguments.seconds)


def _seconds_per_gradient(arguments: ScalingArguments, point: Point, seconds_per_agent_step: float) -> float:
    """Of one actor."""
    return seconds_per_agent_step * agent_steps_per_gradient(vars(arguments), point)


def _node_gradients(arguments: ScalingArguments, point: Point) -> int:
    return node_share(point.gradients_per_update, point.actors // arguments.nodes)


def _last(measurements: Sequence[dict[str, Any]], kind: str, of: tuple[int, ...] = ()) -> dict[str, Any]:
    return next(m for m in reversed(measurements) if m["kind"] == kind and tuple(m.get("of", ())) == of)


def summarise_synthetic(
    settings: dict[str, Any], points: Sequence[Point], measurements: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Medians over repeats beside what is predicted, and how many gradients each unit of the learner's CPU takes."""
    arguments = ScalingArguments(**settings)
    rows = []
    for way in ways_of(points, arguments.shards):
        made = [m for m in measurements if m["kind"] == "synthetic" and m["of"] == list(way.key)]
        if not made:
            continue
        processes = [m["process_cpu_seconds_per_gradient"] for m in made]
        kinds = sorted({kind for process in processes for kind in process})
        row: dict[str, Any] = {
            **way.point._asdict(),
            "added": way.level,
            "shards": way.shards,
            "repeats": len(made),
            **{name: float(np.median([m[name] for m in made])) for name in _MEDIANS},
            "process_cpu_seconds_per_gradient": {
                kind: float(np.median([process.get(kind, 0.0) for process in processes])) for kind in kinds
            },
        }
        spent = sum(row["process_cpu_seconds_per_gradient"].values()) * row["gradients_per_second"]
        rows.append(row | {"cores_busy": spent / usable_cores(), "predicted": _predicted(arguments, way, measurements)})
    alone = {
        row["actors"]: row["cpu_seconds_per_gradient"] for row in rows if (row["added"], row["shards"]) == ("none", 1)
    }
    for row in rows:
        one = alone.get(row["actors"])
        row["times_one_learner"] = None if one is None else one / row["cpu_seconds_per_gradient"]
    return {"points": rows, "settings": settings, **provenance()}


def _predicted(arguments: ScalingArguments, way: Way, measurements: Sequence[dict[str, Any]]) -> dict[str, float]:
    """As `tributary plan` has it for such a cluster, without links: those of this machine hold nothing back."""
    point = way.point
    costs = _last(measurements, "costs", point)["seconds"]
    seconds_per_agent_step = _last(measurements, "components")["seconds_per_agent_step"]
    actor = _seconds_per_gradient(arguments, point, seconds_per_agent_step)
    each, tree = point.actors // arguments.nodes, None
    learner, head, of_slice = costs["objects" if way.level == "none" else "sums"]["float32"], 0.0, 0.0
    if way.shards > 1:
        of_slices = _last(measurements, "slices", (way.shards, *point))["seconds"]
        learner, of_slice = of_slices["learner"]["float32"], of_slices["slice"]["float32"]
    elif way.level == "node":
        tree = Tree(each)
    elif way.level == "group":
        tree = group_tree(point.actors, each, _node_gradients(arguments, point))
        head = costs["heads"]["float32"]
    of_one = Costs(actor, learner, head=head, idle=_last(measurements, "idle")["share_of_core"], slice=of_slice)
    found = predict(of_one, point.actors, point.gradients_per_update, arguments.calls_in_flight, tree)
    return {
        "gradients_per_second": found.gradients_per_second,
        "cpu_seconds_per_gradient": found.learner_utilisation / found.gradients_per_second,
        "policy_lag_mean": found.policy_lag,
    }


def show_synthetic(console: Console, result: dict[str, Any], folder: Path) -> None:
    """The table, the words, and where the file is."""
    table = Table(box=None, pad_edge=False)
    for heading in ("actors", "K", "added", "gradients/s", "learner's CPU\nms/gradient", "lag", "times", "busy"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in result["points"]:
        expected, times = row["predicted"], row["times_one_learner"]
        table.add_row(
            str(row["actors"]),
            str(row["gradients_per_update"]),
            _added(row["added"], row["shards"]),
            f"{row['gradients_per_second']:.1f} ({expected['gradients_per_second']:.1f})",
            f"{1e3 * row['cpu_seconds_per_gradient']:.2f} ({1e3 * expected['cpu_seconds_per_gradient']:.2f})",
            f"{row['policy_lag_mean']:.1f} ({expected['policy_lag_mean']:.1f})",
            "-" if times is None else f"{times:.1f}",
            f"{row['cores_busy']:.0%}",
        )
    console.print(table, highlight=False)
    console.print(
        "medians, in brackets as predicted from what each part costs by itself; times: gradients/s per unit of the "
        "learner's CPU, over those of one learner at K = 1 and as many actors; busy: all cores",
        style="dim",
        highlight=False,
    )
    if any(row["cores_busy"] > _FULL for row in result["points"]):
        console.print("where all cores are busy, it is this machine that holds the rate back; the costs hold")
    console.print(f"figures: {folder / 'scaling.json'}", markup=False, highlight=False, soft_wrap=True)
