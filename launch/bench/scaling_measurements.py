"""The measurements of `tributary bench scaling`, one after the other, and the file that they are kept in."""

import json
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from actors.environments import EnvironmentSpec
from launch.bench.components import measure_components
from launch.bench.learner import LearnerArguments, measure_learner
from launch.bench.scaling_result import Point
from launch.bench.scaling_settings import ScalingArguments, bench_config
from launch.bench.throughput import WARM_UP_SECONDS, steady_state, train_for
from launch.commands.interrupts import Interrupts
from launch.commands.training_process import training_process
from launch.output import drop_half_line, duration, usable_cores
from launch.run.folder import RunFolder
from launch.run.progress import lag_summary
from shared.config import RunConfig
from shared.errors import ConfigurationError

# About what components and the start of a run take, to say how long it will be.
_COMPONENT_SECONDS, _START_SECONDS = 20.0, 15.0


class Store:
    """Measurements, one JSON object per line, each written as soon as it is made."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> list[dict[str, Any]]:
        """All that were made, in their order; a line that was cut short is left out."""
        if not self._file.is_file():
            return []
        return [json.loads(line) for line in self._file.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def add(self, kind: str, **values: Any) -> None:
        """Keep one more."""
        drop_half_line(self._file)
        with self._file.open("a") as file:
            file.write(json.dumps({"kind": kind, "time": datetime.now().isoformat("T", "seconds"), **values}) + "\n")


def measure_all(
    arguments: ScalingArguments,
    points: Sequence[Point],
    spec: EnvironmentSpec,
    store: Store,
    console: Console,
) -> None:
    """Measure what is not measured yet."""
    done = Counter((m["kind"], *m.get("point", ())) for m in store.read())
    seconds = _START_SECONDS + WARM_UP_SECONDS + arguments.seconds
    turns = [(repeat, point) for repeat in range(arguments.repeats) for point in points]
    turns = [(repeat, point) for repeat, point in turns if done[("throughput", *point)] <= repeat]
    unrolls = len({point.unroll for point in points})
    left = len(turns) * seconds + (0 if done[("components",)] >= 2 else 2 * _COMPONENT_SECONDS * unrolls)
    console.print(f"{len(turns)} measurements, about {duration(left)}", style="dim", highlight=False)
    started = time.monotonic()
    if not done[("ceiling",)]:
        _measure_ceiling(arguments, points, store, console)
    if done[("components",)] < 1:
        _measure_components(arguments, points, spec, store, console)
    for number, (repeat, point) in enumerate(turns, start=1):
        rest = (time.monotonic() - started) / (number - 1) * (len(turns) - number + 1) if number > 1 else left
        console.print(
            f"{number}/{len(turns)}  {_name(point)}, repeat {repeat + 1}   left {duration(rest)}",
            style="dim",
            highlight=False,
        )
        store.add("throughput", point=point, **measure_throughput(arguments, point))
    if done[("components",)] < 2:
        _measure_components(arguments, points, spec, store, console)
    if arguments.until_return is not None:
        for point in points:
            if not done[("until", *point)]:
                console.print(f"{_name(point)} until a return of {arguments.until_return:g} …", style="dim")
                store.add("until", point=point, **_measure_until(arguments, point))


def _measure_ceiling(arguments: ScalingArguments, points: Sequence[Point], store: Store, console: Console) -> None:
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
    arguments: ScalingArguments, points: Sequence[Point], spec: EnvironmentSpec, store: Store, console: Console
) -> None:
    """e, a and g alone, and with as many processes at once as each point has actors, at most one on each core here."""
    console.print("environment, acting and gradient, alone and at once …", style="dim")
    here = usable_cores()
    alone, loaded = {}, {}
    for unroll in sorted({point.unroll for point in points}):
        counts = {1} | {min(point.actors, here) for point in points}
        measured = measure_components(bench_config(arguments, Point(1, 1, unroll)), spec, sorted(counts))
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
    rollouts = measured["agent_steps_per_second"] / (arguments.envs * point.unroll)
    gradients = rollouts * config.actor.gradients_per_rollout
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
    reached = summary["confirmed_crossing"]
    return {
        "seconds": reached["seconds"] if reached else None,
        "frames": reached["frames"] if reached else None,
        "mean_return": summary["mean_return_100"],
    }


def _train(config: RunConfig) -> dict[str, Any]:
    """The summary of a run of its own."""
    with tempfile.TemporaryDirectory(prefix="tributary-bench-") as parent:
        run = RunFolder(Path(parent) / "run")
        with Interrupts(), training_process(config, run.path, "bench", subprocess.PIPE) as training:
            output, _ = training.communicate()
        if training.returncode != 0:
            lines = output.strip().splitlines()
            raise ConfigurationError(f"the system could not be measured: {lines[-1] if lines else 'training failed'}")
        return json.loads(run.summary.read_text())


def _name(point: Point) -> str:
    return f"{point.actors} actors, K = {point.gradients_per_update}, unroll {point.unroll}"
