"""`tributary bench scaling`: throughput against the number of actors, beside the bound and the learner's ceiling."""

import csv
import itertools
import json
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from actors.environments import EnvironmentSpec, environment_spec
from launch.bench.learner import LearnerArguments, measure_learner
from launch.bench.throughput import WARM_UP_SECONDS, steady_state, train_for
from launch.budget import thread_budget, usable_cores
from launch.display import duration
from launch.exit_codes import EXIT_DONE, EXIT_INTERRUPTED
from launch.presets import PRESETS
from launch.process import prepare_tensorflow
from launch.progress import lag_summary
from launch.provenance import provenance
from launch.run_folder import RunFolder, check_json_file, write_json
from launch.training_process import training_process
from shared.config import RunConfig
from shared.errors import ConfigurationError, setting_error

_PRESET = "pong"
# About what components and the start of a run take, to say how long it will be.
_COMPONENT_SECONDS, _START_SECONDS = 20.0, 15.0
# A learner this busy is what holds the rest back; actors that wait this share of their time wait for something.
_BUSY, _WAITING = 0.8, 0.15


@dataclass(frozen=True)
class ScalingArguments:
    """Measure throughput for several numbers of actors, gradients per update and unroll lengths, in turn, and say
    where it saturates and on what. Ctrl-C keeps what was measured; --continue goes on."""

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
    network: Literal["a3c_cnn", "nature_cnn"] = "a3c_cnn"
    """Network."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the layers."""
    calls_in_flight: int = 1
    """Rollouts asked of one actor at a time."""
    seconds: float = 15.0
    """Seconds that each point is measured for, after its warm-up."""
    repeats: int = 3
    """Times that each point is measured. Points take turns: what is compared is measured close together."""
    until_return: float | None = None
    """Train each point until this mean return besides, and give time and frames to it."""
    until_seconds: float = 3600.0
    """With --until-return: seconds after which a point that has not got there is given up."""
    address: str = "local"
    """Ray cluster to measure on, as in tributary train."""
    output: Path | None = None
    """Folder for the results. Default: scaling-<time>."""
    resume: Path | None = None
    """Also written --continue: folder of an earlier measurement to go on with. Its settings are used."""
    json: Path | None = None
    """File to write the result to, besides scaling.json in the folder."""


class Point(NamedTuple):
    """What varies."""

    actors: int
    gradients_per_update: int
    unroll: int


def scaling(arguments: ScalingArguments) -> int:
    """Run `tributary bench scaling`. Returns the exit code.

    Raises:
        ConfigurationError: a mistake in the settings.
    """
    check_json_file(arguments.json)
    folder, arguments = _open(arguments)
    points = _points(arguments)
    spec = _check(arguments, points, folder)
    store = _Store(folder / "measurements.jsonl")
    console = Console()
    interrupted = False
    try:
        _measure_all(arguments, points, spec, store, console)
    except KeyboardInterrupt:
        interrupted = True
        console.print("interrupted: what was measured is kept")
    result = summarise(arguments, points, store.read())
    if not result["points"]:
        console.print(f"nothing was measured; go on with tributary bench scaling --continue {folder}", soft_wrap=True)
        return EXIT_INTERRUPTED
    _write(folder, result)
    _show(console, result, folder)
    if interrupted:
        console.print(f"go on with: tributary bench scaling --continue {folder}", soft_wrap=True)
    if arguments.json is not None:
        write_json(arguments.json, result)
    return EXIT_INTERRUPTED if interrupted else EXIT_DONE


class _Store:
    """Measurements, one JSON object per line, each written as soon as it is made."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> list[dict[str, Any]]:
        if not self._file.is_file():
            return []
        lines = self._file.read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def add(self, kind: str, **values: Any) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps({"kind": kind, "time": datetime.now().isoformat("T", "seconds"), **values}) + "\n")


def _open(arguments: ScalingArguments) -> tuple[Path, ScalingArguments]:
    """The folder, and the settings: those in it when it is gone on with."""
    if arguments.resume is not None:
        file = arguments.resume / "settings.json"
        if not file.is_file():
            raise setting_error("continue", arguments.resume, "is not the folder of a scaling measurement")
        try:
            kept = msgspec.json.decode(file.read_bytes(), type=ScalingArguments)
        except msgspec.DecodeError as error:
            raise setting_error("continue", arguments.resume, f"settings.json cannot be read: {error}") from error
        return arguments.resume, replace(kept, json=arguments.json)
    folder = arguments.output or Path(f"scaling-{datetime.now():%Y%m%d-%H%M%S}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise setting_error("output", folder, f"exists; name another, or go on with it: --continue {folder}")
    return folder, arguments


def _points(arguments: ScalingArguments) -> list[Point]:
    return [
        Point(*values)
        for values in itertools.product(
            _numbers("actors", arguments.actors),
            _numbers("gradients_per_update", arguments.gradients_per_update),
            _numbers("unroll", arguments.unroll),
        )
    ]


def _numbers(setting: str, text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise setting_error(setting, text, "must be numbers like 1,2,4")
    return sorted({int(part) for part in parts})


def _check(arguments: ScalingArguments, points: Sequence[Point], folder: Path) -> EnvironmentSpec:
    """Refuse what could not be measured; make the folder."""
    for name in ("seconds", "until_seconds"):
        if not getattr(arguments, name) > 0:
            raise setting_error(name, getattr(arguments, name), "must be greater than 0")
    if arguments.repeats < 1:
        raise setting_error("repeats", arguments.repeats, "must be at least 1")
    spec = environment_spec(bench_config(arguments, points[0]).environment)
    if not spec.is_atari:
        raise setting_error("environment", arguments.environment, "the bench is for Atari; name an ALE game")
    if arguments.address == "local":
        for point in points:
            thread_budget(bench_config(arguments, point))
    if arguments.resume is None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise setting_error("output", folder, f"cannot be made: {error.strerror}") from error
        write_json(folder / "settings.json", _settings(arguments))
    return spec


def _settings(arguments: ScalingArguments) -> dict[str, Any]:
    """What is measured; where the results go is not part of it."""
    return {name: value for name, value in asdict(arguments).items() if name not in ("output", "resume", "json")}


def bench_config(arguments: ScalingArguments, point: Point) -> RunConfig:
    """The settings that a point is measured with."""
    preset = PRESETS[_PRESET].config
    actor = replace(
        preset.actor,
        environments=arguments.envs,
        unroll_length=point.unroll,
        calls_in_flight=arguments.calls_in_flight,
    )
    return replace(
        preset,
        actors=point.actors,
        total_frames=10**12,
        stop_at_return=None,
        log_every_seconds=1.0,
        address=arguments.address,
        environment=replace(preset.environment, id=arguments.environment),
        network=replace(preset.network, name=arguments.network, precision=arguments.precision),
        learner=replace(preset.learner, gradients_per_update=point.gradients_per_update),
        actor=actor,
    )


def _measure_all(
    arguments: ScalingArguments,
    points: Sequence[Point],
    spec: EnvironmentSpec,
    store: _Store,
    console: Console,
) -> None:
    """Measure what is not measured yet."""
    done = Counter((m["kind"], *m.get("point", ())) for m in store.read())
    seconds = _START_SECONDS + WARM_UP_SECONDS + arguments.seconds
    turns = [(repeat, point) for repeat in range(arguments.repeats) for point in points]
    turns = [(repeat, point) for repeat, point in turns if done[("throughput", *point)] <= repeat]
    unrolls = sorted({point.unroll for point in points})
    left = len(turns) * seconds + (0 if done[("components",)] >= 2 else 2 * _COMPONENT_SECONDS * len(unrolls))
    console.print(f"{len(turns)} measurements, about {duration(left)}", style="dim", highlight=False)
    started = time.monotonic()
    if not done[("ceiling",)]:
        _measure_ceiling(arguments, points, store, console)
    if done[("components",)] < 1:
        _measure_components(arguments, unrolls, spec, store, console)
    for number, (repeat, point) in enumerate(turns, start=1):
        rest = (time.monotonic() - started) / (number - 1) * (len(turns) - number + 1) if number > 1 else left
        console.print(
            f"{number}/{len(turns)}  {_name(point)}, repeat {repeat + 1}   left {duration(rest)}",
            style="dim",
            highlight=False,
        )
        store.add("throughput", point=point, **measure_throughput(arguments, point))
    if done[("components",)] < 2:
        _measure_components(arguments, unrolls, spec, store, console)
    if arguments.until_return is not None:
        for point in points:
            if not done[("until", *point)]:
                console.print(f"{_name(point)} until a return of {arguments.until_return:g} …", style="dim")
                store.add("until", point=point, **_measure_until(arguments, point))


def _measure_ceiling(arguments: ScalingArguments, points: Sequence[Point], store: _Store, console: Console) -> None:
    console.print("the learner's ceiling …", style="dim")
    ceilings = {}
    for count in sorted({point.gradients_per_update for point in points}):
        senders = max(1, min(2, usable_cores()))
        measured = measure_learner(
            LearnerArguments(actors=senders, gradients_per_update=count, network=arguments.network, envs=arguments.envs)
        )
        ceilings[str(count)] = measured["ceiling_gradients_per_second"]
    store.add("ceiling", gradients_per_second=ceilings)


def _measure_components(
    arguments: ScalingArguments, unrolls: Sequence[int], spec: EnvironmentSpec, store: _Store, console: Console
) -> None:
    console.print("environment, acting and gradient alone …", style="dim")
    prepare_tensorflow(1, gpu=False)
    from launch.bench.components import ComponentsBench

    seconds = {}
    for unroll in unrolls:
        measured = ComponentsBench(bench_config(arguments, Point(1, 1, unroll)), spec).measure()
        seconds[str(unroll)] = {name: measured.median(name) for name in ("environment", "acting", "gradient")}
    store.add("components", seconds=seconds)


def measure_throughput(arguments: ScalingArguments, point: Point) -> dict[str, Any]:
    """Rates and costs of a point, from a run of its own."""
    config = bench_config(arguments, point)
    rows = train_for(config, arguments.seconds)
    measured = steady_state(rows, arguments.seconds)
    lags: Counter[int] = Counter()
    for row in rows:
        lags.update({int(lag): count for lag, count in row["policy_lag_counts"].items()})
    gradients = measured["agent_steps_per_second"] / (arguments.envs * point.unroll)
    return {
        **measured,
        "frames_per_second": measured["agent_steps_per_second"] * config.frames_per_agent_step,
        "policy_lag_p95": lag_summary(lags)[1],
        "learner_utilisation": gradients * measured["learner_seconds_per_update"],
        "agent_steps_dropped": rows[-1]["agent_steps_dropped"],
    }


def _measure_until(arguments: ScalingArguments, point: Point) -> dict[str, Any]:
    config = replace(
        bench_config(arguments, point),
        stop_at_return=arguments.until_return,
        stop_after_seconds=arguments.until_seconds,
        log_every_seconds=10.0,
    )
    summary = _train(config)
    reached = summary["status"] == "return_reached"
    return {
        "seconds": summary["wall_seconds"] if reached else None,
        "frames": summary["frames"] if reached else None,
        "mean_return": summary["mean_return_100"],
    }


def _train(config: RunConfig) -> dict[str, Any]:
    """The summary of a run of its own."""
    with tempfile.TemporaryDirectory(prefix="tributary-bench-") as parent:
        run = RunFolder(Path(parent) / "run")
        with training_process(config, run.path, "bench", subprocess.PIPE) as training:
            output, _ = training.communicate()
        if training.returncode != 0:
            lines = output.strip().splitlines()
            raise ConfigurationError(f"the system could not be measured: {lines[-1] if lines else 'training failed'}")
        return json.loads(run.summary.read_text())


def summarise(
    arguments: ScalingArguments, points: Sequence[Point], measurements: Sequence[dict[str, Any]]
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
        alone = [m["seconds"][str(point.unroll)] for m in by_kind.get("components", [])]
        cost = float(np.median([sum(parts.values()) for parts in alone])) if alone else None
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
                "policy_lag_p95": max(m["policy_lag_p95"] for m in made),
                "policy_lag_max": max(m["policy_lag_max"] for m in made),
                "stage_microseconds": {
                    stage: 1e6 * float(np.median([m["stage_seconds_per_step"][stage] for m in made]))
                    for stage in made[0]["stage_seconds_per_step"]
                },
                "agent_steps_dropped": dict(sum((Counter(m["agent_steps_dropped"]) for m in made), Counter())),
                "bound": None if cost is None else point.actors / cost,
                "learner_ceiling": None if ceiling is None else ceiling * arguments.envs * point.unroll,
                "seconds_to_return": until["seconds"] if until else None,
                "frames_to_return": until["frames"] if until else None,
            }
        )
    for row in rows:
        fewest = min((r for r in rows if _series(r) == _series(row)), key=lambda r: r["actors"])
        row["speed_up"] = row["agent_steps_per_second"] / fewest["agent_steps_per_second"] * fewest["actors"]
        row["efficiency"] = row["speed_up"] / row["actors"]
        row["fraction_of_bound"] = None if row["bound"] is None else row["agent_steps_per_second"] / row["bound"]
    return {
        "points": rows,
        "verdict": [
            verdict([r for r in rows if _series(r) == series]) for series in sorted({_series(r) for r in rows})
        ],
        "settings": _settings(arguments),
        **provenance(),
    }


def verdict(rows: Sequence[dict[str, Any]]) -> str:
    """Where a series of growing actor counts saturates, and on what, in words."""
    last = max(rows, key=lambda row: row["actors"])
    series = f"K = {last['gradients_per_update']}, unroll {last['unroll']}: "
    stages = last["stage_microseconds"]
    waiting = (stages["wait"] + stages["synchronise"]) / sum(stages.values())
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
    slower = max(("environment", "acting", "gradient"), key=lambda stage: stages[stage] - first[stage])
    return (
        f"{series}{seen}: the cores hold them back; {slower} takes {stages[slower]:.0f} µs per agent step where it "
        f"took {first[slower]:.0f}"
    )


def _series(row: dict[str, Any]) -> tuple[int, int]:
    return row["gradients_per_update"], row["unroll"]


def _name(point: Point) -> str:
    return f"{point.actors} actors, K = {point.gradients_per_update}, unroll {point.unroll}"


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
    "learner_ceiling",
    "learner_utilisation",
    "policy_lag_mean",
    "policy_lag_p95",
    "policy_lag_max",
    "seconds_to_return",
    "frames_to_return",
)


def _write(folder: Path, result: dict[str, Any]) -> None:
    """scaling.json, scaling.csv and the pictures."""
    from launch.bench.scaling_figures import draw

    write_json(folder / "scaling.json", result)
    part = folder / "scaling.csv.part"
    stages = list(result["points"][0]["stage_microseconds"])
    with part.open("w", newline="") as file:
        file.write(f"# {json.dumps(provenance())}\n")
        writer = csv.writer(file)
        writer.writerow([*_COLUMNS, *(f"{stage}_microseconds" for stage in stages), "agent_steps_dropped"])
        for row in result["points"]:
            costs = [f"{row['stage_microseconds'][stage]:.2f}" for stage in stages]
            writer.writerow([*(row[name] for name in _COLUMNS), *costs, json.dumps(row["agent_steps_dropped"])])
    part.replace(folder / "scaling.csv")
    draw(folder, result)


def _show(console: Console, result: dict[str, Any], folder: Path) -> None:
    table = Table(box=None, pad_edge=False)
    headings = (
        "actors", "K", "T", "agent steps/s", "frames/s", "times", "efficiency", "bound", "busy", "lag", "dropped",
    )  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in result["points"]:
        fraction = row["fraction_of_bound"]
        table.add_row(
            str(row["actors"]),
            str(row["gradients_per_update"]),
            str(row["unroll"]),
            f"{row['agent_steps_per_second']:,.0f}",
            f"{row['frames_per_second']:,.0f}",
            f"{row['speed_up']:.2f}",
            f"{row['efficiency']:.2f}",
            "-" if fraction is None else f"{fraction:.2f}",
            f"{row['learner_utilisation']:.0%}",
            f"{row['policy_lag_mean']:.1f}/{row['policy_lag_p95']}/{row['policy_lag_max']}",
            f"{sum(row['agent_steps_dropped'].values()):,}",
        )
    console.print(table, highlight=False)
    legend = (
        "medians; T unroll, times: speed-up over the fewest actors, bound: share of what the cores could do alone, "
        "busy: learner, lag: mean/95 %/most, in updates"
    )
    console.print(legend, style="dim", highlight=False)
    for line in (*result["verdict"], f"table, figures and pictures: {folder}"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
