"""`tributary bench scaling`: throughput against the number of actors, measured or rehearsed (`launch.bench.rehearsal`).

Each point is a training run. Points take turns within a repeat, so that compared points are measured close together.
"""

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.console import Console

from actors.environments import EnvironmentSpec, environment_spec
from launch.bench.rehearsal import check_memory, full, rehearsed, rehearsed_state
from launch.bench.throughput import busy_reasons, endless, progress, steady_state, train_for, warn_of_busy
from launch.files import write_json
from launch.machine import busy, load_average, thread_budget
from launch.output import EXIT_DONE, EXIT_INTERRUPTED, number, plain_table, print_line
from launch.presets import usual_agent_steps
from launch.provenance import provenance
from launch.results.report import TimeSpent, held_back
from launch.settings.check import check_network
from launch.settings.resolve import PresetArguments, divided_among, resolve_request, rollouts_line
from shared.config import RunConfig, flat_settings
from shared.config.checks import Range
from shared.errors import alternatives, setting_error

_TABLE = {
    "actors": "{actors}",
    "agent\nsteps/s": "{agent_steps_per_second:,.0f}",
    "least\nto most": "{least:,.0f} to {most:,.0f}",
    "effi-\nciency": "{efficiency:.2f}",
    "learner\nbusy": "{learner_utilisation:.0%}",
    "lag": "{policy_lag_mean:.1f}/{policy_lag_p95}/{policy_lag_max}",
}
_REHEARSED = {
    "actors": "{actors}",
    "agent\nsteps/s": "{agent_steps_per_second:,.0f}",
    "gradi-\nents/s": "{gradients_per_second:,.0f}",
    "lag": "{policy_lag_mean:.1f}/{policy_lag_p95}/{policy_lag_max}",
    "actors\nwait": "{wait_share:.0%}",
    "learner\nbusy": "{learner_cores:.0%}",
    "its\nmemory": "{learner_memory_share:.0%}",
    "this\nmachine": "{machine_share:.0%}",
    "full": "{full}",
    "to goal": "{seconds}",
}
# Left out where the terminal is too narrow.
_SPARE = "its\nmemory", "this\nmachine"
_MEDIANS = (
    "agent_steps_per_second",
    "frames_per_second",
    "gradients_per_second",
    "updates_per_second",
    "policy_lag_mean",
    "learner_utilisation",
    # Only rehearsals have these.
    "wait_share",
    "learner_cores",
    "learner_delay",
    "learner_bytes_per_second",
    "learner_memory_share",
    "machine_share",
)
# Agent steps that a preset takes to its target, by agent steps in flight and epochs: medians of docs/scaling.md.
AGENT_STEPS_TO_TARGET = {"pong": {(1024, 4): 470_540, (2048, 4): 403_624, (4096, 2): 541_636}}


@dataclass(frozen=True)
class ScalingArguments(PresetArguments):
    """Measure throughput for several numbers of actors, like --actors 1,2,4, and name its limit. Nothing else should
    run. Ctrl-C keeps the measurements so far."""

    actors: str = "1,2"
    """Numbers of actors to measure."""
    rehearse: bool = False
    """Let actors sleep for as long as a real one computes on a core of its own: the rate, the learner's load and the
    policy lag of more actors than this machine has cores for. Without evaluations."""
    seconds: Annotated[float, Range(above=0.0)] = 15.0
    """Duration of each measurement, after its warm-up."""
    repeats: Annotated[int, Range(minimum=1)] = 3
    """Measurements of each number of actors."""
    json: Path | None = None
    """Output file of the result."""


def scaling(arguments: ScalingArguments) -> int:
    counts = {int(part) if part.strip().isdecimal() else 0 for part in arguments.actors.split(",")}
    if 0 in counts:
        raise setting_error("actors", arguments.actors, "must be numbers like 1,2,4")
    # Settings that follow from the number of actors differ between the points.
    runs = {count: resolve_request(arguments.request(actors=count)) for count in sorted(counts)}
    configs = {actors: divided_among(endless(run.config), actors) for actors, run in runs.items()}
    first = next(iter(runs.values()))
    spec = environment_spec(first.config.environment)
    if arguments.rehearse:
        configs = {actors: rehearsed(config) for actors, config in configs.items()}
    for actors, config in configs.items():
        check_network(config, spec)
        if arguments.rehearse:
            check_memory(actors)
        elif config.address == "local":
            thread_budget(config)
    console, load = Console(), busy(load_average())
    states, interrupted = _measure(arguments, configs, spec, console)
    points = summarise(configs, states)
    if not points:
        return EXIT_INTERRUPTED
    if arguments.rehearse:
        of_preset = usual_agent_steps(first.preset, first.config) is not None
        targets = AGENT_STEPS_TO_TARGET.get(first.preset, {}) if of_preset else {}
        for point in points:
            point |= rehearsal_figures(configs[point["actors"]], point, targets)
    repeats = {f"{point['actors']} actors": (point["least"], point["most"]) for point in points}
    result = {
        "points": points,
        "rehearsed": arguments.rehearse,
        "verdict": None if arguments.rehearse else verdict(points, first.config),
        "busy": busy_reasons(load, repeats),
        "preset": first.preset,
        "settings": flat_settings(first.config) | {"actors": ",".join(map(str, configs))},
        **provenance(),
    }
    _show(console, result)
    write_json(arguments.json, result)
    return EXIT_INTERRUPTED if interrupted else EXIT_DONE


def _measure(
    arguments: ScalingArguments, configs: Mapping[int, RunConfig], spec: EnvironmentSpec, console: Console
) -> tuple[dict[int, list[dict[str, Any]]], bool]:
    """The steady states of each number of actors, one for each repeat, and whether Ctrl-C ended the measurements."""
    states: dict[int, list[dict[str, Any]]] = {actors: [] for actors in configs}
    seconds = arguments.seconds
    with tempfile.TemporaryDirectory(prefix="tributary-bench-") as recordings:
        try:
            for repeat in range(arguments.repeats):
                for actors, config in configs.items():
                    progress(console, f"repeat {repeat + 1} of {arguments.repeats}: {actors} actors …")
                    progress(console, rollouts_line(config, actors))
                    if arguments.rehearse:
                        state = rehearsed_state(config, spec, actors, seconds, Path(recordings))
                    else:
                        state = steady_state(config, train_for(config, seconds), seconds)
                    states[actors].append(state)
        except KeyboardInterrupt:
            note = "what was measured is shown" if any(states.values()) else "nothing was measured"
            console.print(f"interrupted; {note}")
            return states, True
    return states, False


def _show(console: Console, result: dict[str, Any]) -> None:
    points, columns = result["points"], _REHEARSED if result["rehearsed"] else _TABLE
    cells = [point | {"seconds": number(point.get("seconds_to_target"), ",.0f")} for point in points]
    rows = [{heading: cell.format(**point) for heading, cell in columns.items()} for point in cells]
    console.print(plain_table(rows, console.width, left=(), spare=_SPARE), highlight=False)
    progress(console, "medians; lag: mean/95th percentile/largest, in updates")
    if result["rehearsed"]:
        print_rehearsal(console, points)
    else:
        print_line(console, result["verdict"])
    warn_of_busy(console, result["busy"])


def summarise(configs: Mapping[int, RunConfig], states: Mapping[int, Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The point of each number of actors: medians over repeats, speed-up and efficiency against the fewest actors."""
    points: list[dict[str, Any]] = []
    for actors, repeats in states.items():
        if not repeats:
            continue
        rates = [repeat["agent_steps_per_second"] for repeat in repeats]
        stages = [repeat["stage_seconds_per_step"] for repeat in repeats]
        point = {
            "actors": actors,
            "gradients_per_update": configs[actors].learner.gradients_per_update,
            "unroll": configs[actors].actor.unroll_length,
            "repeats": len(repeats),
            **{name: float(np.median([r[name] for r in repeats])) for name in _MEDIANS if name in repeats[0]},
            "least": min(rates),
            "most": max(rates),
            "policy_lag_p95": max(repeat["policy_lag_p95"] for repeat in repeats),
            "policy_lag_max": max(repeat["policy_lag_max"] for repeat in repeats),
            "stage_microseconds": {
                stage: 1e6 * float(np.median([seconds[stage] for seconds in stages])) for stage in stages[0]
            },
            "agent_steps_dropped": sum((Counter(repeat["agent_steps_dropped"]) for repeat in repeats), Counter[str]()),
        }
        fewest = points[0] if points else point
        point["speed_up"] = point["agent_steps_per_second"] / fewest["agent_steps_per_second"] * fewest["actors"]
        point["efficiency"] = point["speed_up"] / actors
        points.append(point)
    return points


def rehearsal_figures(
    config: RunConfig, point: Mapping[str, Any], targets: Mapping[tuple[int, int], int]
) -> dict[str, Any]:
    """The form of a rehearsed point, what is full, and the seconds to the target: None if unknown.

    `targets`: agent steps to the target by agent steps in flight and epochs.
    """
    actor, part = config.actor, full(point)
    needed = targets.get((point["actors"] * actor.agent_steps_in_flight, actor.epochs))
    return {
        "environments": actor.environments,
        "minibatches": actor.minibatches,
        "epochs": actor.epochs,
        "full": part,
        "is_lower_bound": part == "machine",
        "agent_steps_to_target": needed,
        "seconds_to_target": None if needed is None else needed / point["agent_steps_per_second"],
    }


def print_rehearsal(console: Console, points: Sequence[dict[str, Any]]) -> None:
    for line in (
        "rehearsed: learner, loop and transport are real; actors sleep as long as real ones computed on a core here, "
        "one at work on each",
        "its memory: bytes that the learner reads and writes, of those that one core copies",
    ):
        progress(console, line)
    if small := [f"{point['actors']}" for point in points if point["is_lower_bound"]]:
        print_line(
            console,
            f"this machine is too small to rehearse {alternatives(small)} actors, whose processes need it for "
            "themselves: their rates are lower bounds",
        )


def verdict(points: Sequence[dict[str, Any]], config: RunConfig) -> str:
    """A sentence on the saturation of throughput within the points, and its cause."""
    last = points[-1]
    if len(points) == 1:
        return "one number of actors shows no saturation"
    fewest = points[0]["actors"]
    speed_up = f"{last['actors']} actors have {last['speed_up'] / fewest:.2f} times the throughput of {fewest}"
    if last["efficiency"] >= 0.9:
        return f"{speed_up}: no saturation"
    spent = TimeSpent(last["stage_microseconds"], last["learner_utilisation"])
    return " ".join([f"{speed_up}.", *held_back(spent, config)])
