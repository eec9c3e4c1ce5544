"""`tributary bench scaling`: throughput against the number of actors, beside the bound and the learner's ceiling.

A study is a folder: its settings, a line of JSON for each measurement as soon as it is made, and, made anew from these
lines at each end, the result as JSON, CSV and pictures. Points take turns within a repeat, so that those that are
compared are measured close together.
"""

import itertools
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter
from rich.console import Console
from rich.table import Table

from actors.environments import EnvironmentSpec, environment_spec
from launch.bench.learner import LearnerArguments, Network, measure_learner
from launch.bench.throughput import DRIFT, WARM_UP_SECONDS, endless, measure_components, steady_state, train_for
from launch.machine import thread_budget, usable_cores
from launch.output import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    check_json_file,
    drop_half_line,
    duration,
    make_folder,
    print_line,
    provenance,
    quoted,
    whole_csv,
    write_json,
)
from launch.presets import PRESETS
from launch.results.plot import COLOURS, figure, save
from launch.run.metrics import lag_summary
from shared.config import ActorConfig, RunConfig
from shared.errors import setting_error
from shared.types import StageSeconds

_PRESET = "pong"
# Estimates for the remaining time that is shown: of one measurement of the components, and of the start of a run.
_COMPONENT_SECONDS, _START_SECONDS = 20.0, 15.0
# Stages in which an actor only waits for weights.
_WAITING_STAGES = ("synchronise", "wait")
# Shares of the time from which a busy learner, or waiting actors, are named as what limits throughput.
_BUSY, _WAITING = 0.8, 0.15
_COLUMNS = (
    "actors", "gradients_per_update", "unroll", "repeats", "agent_steps_per_second", "least", "most",
    "frames_per_second", "updates_per_second", "speed_up", "efficiency", "bound", "fraction_of_bound",
    "bound_under_load", "fraction_of_bound_under_load", "learner_ceiling", "learner_utilisation", "policy_lag_mean",
    "policy_lag_p95", "policy_lag_max", *DRIFT,
)  # fmt: skip


@dataclass(frozen=True)
class ScalingArguments:
    """Measure throughput for several numbers of actors, gradients per update and unroll lengths, and name what limits
    it. Ctrl-C keeps the measurements; --continue goes on."""

    actors: str = "1,2"
    """Numbers of actors."""
    gradients_per_update: str = "1"
    """Values of K."""
    unroll: str = "20"
    """Unroll lengths."""
    envs: int = 32
    """Environments of each actor."""
    environment: str = "ALE/Pong-v5"
    """An ALE game."""
    network: Network = "a3c_cnn"
    """Network."""
    epochs: int = 1
    """Passes over each rollout."""
    minibatches: int = 1
    """Minibatches of each pass."""
    calls_in_flight: int = 1
    """Outstanding gradients per actor."""
    seconds: float = 15.0
    """Duration of each measurement, after its warm-up."""
    repeats: int = 3
    """Measurements of each point."""
    address: str = "local"
    """Ray cluster to measure on, as in tributary train."""
    output: Path | None = None
    """Folder of the study. Default: scaling-<time>."""
    resume: Path | None = None
    """Also written --continue: folder of an interrupted study to go on with, by the settings that it has."""
    json: Path | None = None
    """Output file of the result, besides scaling.json in the folder."""


class Point(NamedTuple):
    """What varies between measurements."""

    actors: int
    gradients_per_update: int
    unroll: int


class Store:
    """The measurements of a study: one JSON object per line, written as soon as it is made."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> list[dict[str, Any]]:
        """All measurements in their order, without a last line that was cut off."""
        if not self._file.is_file():
            return []
        return [
            json.loads(line)
            for line in self._file.read_text(encoding="utf-8").splitlines(keepends=True)
            if line.endswith("\n")
        ]

    def add(self, kind: str, **values: Any) -> None:
        drop_half_line(self._file)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "time": datetime.now().isoformat("T", "seconds"), **values}) + "\n")


def scaling(arguments: ScalingArguments) -> int:
    """Run `tributary bench scaling` and return its exit code.

    Raises:
        ConfigurationError: a setting is invalid.
    """
    check_json_file(arguments.json)
    folder, arguments = _open(arguments)
    points = points_of(arguments)
    spec = _check(arguments, points)
    settings = {name: value for name, value in asdict(arguments).items() if name not in ("output", "resume", "json")}
    if arguments.resume is None:
        make_folder(folder, "output")
        write_json(folder / "settings.json", settings)
    store = Store(folder / "measurements.jsonl")
    console = Console()
    interrupted = False
    try:
        measure_all(arguments, points, spec, store, console)
    except KeyboardInterrupt:
        interrupted = True
        console.print("interrupted; the measurements are kept")
    result = summarise(settings, points, store.read())
    if not result["points"]:
        print_line(console, f"nothing was measured; go on with tributary bench scaling --continue {quoted(folder)}")
        return EXIT_INTERRUPTED
    write(folder, result)
    show(console, result, folder)
    if interrupted:
        print_line(console, f"go on with: tributary bench scaling --continue {quoted(folder)}")
    if arguments.json is not None:
        write_json(arguments.json, result)
    return EXIT_INTERRUPTED if interrupted else EXIT_DONE


def _open(arguments: ScalingArguments) -> tuple[Path, ScalingArguments]:
    """The folder of the study and its arguments, which a resumed study has from its folder."""
    if arguments.resume is not None:
        file = arguments.resume / "settings.json"
        if not file.is_file():
            raise setting_error("continue", arguments.resume, "is not the folder of a scaling measurement")
        try:
            kept = msgspec.json.decode(file.read_bytes(), type=ScalingArguments)
        except msgspec.DecodeError as error:
            raise setting_error("continue", arguments.resume, f"settings.json cannot be read: {error}") from error
        return arguments.resume, replace(kept, resume=arguments.resume, json=arguments.json)
    folder = arguments.output or Path(f"scaling-{datetime.now():%Y%m%d-%H%M%S}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise setting_error("output", folder, f"exists; name another, or go on with it: --continue {quoted(folder)}")
    return folder, arguments


def points_of(arguments: ScalingArguments) -> list[Point]:
    """The points to measure, in the order in which they take turns."""
    names = ("actors", "gradients_per_update", "unroll")
    return [Point(*values) for values in itertools.product(*(_numbers(n, getattr(arguments, n)) for n in names))]


def _numbers(setting: str, text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise setting_error(setting, text, "must be numbers like 1,2,4")
    return sorted({int(part) for part in parts})


def _check(arguments: ScalingArguments, points: Sequence[Point]) -> EnvironmentSpec:
    if not arguments.seconds > 0:
        raise setting_error("seconds", arguments.seconds, "must be greater than 0")
    if arguments.repeats < 1:
        raise setting_error("repeats", arguments.repeats, "must be at least 1")
    spec = environment_spec(bench_config(arguments, points[0]).environment)
    if not spec.has_lives:
        raise setting_error("environment", arguments.environment, "the bench is for Atari; name an ALE game")
    if arguments.address == "local":
        for point in points:
            thread_budget(bench_config(arguments, point))
    return spec


def bench_config(arguments: ScalingArguments, point: Point) -> RunConfig:
    """The settings of the run that measures a point."""
    preset = endless(PRESETS[_PRESET].config)
    return replace(
        preset,
        actors=point.actors,
        address=arguments.address,
        environment=replace(preset.environment, id=arguments.environment),
        network=replace(preset.network, name=arguments.network),
        learner=replace(preset.learner, gradients_per_update=point.gradients_per_update),
        actor=ActorConfig(
            environments=arguments.envs,
            unroll_length=point.unroll,
            epochs=arguments.epochs,
            minibatches=arguments.minibatches,
            calls_in_flight=arguments.calls_in_flight,
        ),
    )


def measure_all(
    arguments: ScalingArguments, points: Sequence[Point], spec: EnvironmentSpec, store: Store, console: Console
) -> None:
    """Make the measurements that the store lacks. The components are measured before and after all others."""
    done = Counter((m["kind"], *m.get("point", ())) for m in store.read())
    turns = [(repeat, point) for repeat in range(arguments.repeats) for point in points]
    turns = [(repeat, point) for repeat, point in turns if done[("throughput", *point)] <= repeat]
    components_left = (2 - min(2, done[("components",)])) * len({point.unroll for point in points})
    left = len(turns) * (_START_SECONDS + WARM_UP_SECONDS + arguments.seconds) + components_left * _COMPONENT_SECONDS
    console.print(f"{len(turns)} measurements, about {duration(left)}", style="dim", highlight=False)
    if not done[("ceiling",)]:
        _measure_ceiling(arguments, points, store, console)
    if done[("components",)] < 1:
        _measure_components(arguments, points, spec, store, console)
    started = time.monotonic()
    for number, (repeat, point) in enumerate(turns):
        rest = (time.monotonic() - started) / number * (len(turns) - number) if number else left
        name = f"{point.actors} actors, K = {point.gradients_per_update}, unroll {point.unroll}, repeat {repeat + 1}"
        line = f"{number + 1}/{len(turns)}  {name}   left {duration(rest)}"
        console.print(line, style="dim", highlight=False)
        store.add("throughput", point=point, **measure_throughput(arguments, point))
    if done[("components",)] < 2:
        _measure_components(arguments, points, spec, store, console)


def _measure_ceiling(arguments: ScalingArguments, points: Sequence[Point], store: Store, console: Console) -> None:
    console.print("the learner's ceiling …", style="dim")
    ceilings = {}
    for count in sorted({point.gradients_per_update for point in points}):
        senders = LearnerArguments(
            actors=min(2, usable_cores()), gradients_per_update=count, network=arguments.network, envs=arguments.envs
        )
        ceilings[str(count)] = measure_learner(senders)["ceiling_gradients_per_second"]
    store.add("ceiling", gradients_per_second=ceilings)


def _measure_components(
    arguments: ScalingArguments, points: Sequence[Point], spec: EnvironmentSpec, store: Store, console: Console
) -> None:
    """e, a and g of one process alone, and of as many at once as each point has actors, one per core at most."""
    console.print("environment, acting and gradient, alone and at once …", style="dim")
    here = usable_cores()
    counts = sorted({1} | {min(point.actors, here) for point in points})
    alone, loaded = {}, {}
    for unroll in sorted({point.unroll for point in points}):
        measured = measure_components(bench_config(arguments, Point(1, 1, unroll)), spec, counts)
        alone[str(unroll)] = measured[1].medians()
        loaded[str(unroll)] = {str(count): components.medians() for count, components in measured.items()}
    cores = here if arguments.address == "local" else None
    store.add("components", seconds=alone, seconds_under_load=loaded, cores=cores)


def measure_throughput(arguments: ScalingArguments, point: Point) -> dict[str, Any]:
    """Rates and costs of a point, from a run of its own."""
    config = bench_config(arguments, point)
    rows = train_for(config, arguments.seconds)
    measured = steady_state(rows, arguments.seconds)
    lags: Counter[int] = Counter()
    for row in rows:
        lags.update({int(lag): count for lag, count in row["policy_lag_counts"].items()})
    gradients = measured["agent_steps_per_second"] / agent_steps_per_gradient(vars(arguments), point)
    return {
        **measured,
        "frames_per_second": measured["agent_steps_per_second"] * config.frames_per_agent_step,
        "policy_lag_p95": lag_summary(lags)[1],
        "learner_utilisation": gradients * measured["learner_seconds_per_update"],
        "agent_steps_dropped": rows[-1]["agent_steps_dropped"],
    }


def agent_steps_per_gradient(settings: dict[str, Any], point: Point) -> float:
    """Mean over the gradients of a rollout. Settings of older versions have no reuse."""
    return settings["envs"] * point.unroll / (settings.get("epochs", 1) * settings.get("minibatches", 1))


def summarise(
    settings: dict[str, Any], points: Sequence[Point], measurements: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Medians over repeats, speed-up and efficiency against the fewest actors, fractions of the bounds, a verdict."""
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
        row: dict[str, Any] = {
            **point._asdict(),
            "repeats": len(made),
            "agent_steps_per_second": float(np.median(rates)),
            "least": min(rates),
            "most": max(rates),
            **{
                name: float(np.median([m[name] for m in made]))
                for name in ("frames_per_second", "updates_per_second", "policy_lag_mean", "learner_utilisation")
            },
            # None without reuse, and in measurements of older versions.
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
        }
        for bound in ("bound", "bound_under_load"):
            row[f"fraction_of_{bound}"] = None if row[bound] is None else row["agent_steps_per_second"] / row[bound]
        rows.append(row)
    verdicts = []
    for series in _series(rows).values():
        fewest = min(series, key=lambda row: row["actors"])
        for row in series:
            row["speed_up"] = row["agent_steps_per_second"] / fewest["agent_steps_per_second"] * fewest["actors"]
            row["efficiency"] = row["speed_up"] / row["actors"]
        verdicts.append(verdict(series))
    return {"points": rows, "verdict": verdicts, "settings": settings, **provenance()}


def _series(rows: Sequence[dict[str, Any]]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """Rows that differ in the number of actors only, by (K, unroll length) in ascending order."""
    series: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (row["gradients_per_update"], row["unroll"])):
        series.setdefault((row["gradients_per_update"], row["unroll"]), []).append(row)
    return series


def _bounds(point: Point, measurements: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """The bound of the point's cores by the components of one process alone, and of one process on each core."""
    unroll = str(point.unroll)
    cores = min([point.actors, *(m["cores"] for m in measurements if m.get("cores"))])
    alone = [m["seconds"][unroll] for m in measurements]
    # Measurements of older versions have none under load.
    loads = [m["seconds_under_load"][unroll] for m in measurements if "seconds_under_load" in m]
    # The largest measured count stands in for a cluster's machine with more cores than this one.
    loaded = [load[str(min(point.actors, max(map(int, load))))] for load in loads]
    return {
        name: cores / float(np.median([sum(parts.values()) for parts in costs])) if costs else None
        for name, costs in (("bound", alone), ("bound_under_load", loaded))
    }


def verdict(series: Sequence[dict[str, Any]]) -> str:
    """One line: whether throughput saturates within the series, and on what."""
    last = max(series, key=lambda row: row["actors"])
    stages = last["stage_microseconds"]
    waiting = sum(stages[stage] for stage in _WAITING_STAGES) / sum(stages.values())
    seen = (
        f"K = {last['gradients_per_update']}, unroll {last['unroll']}: "
        f"{last['actors']} actors reach {last['speed_up']:.2f} times one"
    )
    if last["efficiency"] >= 0.9 or len(series) == 1:
        limit = last["learner_ceiling"]
        return f"{seen}: no saturation" + ("" if limit is None else f"; the learner's is at {limit:,.0f} agent steps/s")
    if last["learner_utilisation"] >= _BUSY:
        return f"{seen}: limited by the learner, which is busy {last['learner_utilisation']:.0%} of the time"
    if waiting >= _WAITING:
        return f"{seen}: actors wait {waiting:.0%} of their time for weights; try two calls in flight"
    first = min(series, key=lambda row: row["actors"])["stage_microseconds"]
    slower = max(set(stages) - set(_WAITING_STAGES), key=lambda stage: stages[stage] - first[stage])
    return (
        f"{seen}: limited by the cores; {slower} takes {stages[slower]:.0f} µs per agent step, with the fewest actors "
        f"{first[slower]:.0f}"
    )


def write(folder: Path, result: dict[str, Any]) -> None:
    """Write scaling.json, scaling.csv and the pictures."""
    write_json(folder / "scaling.json", result)
    stages = list(result["points"][0]["stage_microseconds"])
    with whole_csv(folder / "scaling.csv") as writer:
        writer.writerow([*_COLUMNS, *(f"{stage}_microseconds" for stage in stages), "agent_steps_dropped"])
        for row in result["points"]:
            costs = [f"{row['stage_microseconds'][stage]:.2f}" for stage in stages]
            writer.writerow([*(row[name] for name in _COLUMNS), *costs, json.dumps(row["agent_steps_dropped"])])
    _draw(folder, result)


def show(console: Console, result: dict[str, Any], folder: Path) -> None:
    """Print the table, the verdicts and the place of the files."""
    has_drift = any(row["ratio_deviation"] is not None for row in result["points"])
    table = Table(box=None, pad_edge=False)
    headings = ["actors", "K", "T", "agent\nsteps/s", "times", "efficiency", "of bound", "busy", "lag", "dropped"]
    for heading in headings + ["drift"] * has_drift:
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
            f"{sum(row['agent_steps_dropped'].values()):,}",
            *([f"{row['ratio_deviation']:.3f}"] if has_drift else []),
        )
    console.print(table, highlight=False)
    legend = (
        "medians; T: unroll length; times: speed-up over the fewest actors; of bound: fraction of the bound of the "
        "cores, measured alone/on all cores at once; busy: learner; lag: mean/95th percentile/largest, in updates"
        + ("; drift: mean |ratio - 1| of the policy to the one that acted" if has_drift else "")
    )
    console.print(legend, style="dim", highlight=False)
    for line in (*result["verdict"], f"table, figures and pictures: {folder}"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _draw(folder: Path, result: dict[str, Any]) -> None:
    """Write throughput, stages and lag, each as PNG and SVG."""
    width = max(7.0, 1.1 * len(result["points"]) + 2)
    for name, draw, size in (
        ("throughput", _draw_rates, 7.0),
        ("stages", _draw_stages, width),
        ("lag", _draw_lags, 7.0),
    ):
        with figure(width=size) as (drawn, (axes,)):
            draw(axes, result["points"])
            axes.legend(fontsize=8)
            save(drawn, [folder / f"{name}.png", folder / f"{name}.svg"], settings=result["settings"])


def _draw_rates(axes: Axes, points: list[dict[str, Any]]) -> None:
    for colour, ((count, unroll), rows) in zip(COLOURS, _series(points).items(), strict=False):
        actors, rates = (np.array([row[name] for row in rows]) for name in ("actors", "agent_steps_per_second"))
        errors = np.abs(np.array([[row["least"], row["most"]] for row in rows]).T - rates)
        label = f"K = {count}, unroll {unroll}, median and range"
        axes.errorbar(actors, rates, errors, color=colour, marker="o", capsize=3, label=label)
        axes.plot(actors, rates[0] / actors[0] * actors, color=colour, linestyle=":", label="linear")
        for bound, width, measured in (("bound", 1.5, "alone"), ("bound_under_load", 0.8, "on busy cores")):
            if rows[0][bound] is not None:
                bounds = [row[bound] for row in rows]
                axes.plot(actors, bounds, color=colour, linestyle="--", linewidth=width, label=f"bound, {measured}")
        if rows[0]["learner_ceiling"] is not None:
            label = f"the learner's ceiling, K = {count}"
            axes.axhline(rows[0]["learner_ceiling"], color=colour, linestyle="-.", linewidth=1, label=label)
    # The learner's ceiling may be orders of magnitude above the measurements.
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("agent steps per second")
    _actors_axis(axes, points)


def _draw_stages(axes: Axes, points: list[dict[str, Any]]) -> None:
    names = [f"{p['actors']} actors\nK {p['gradients_per_update']}, T {p['unroll']}" for p in points]
    bottom = np.zeros(len(points))
    for colour, stage in zip(COLOURS, StageSeconds._fields, strict=False):
        costs = np.array([point["stage_microseconds"][stage] for point in points])
        axes.bar(names, costs, bottom=bottom, color=colour, label=stage, width=0.6)
        bottom += costs
    axes.set_ylabel("µs per agent step of an actor")
    axes.grid(visible=False, axis="x")


def _draw_lags(axes: Axes, points: list[dict[str, Any]]) -> None:
    for colour, ((count, unroll), rows) in zip(COLOURS, _series(points).items(), strict=False):
        for kind, style in (("mean", "-"), ("p95", "--"), ("max", ":")):
            actors, lags = ([row[name] for row in rows] for name in ("actors", f"policy_lag_{kind}"))
            axes.plot(actors, lags, style, color=colour, marker="o", label=f"{kind}, K = {count}, unroll {unroll}")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("policy lag, updates")
    _actors_axis(axes, points)


def _actors_axis(axes: Axes, points: list[dict[str, Any]]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({row["actors"] for row in points}))
    axes.minorticks_off()
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_xlabel("actors")
