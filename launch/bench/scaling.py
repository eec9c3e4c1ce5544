"""`tributary bench scaling`: measured throughput against the number of actors.

Each point is a training run. Points take turns within a repeat, so that those that are compared are measured close
together.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from actors.environments import environment_spec
from launch.bench.throughput import (
    agent_steps_per_gradient,
    endless,
    print_rows,
    progress,
    steady_state,
    train_for,
    unsteady,
    warn_of_busy,
)
from launch.machine import busy, load_average, thread_budget
from launch.output import EXIT_DONE, EXIT_INTERRUPTED, print_line, provenance, write_json
from launch.results.curves import lag_counts
from launch.results.report import TimeSpent, held_back
from launch.run.metrics import lag_summary
from launch.settings.check import check_network
from launch.settings.resolve import PresetArguments, complete, resolved
from shared.config import RunConfig, flat_settings
from shared.errors import setting_error


@dataclass(frozen=True)
class ScalingArguments(PresetArguments):
    """Measure throughput for several numbers of actors, like --actors 1,2,4, and name what limits it. Nothing else
    should run. Ctrl-C keeps the measurements so far."""

    actors: str = "1,2"
    """Numbers of actors to measure."""
    seconds: float = 15.0
    """Duration of each measurement, after its warm-up."""
    repeats: int = 3
    """Measurements of each number of actors."""
    json: Path | None = None
    """Output file of the result."""


def _counts(text: str) -> list[int]:
    counts = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    if min(counts) < 1:
        raise setting_error("actors", text, "must be numbers like 1,2,4")
    return sorted(set(counts))


def scaling(arguments: ScalingArguments) -> int:
    """Run `tributary bench scaling [PRESET] [SETTINGS]`: measure, print and write the figures; return the exit code."""
    if not arguments.seconds > 0:
        raise setting_error("seconds", arguments.seconds, "must be greater than 0")
    if arguments.repeats < 1:
        raise setting_error("repeats", arguments.repeats, "must be at least 1")
    # What follows from the number of actors differs between the points.
    runs = {count: complete(arguments.request(actors=count)) for count in _counts(arguments.actors)}
    configs = {actors: resolved(endless(run.config), actors) for actors, run in runs.items()}
    first = next(iter(runs.values()))
    spec = environment_spec(first.config.environment)
    for config in configs.values():
        check_network(config, spec)
        if config.address == "local":
            thread_budget(config)
    console, load = Console(), busy(load_average())
    made: dict[int, list[dict[str, Any]]] = {actors: [] for actors in configs}
    interrupted = False
    try:
        for repeat in range(arguments.repeats):
            for actors, config in configs.items():
                progress(console, f"repeat {repeat + 1} of {arguments.repeats}: {actors} actors …")
                made[actors].append(measure_throughput(config, arguments.seconds))
    except KeyboardInterrupt:
        interrupted = True
        console.print("interrupted; what was measured is shown")
    if not any(made.values()):
        return EXIT_INTERRUPTED
    result = summarise(configs, made)
    repeats = {f"{row['actors']} actors": (row["least"], row["most"]) for row in result["points"]}
    result |= {
        "busy": [*([load] if load else []), *unsteady(repeats)],
        "preset": first.preset,
        "settings": flat_settings(first.config) | {"actors": ",".join(map(str, configs))},
        **provenance(),
    }
    _show(console, result)
    write_json(arguments.json, result)
    return EXIT_INTERRUPTED if interrupted else EXIT_DONE


def measure_throughput(config: RunConfig, seconds: float) -> dict[str, Any]:
    """Rates and costs of a number of actors, from a run of its own."""
    rows = train_for(config, seconds)
    measured = steady_state(rows, seconds)
    gradients = measured["agent_steps_per_second"] / agent_steps_per_gradient(config)
    return {
        **measured,
        "frames_per_second": measured["agent_steps_per_second"] * config.frames_per_agent_step,
        "policy_lag_p95": lag_summary(lag_counts(rows))[1],
        "learner_utilisation": gradients * measured["learner_seconds_per_update"],
        "agent_steps_dropped": rows[-1]["agent_steps_dropped"],
    }


def summarise(configs: dict[int, RunConfig], made: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians over repeats, speed-up and efficiency against the fewest actors, and a verdict."""
    rows = [_row(config, n, made[n]) for n, config in configs.items() if made[n]]
    for row in rows:
        row["speed_up"] = row["agent_steps_per_second"] / rows[0]["agent_steps_per_second"] * rows[0]["actors"]
        row["efficiency"] = row["speed_up"] / row["actors"]
    return {"points": rows, "verdict": verdict(rows, configs[rows[-1]["actors"]])}


def _row(config: RunConfig, actors: int, made: list[dict[str, Any]]) -> dict[str, Any]:
    rates = [m["agent_steps_per_second"] for m in made]
    return {
        "actors": actors,
        "gradients_per_update": config.learner.gradients_per_update,
        "unroll": config.actor.unroll_length,
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
    }


def verdict(rows: Sequence[dict[str, Any]], config: RunConfig) -> str:
    """Whether throughput saturates within the rows, and on what. `config` is that of the last one."""
    last = rows[-1]
    seen = f"{last['actors']} actors reach {last['speed_up']:.2f} times one"
    if last["efficiency"] >= 0.9 or len(rows) == 1:
        return f"{seen}: no saturation"
    spent = TimeSpent(last["stage_microseconds"], last["learner_utilisation"])
    return " ".join([f"{seen}.", *held_back(spent, config)])


def _show(console: Console, result: dict[str, Any]) -> None:
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "actors": lambda row: str(row["actors"]),
        "agent\nsteps/s": lambda row: f"{row['agent_steps_per_second']:,.0f}",
        "least\nto most": lambda row: f"{row['least']:,.0f} to {row['most']:,.0f}",
        "effi-\nciency": lambda row: f"{row['efficiency']:.2f}",
        "learner\nbusy": lambda row: f"{row['learner_utilisation']:.0%}",
        "lag": lambda row: f"{row['policy_lag_mean']:.1f}/{row['policy_lag_p95']}/{row['policy_lag_max']}",
    }
    print_rows(console, columns, result["points"])
    progress(console, "medians; lag: mean/95th percentile/largest, in updates")
    print_line(console, result["verdict"])
    if result["busy"]:
        warn_of_busy(console, result["busy"])
