"""`tributary bench throughput`: agent steps per second with learning, the bound, and what follows for more cores.

The bound on C cores is C / (e + a + E·g), where e, a and g are the seconds of one core that an agent step takes in the
environment, in acting and in the gradient, and E is the number of epochs; see docs/throughput.md.

For N cores of one machine the prediction is the least of three limits in gradients per second. A gradient takes an
actor the seconds that its stages took in the system, and the learner those of the learner alone. Queues are not
modelled, so that all are upper bounds.

    actors   actors / (actor + learner)       each actor waits for the weights after its own gradient
    cores    cores / (actor + learner)
    learner  1 / learner

GPU actors have neither bound nor prediction, which are of cores. The ceiling of an Atari game is the rate of their
emulators alone.
"""

import subprocess
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from actors.environments import environment_spec
from launch.bench.alone import PLAIN_NETWORKS, Alone, Components, measure_alone
from launch.driver import train_in_process
from launch.interrupts import Interrupts
from launch.machine import (
    ACTOR_BYTES,
    LEARNER_BYTES,
    automatic_actors,
    busy,
    load_average,
    thread_budget,
    usable_cores,
    usable_gpus,
)
from launch.output import print_line, provenance, write_json
from launch.run.events import Event, Row
from launch.settings.check import check_network, on_device
from launch.settings.resolve import PresetArguments, complete, resolved
from launch.train import TrainingFailedError
from shared.config import RunConfig, flat_settings
from shared.errors import ConfigurationError, setting_error
from shared.types import StageSeconds

# Excluded after the actors' first reports: first traces, first updates.
WARM_UP_SECONDS = 4.0
_CORES = (1, 2, 4, 8, 16, 32, 64, 128)
_MILLIONS_OF_FRAMES = (40, 200)
_MOST_ACTORS = 4096
# On an idle virtual machine that others share, medians of repeats differ by a fifth at most.
STEADY_RATIO = 1.25


@dataclass(frozen=True)
class ThroughputArguments(PresetArguments):
    """Measure agent steps per second with learning, and for an Atari game the bound of the cores: what environment,
    acting and gradient cost alone; then the learner alone, and print what follows for more cores. About two minutes, in
    which nothing else should run. Limits that would end a run are ignored."""

    seconds: float = 15.0
    """Duration of the measurement of the whole system."""
    json: Path | None = None
    """Output file of the figures."""


def throughput(arguments: ThroughputArguments) -> None:
    """Run `tributary bench throughput [PRESET] [SETTINGS]`."""
    seconds = arguments.seconds
    if not seconds > 0:
        raise setting_error("seconds", seconds, "must be greater than 0")
    run = complete(arguments.request())
    spec = environment_spec(run.config.environment)
    base, device = on_device(endless(run.config), spec, usable_gpus())
    budget, on_gpu = thread_budget(base), base.actor.device == "gpu"
    config = resolved(base, budget.actors)
    check_network(config, spec)
    # With fewer actors than cores, the other cores are the learner's.
    cores = min(usable_cores(), budget.actors)
    console, load = Console(), busy(load_average())
    if device is not None:
        print_line(console, device)

    def alone() -> Alone:
        parts = (
            "emulators and learner, each alone"
            if on_gpu
            else "environment, acting, gradient and learner, each alone on one core"
        )
        progress(console, f"{parts} …")
        return measure_alone(config, spec, budget)

    # Before and after the system, so that a slow minute of a shared machine is in both.
    before = alone()
    if on_gpu:
        progress(console, "no bound: it is of networks on a CPU, and these actors compute on a GPU")
    elif not before.components:
        progress(console, f"no bound: it is known for Atari games with the networks {', '.join(PLAIN_NETWORKS)}")
    progress(console, f"the whole system, {budget.describe(config.executor)} …")
    measured = steady_state(train_for(config, seconds), seconds)
    after = alone()
    parts = [each.components for each in (before, after) if each.components]
    learner_seconds = float(np.median(before.learner + after.learner))
    rate, stages = measured["agent_steps_per_second"], measured["stage_seconds_per_step"]
    actor_seconds = sum(stages.values()) - stages["wait"]
    emulators = [*before.emulators, *after.emulators]
    halves = measured["agent_steps_per_second_by_halves"]
    reasons = [
        *([load] if load else []),
        *unsteady({"the system": halves, "the bound": [_sum_of_medians(part) for part in parts]}),
    ]
    costs = base, actor_seconds, learner_seconds
    result = {
        "agent_steps_per_second": rate,
        "frames_per_second": rate * config.frames_per_agent_step,
        **bound_figures(parts, cores, rate),
        **measured,
        "learner_seconds_per_gradient": learner_seconds,
        "parameters": before.parameters,
        "agent_steps_per_gradient": agent_steps_per_gradient(config),
        "emulators_agent_steps_per_second": 1.0 / float(np.median(emulators)) if emulators else None,
        "busy": reasons,
        "curve": [] if reasons or on_gpu else [predict(*costs, n) for n in sorted({*_CORES, usable_cores()})],
        "saturation_actors": None if reasons or on_gpu else saturation_actors(*costs),
        **provenance(),
        "preset": run.preset,
        "settings": flat_settings(config) | {"actors": budget.actors},
    }
    _show(console, result)
    write_json(arguments.json, result)


# ---- A busy machine


def unsteady(repeats: Mapping[str, Sequence[float]]) -> list[str]:
    """A sentence for each measurement whose repeats differ more than those of an idle machine do."""
    ratios = {name: max(values) / min(values) for name, values in repeats.items() if len(values) > 1}
    return [
        f"repeated measurements of {name} differ by a factor of {ratio:.2f}"
        for name, ratio in ratios.items()
        if ratio > STEADY_RATIO
    ]


def _sum_of_medians(measured: Components) -> float:
    return sum(float(np.median(repeats)) for repeats in measured.values())


# ---- What follows for other numbers of cores


def agent_steps_per_gradient(config: RunConfig) -> float:
    """Mean number of new agent steps of a gradient. A rollout gives E x M gradients."""
    actor = config.actor
    return actor.environments * actor.unroll_length / actor.gradients_per_rollout


def predict(config: RunConfig, actor_seconds: float, learner_seconds: float, cores: int) -> dict[str, Any]:
    """Rates and memory of a run with the actors that one machine of `cores` cores starts by itself.

    `actor_seconds` are those of an agent step, `learner_seconds` those of a gradient.
    """
    actors = automatic_actors(cores)
    steps = agent_steps_per_gradient(resolved(config, actors))
    seconds = actor_seconds * steps + learner_seconds
    limits = {"actors": actors / seconds, "cores": cores / seconds, "learner": 1.0 / learner_seconds}
    held_back_by = min(limits, key=lambda limit: limits[limit])
    agent_steps = limits[held_back_by] * steps
    frames = agent_steps * config.frames_per_agent_step
    return {
        "cores": cores,
        "actors": actors,
        "memory_gib": (actors * ACTOR_BYTES + LEARNER_BYTES) / 2**30,
        "gradients_per_second": limits[held_back_by],
        "agent_steps_per_second": agent_steps,
        "frames_per_second": frames,
        **{f"minutes_to_{millions}m_frames": millions * 1e6 / frames / 60 for millions in _MILLIONS_OF_FRAMES},
        "learner_utilisation": limits[held_back_by] * learner_seconds,
        "held_back_by": held_back_by,
    }


def saturation_actors(config: RunConfig, actor_seconds: float, learner_seconds: float) -> int:
    """The least number of actors, each on a core of its own, whose gradients keep the learner busy all the time."""

    def full(actors: int) -> bool:
        seconds = actor_seconds * agent_steps_per_gradient(resolved(config, actors)) + learner_seconds
        return actors / seconds >= 1.0 / learner_seconds

    return 1 + bisect_left(range(1, _MOST_ACTORS), True, key=full)


def bound_figures(measured: Sequence[Components], cores: int, rate: float) -> dict[str, Any]:
    """The JSON figures of the bound of `cores`, by the repeats of all measurements; {} without one."""
    if not measured:
        return {}
    repeats = {part: [seconds for each in measured for seconds in each[part]] for part in measured[0]}
    bound = cores / _sum_of_medians(repeats)
    return {
        "bound_cores": cores,
        "bound_agent_steps_per_second": bound,
        "fraction_of_bound": rate / bound,
        "alone": {
            "seconds_per_step": {part: float(np.median(seconds)) for part, seconds in repeats.items()},
            "least_and_most_seconds_per_step": {part: (min(s), max(s)) for part, s in repeats.items()},
        },
    }


def endless(config: RunConfig) -> RunConfig:
    """The settings without the limits that end a run, and with a row of metrics each second."""
    return replace(config, total_frames=10**12, stop_at_return=None, stop_after_seconds=None, log_every_seconds=1.0)


def train_for(config: RunConfig, seconds: float) -> list[dict[str, Any]]:
    """Train until `seconds` after the warm-up. Returns the rows since the actors' first report."""
    rows: list[dict[str, Any]] = []

    def take(event: Event) -> bool:
        if isinstance(event, Row) and event.values["agent_steps"] > 0:
            rows.append(event.values)
        return not _covers(rows, seconds)

    # A closed terminal interrupts the bench, which ends the run: its process belongs to no terminal.
    with tempfile.TemporaryDirectory(prefix="tributary-bench-") as parent, Interrupts():
        try:
            train_in_process(config, Path(parent) / "run", take, preset="bench", output=subprocess.DEVNULL)
        except (ConfigurationError, TrainingFailedError) as error:
            raise ConfigurationError(f"the system could not be measured: {error}") from error
    if not _covers(rows, seconds):
        raise ConfigurationError("the system could not be measured: the run ended early")
    return rows


def _covers(rows: list[dict[str, Any]], seconds: float) -> bool:
    return bool(rows) and rows[-1]["elapsed_seconds"] >= rows[0]["elapsed_seconds"] + WARM_UP_SECONDS + seconds + 1.0


def steady_state(rows: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Rates and costs of the `seconds` after the warm-up, from a run's rows of metrics."""
    working = [row for row in rows if row["agent_steps"] > 0]
    begin = working[0]["elapsed_seconds"] + WARM_UP_SECONDS if working else 0.0
    counted = [row for row in working if begin <= row["elapsed_seconds"] <= begin + seconds + 1.0]
    # The row of an interval without a gradient has no rates and no statistics.
    rows = [row for row in counted[1:] if sum(row["policy_lag_counts"].values())]
    # A row of the later gradients of a rollout has no agent steps of its own.
    playing = [row for row in rows if row["stage_microseconds"]]
    if not playing:
        raise setting_error("seconds", seconds, "is too short for the actors to start and be measured")
    first, middle, last = counted[0], counted[len(counted) // 2], counted[-1]
    elapsed = last["elapsed_seconds"] - first["elapsed_seconds"]
    weights = [row["agent_steps_per_second"] for row in playing]
    halves = [(first, middle), (middle, last)] if len(counted) > 2 else []

    def rate(begin: dict[str, Any], end: dict[str, Any]) -> float:
        return float((end["agent_steps"] - begin["agent_steps"]) / (end["elapsed_seconds"] - begin["elapsed_seconds"]))

    return {
        "agent_steps_per_second": rate(first, last),
        "agent_steps_per_second_by_halves": [rate(*half) for half in halves],
        "updates_per_second": (last["updates"] - first["updates"]) / elapsed,
        "learner_seconds_per_update": float(np.mean([row["learner_milliseconds"] for row in rows])) * 1e-3,
        "policy_lag_mean": float(np.mean([row["policy_lag_mean"] for row in rows])),
        "policy_lag_max": max(row["policy_lag_max"] for row in rows),
        "stage_seconds_per_step": {
            stage: float(np.average([row["stage_microseconds"][stage] for row in playing], weights=weights)) * 1e-6
            for stage in playing[0]["stage_microseconds"]
        },
        "measured_seconds": elapsed,
    }


def _show(console: Console, result: dict[str, Any]) -> None:
    settings = result["settings"]
    network = settings["network.name"]
    if settings["network.recurrent"] != "none":
        network += f" + {settings['network.recurrent']}"
    title = (
        f"{settings['environment.id']}, {network}: {settings['actors']} actors x "
        f"{settings['actor.environments']} environments, unroll {settings['actor.unroll_length']}, "
        f"{settings['actor.epochs']} epochs x {settings['actor.minibatches']} minibatches"
    )
    print_line(console, title)
    alone = {"alone": result["alone"]["seconds_per_step"]} if "alone" in result else {}
    on_gpu = settings["actor.device"] == "gpu"
    print_stages(console, alone | {"in the system": result["stage_seconds_per_step"]}, "actor" if on_gpu else "core")
    rate, frames = result["agent_steps_per_second"], result["frames_per_second"]
    lines = [f"agent steps/s      {rate:,.0f}   (frames/s {frames:,.0f})"]
    if "alone" in result:
        lines += [
            f"bound              {result['bound_agent_steps_per_second']:,.0f}   on {result['bound_cores']} cores",
            f"fraction of bound  {result['fraction_of_bound']:.3f}",
        ]
    if result["emulators_agent_steps_per_second"] is not None:
        ceiling = result["emulators_agent_steps_per_second"]
        lines.append(f"emulators alone    {ceiling:,.0f}   the system has {rate / ceiling:.3f} of it")
    lines += [
        f"learner            {1e3 * result['learner_seconds_per_update']:.2f} ms per gradient, "
        f"{result['updates_per_second']:.1f} updates/s; alone {1e3 * result['learner_seconds_per_gradient']:.2f} ms",
        f"policy lag         mean {result['policy_lag_mean']:.2f}, max {result['policy_lag_max']}",
    ]
    for line in lines:
        print_line(console, line)
    if result["busy"]:
        warn_of_busy(console, result["busy"])
        print_line(console, "no prediction for more cores: it would follow from these figures")
        return
    if on_gpu:
        print_line(console, "no prediction for more cores: it is for actors on CPUs")
        return
    console.print()
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "cores": lambda row: f"{row['cores']}",
        "actors": lambda row: f"{row['actors']}",
        "memory": lambda row: f"{row['memory_gib']:,.0f} GiB",
        "agent\nsteps/s": lambda row: f"{row['agent_steps_per_second']:,.0f}",
        "minutes\nto 40 M": lambda row: f"{row['minutes_to_40m_frames']:,.1f}",
        "to 200 M\nframes": lambda row: f"{row['minutes_to_200m_frames']:,.1f}",
        "learner\nbusy": lambda row: f"{row['learner_utilisation']:.0%}",
        "held\nback by": lambda row: row["held_back_by"],
    }
    print_rows(console, columns, result["curve"])
    print_line(
        console,
        "predicted for one machine with cores like these; the learner is full at "
        f"{result['saturation_actors']:,} actors; what more actors change: docs/scaling.md",
    )


# ---- What all measurements print


def progress(console: Console, line: str) -> None:
    """Print what is measured now."""
    console.print(line, style="dim", highlight=False)


def warn_of_busy(console: Console, reasons: Sequence[str]) -> None:
    """Print that the figures above are those of a busy machine."""
    why = "; ".join(reasons)
    print_line(console, f"busy machine: {why}; the figures are too low: measure again when it is idle, or for longer")


def print_stages(console: Console, columns: Mapping[str, Mapping[str, float]], per: str = "core") -> None:
    """Print the seconds per agent step of each stage, in microseconds. Columns may lack stages."""
    table = Table(f"µs per agent step and {per}", box=None, pad_edge=False)
    for heading in columns:
        table.add_column(heading, justify="right")
    for stage in StageSeconds._fields:
        cells = [f"{1e6 * seconds[stage]:.1f}" if stage in seconds else "" for seconds in columns.values()]
        if any(cells):
            table.add_row(stage, *cells)
    console.print(table, highlight=False)


def print_rows(
    console: Console, columns: Mapping[str, Callable[[dict[str, Any]], str]], rows: Sequence[dict[str, Any]]
) -> None:
    """Print a table of numbers: for each row the text that each column makes of it."""
    table = Table(box=None, pad_edge=False)
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(text(row) for text in columns.values()))
    console.print(table, highlight=False)
