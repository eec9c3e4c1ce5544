"""`tributary bench throughput`: agent steps per second with learning, the bound, and predictions for more cores.

The bound on C cores is C / (e + a + E·g), where e, a and g are the seconds of one core that an agent step takes in the
environment, in acting and in the gradient, and E is the number of epochs; see docs/throughput.md.

For N cores of one machine the prediction is the least of three limits in gradients per second. A gradient takes an
actor the seconds that its stages took in the system, and the learner the seconds of the learner alone. Queues are not
modelled, so that all are upper bounds.

    actors   actors / (actor + learner)       each actor waits for the weights after its own gradient
    cores    cores / (actor + learner)
    learner  1 / learner

GPU actors have neither bound nor prediction: both are about cores. The ceiling of an Atari game is the rate of their
emulators alone.
"""

import subprocess
import tempfile
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.console import Console

from actors.environments import environment_spec
from launch.bench.alone import BOUND_PARTS, PLAIN_NETWORKS, Alone, has_bound, measure_alone
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
from launch.output import plain_table, print_line, provenance, write_json
from launch.results.curves import lag_counts
from launch.run.events import Event, Row
from launch.run.metrics import lag_summary
from launch.settings.check import check_network, on_device
from launch.settings.resolve import PresetArguments, divided_among, resolve_request
from shared.config import RunConfig, flat_settings
from shared.config.checks import Range, check_ranges
from shared.errors import ConfigurationError, TrainingFailedError, setting_error
from shared.types import StageSeconds

# Excluded after the actors' first reports: first traces, first updates.
WARM_UP_SECONDS = 4.0
_CORES = (1, 2, 4, 8, 16, 32, 64, 128)
_MILLIONS_OF_FRAMES = (40, 200)
_MOST_ACTORS = 4096
# On an idle virtual machine that others share, medians of repeats differ by a fifth at most.
STEADY_RATIO = 1.25
CPUS = "learner", "machine"

_PREDICTION = {
    "cores": "{cores}",
    "actors": "{actors}",
    "memory": "{memory_gib:,.0f} GiB",
    "agent\nsteps/s": "{agent_steps_per_second:,.0f}",
    "minutes\nto 40 M": "{minutes_to_40m_frames:,.1f}",
    "to 200 M\nframes": "{minutes_to_200m_frames:,.1f}",
    "learner\nbusy": "{learner_utilisation:.0%}",
    "held\nback by": "{held_back_by}",
}


@dataclass(frozen=True)
class ThroughputArguments(PresetArguments):
    """Measure agent steps per second with learning; for an Atari game the bound of the cores, from environment, acting
    and gradient alone; and the learner alone. Print predictions for more cores. About two minutes, in which nothing
    else should run. Limits that would end a run are ignored."""

    seconds: Annotated[float, Range(above=0.0)] = 15.0
    """Duration of the measurement of the whole system."""
    json: Path | None = None
    """Output file of the figures."""


def throughput(arguments: ThroughputArguments) -> None:
    check_ranges(arguments)
    run = resolve_request(arguments.request())
    spec = environment_spec(run.config.environment)
    base, device = on_device(endless(run.config), spec, usable_gpus())
    budget, on_gpu = thread_budget(base), base.actor.device == "gpu"
    config = divided_among(base, budget.actors)
    check_network(config, spec)
    console, load = Console(), busy(load_average())
    if device is not None:
        print_line(console, device)
    if on_gpu:
        parts = "emulators and learner, each alone"
        no_bound = "it is of networks on a CPU, and these actors compute on a GPU"
    else:
        parts = "environment, acting, gradient and learner, each alone on one core"
        no_bound = f"it is known for Atari games with the networks {', '.join(PLAIN_NETWORKS)}"
    # Alone before and after the system, so that a slow minute of a shared machine is in both.
    progress(console, f"{parts} …")
    before, parameters = measure_alone(config, spec, budget)
    if not has_bound(config, spec):
        progress(console, f"no bound: {no_bound}")
    progress(console, f"the whole system, {budget.describe(config.executor)} …")
    measured = steady_state(config, train_for(config, arguments.seconds), arguments.seconds)
    progress(console, f"{parts}, again …")
    after, _ = measure_alone(config, spec, budget)
    both = {part: before[part] + after[part] for part in before}
    learner_seconds, emulators = float(np.median(both["learner"])), both.get("emulators")
    stages, rate = measured["stage_seconds_per_step"], measured["agent_steps_per_second"]
    costs = base, sum(stages.values()) - stages["wait"], learner_seconds
    sums = [sum(bound_seconds(alone).values()) for alone in (before, after) if has_bound(config, spec)]
    reasons = busy_reasons(load, {"the system": measured["agent_steps_per_second_by_halves"], "the bound": sums})
    predicts = not reasons and not on_gpu
    result = {
        # With fewer actors than cores, the other cores are the learner's.
        **bound_figures(both, min(usable_cores(), budget.actors), rate),
        **measured,
        "learner_seconds_per_gradient": learner_seconds,
        "parameters": parameters,
        "agent_steps_per_gradient": agent_steps_per_gradient(config),
        "emulators_agent_steps_per_second": 1 / float(np.median(emulators)) if emulators else None,
        "busy": reasons,
        "curve": [predict(*costs, n) for n in sorted({*_CORES, usable_cores()})] if predicts else [],
        "saturation_actors": saturation_actors(*costs) if predicts else None,
        **provenance(),
        "preset": run.preset,
        "settings": flat_settings(config) | {"actors": budget.actors},
    }
    _show(console, result)
    write_json(arguments.json, result)


def busy_reasons(load: str | None, repeats: Mapping[str, Sequence[float]]) -> list[str]:
    """Signs of a busy machine in figures: its load, and repeats that differ more than on an idle machine."""
    ratios = {name: max(values) / min(values) for name, values in repeats.items() if len(values) > 1}
    reasons = [load] if load is not None else []
    return reasons + [
        f"repeated measurements of {name} differ by a factor of {ratio:.2f}"
        for name, ratio in ratios.items()
        if ratio > STEADY_RATIO
    ]


def bound_seconds(measured: Alone) -> dict[str, float]:
    """The median of each part of the bound in seconds; {} without a bound."""
    return {part: float(np.median(measured[part])) for part in BOUND_PARTS if part in measured}


def bound_figures(measured: Alone, cores: int, rate: float) -> dict[str, Any]:
    """The JSON figures of the bound of `cores`; {} without one."""
    seconds = bound_seconds(measured)
    if not seconds:
        return {}
    bound = cores / sum(seconds.values())
    return {
        "bound_cores": cores,
        "bound_agent_steps_per_second": bound,
        "fraction_of_bound": rate / bound,
        "alone": {
            "seconds_per_step": seconds,
            "least_and_most_seconds_per_step": {part: (min(measured[part]), max(measured[part])) for part in seconds},
        },
    }


# ---- Predictions for other numbers of cores


def agent_steps_per_gradient(config: RunConfig) -> float:
    """Mean number of new agent steps of a gradient. A rollout gives E x M gradients."""
    actor = config.actor
    return actor.environments * actor.unroll_length / actor.gradients_per_rollout


def predict(config: RunConfig, actor_seconds: float, learner_seconds: float, cores: int) -> dict[str, Any]:
    """Rates and memory of a run with the actors that one machine of `cores` cores starts by itself.

    `actor_seconds`: of an agent step. `learner_seconds`: of a gradient.
    """
    actors = automatic_actors(cores)
    steps = agent_steps_per_gradient(divided_among(config, actors))
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
        seconds = actor_seconds * agent_steps_per_gradient(divided_among(config, actors)) + learner_seconds
        return actors / seconds >= 1.0 / learner_seconds

    return 1 + bisect_left(range(1, _MOST_ACTORS), True, key=full)


# ---- The whole system


def endless(config: RunConfig) -> RunConfig:
    """The settings without the limits that end a run, and with a row of metrics each second."""
    return replace(config, total_frames=10**12, stop_at_return=None, stop_after_seconds=None, log_every_seconds=1.0)


def train_for(config: RunConfig, seconds: float) -> list[dict[str, Any]]:
    """Train until `seconds` after the warm-up. Returns the rows since the actors' first report."""
    rows: list[dict[str, Any]] = []

    def covered() -> bool:
        needed = WARM_UP_SECONDS + seconds + 1.0
        return bool(rows) and rows[-1]["elapsed_seconds"] >= rows[0]["elapsed_seconds"] + needed

    def take(event: Event) -> bool:
        if isinstance(event, Row) and event.values["agent_steps"] > 0:
            rows.append(event.values)
        return not covered()

    # A closed terminal interrupts the bench, which ends the run: its process belongs to no terminal.
    with tempfile.TemporaryDirectory(prefix="tributary-bench-") as parent, Interrupts():
        try:
            train_in_process(config, Path(parent) / "run", take, preset="bench", output=subprocess.DEVNULL)
        except (ConfigurationError, TrainingFailedError) as error:
            raise ConfigurationError(f"the system could not be measured: {error}") from error
    if not covered():
        raise ConfigurationError("the system could not be measured: the run ended early")
    return rows


def steady_state(config: RunConfig, rows: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Rates and costs of a run in the `seconds` after the warm-up, from its rows of metrics.

    A row of a rehearsal has CPU seconds, too: the result then has the cores that the learner's process and the whole
    machine were busy on.
    """
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
    weights = [row["agent_steps_per_second"] for row in playing]
    halves = [(first, middle), (middle, last)] if len(counted) > 2 else []

    def rate(count: str, begin: dict[str, Any], end: dict[str, Any]) -> float:
        return float((end[count] - begin[count]) / (end["elapsed_seconds"] - begin["elapsed_seconds"]))

    agent_steps = rate("agent_steps", first, last)
    learner_seconds = float(np.mean([row["learner_milliseconds"] for row in rows])) * 1e-3
    return {
        "agent_steps_per_second": agent_steps,
        "agent_steps_per_second_by_halves": [rate("agent_steps", *half) for half in halves],
        "frames_per_second": agent_steps * config.frames_per_agent_step,
        "updates_per_second": rate("updates", first, last),
        "gradients_per_second": agent_steps / agent_steps_per_gradient(config),
        "learner_seconds_per_update": learner_seconds,
        "learner_utilisation": agent_steps / agent_steps_per_gradient(config) * learner_seconds,
        "policy_lag_mean": float(np.mean([row["policy_lag_mean"] for row in rows])),
        "policy_lag_p95": lag_summary(lag_counts(rows))[1],
        "policy_lag_max": max(row["policy_lag_max"] for row in rows),
        "agent_steps_dropped": last["agent_steps_dropped"],
        "stage_seconds_per_step": {
            stage: float(np.average([row["stage_microseconds"][stage] for row in playing], weights=weights)) * 1e-6
            for stage in playing[0]["stage_microseconds"]
        },
        "measured_seconds": last["elapsed_seconds"] - first["elapsed_seconds"],
        **{f"{of}_cores": rate(f"{of}_cpu_seconds", first, last) for of in CPUS if f"{of}_cpu_seconds" in last},
    }


# ---- Printing


def _show(console: Console, result: dict[str, Any]) -> None:
    settings = result["settings"]
    on_gpu, memory = settings["actor.device"] == "gpu", settings["network.recurrent"]
    print_line(
        console,
        f"{settings['environment.id']}, {settings['network.name']}{'' if memory == 'none' else f' + {memory}'}: "
        f"{settings['actors']} actors x {settings['actor.environments']} environments, unroll "
        f"{settings['actor.unroll_length']}, epochs x minibatches {settings['actor.epochs']} x "
        f"{settings['actor.minibatches']}",
    )
    alone = {"alone": result["alone"]["seconds_per_step"]} if "alone" in result else {}
    columns = alone | {"in the system": result["stage_seconds_per_step"]}
    unit, stages = f"µs per agent step and {'actor' if on_gpu else 'core'}", []
    for stage in StageSeconds._fields:
        cells = {of: f"{1e6 * seconds[stage]:.1f}" if stage in seconds else "" for of, seconds in columns.items()}
        stages.append({unit: stage, **cells})
    console.print(plain_table(stages, console.width, left=(unit,)), highlight=False)
    rate, ceiling = result["agent_steps_per_second"], result["emulators_agent_steps_per_second"]
    lines = [f"agent steps/s      {rate:,.0f}   (frames/s {result['frames_per_second']:,.0f})"]
    if alone:
        lines.append(
            f"bound              {result['bound_agent_steps_per_second']:,.0f}   on {result['bound_cores']} cores"
        )
        lines.append(f"fraction of bound  {result['fraction_of_bound']:.3f}")
    if ceiling is not None:
        lines.append(f"emulators alone    {ceiling:,.0f}   the system has {rate / ceiling:.3f} of it")
    lines.append(
        f"learner            {1e3 * result['learner_seconds_per_update']:.2f} ms per gradient, "
        f"{result['updates_per_second']:.1f} updates/s; alone {1e3 * result['learner_seconds_per_gradient']:.2f} ms"
    )
    lines.append(f"policy lag         mean {result['policy_lag_mean']:.2f}, max {result['policy_lag_max']}")
    for line in lines:
        print_line(console, line)
    warn_of_busy(console, result["busy"])
    if not result["curve"]:
        why = "it would follow from these figures" if result["busy"] else "it is for actors on CPUs"
        print_line(console, f"no prediction for more cores: {why}")
        return
    console.print()
    print_rows(console, _PREDICTION, result["curve"])
    print_line(
        console,
        "predicted for one machine with cores like these; the learner is full at "
        f"{result['saturation_actors']:,} actors; what more actors change: docs/scaling.md",
    )


def progress(console: Console, line: str) -> None:
    console.print(line, style="dim", highlight=False)


def warn_of_busy(console: Console, reasons: Sequence[str]) -> None:
    if reasons:
        why = "; ".join(reasons)
        advice = "the figures are too low: measure again when it is idle, or for longer"
        print_line(console, f"busy machine: {why}; {advice}")


def print_rows(console: Console, columns: Mapping[str, str], rows: Sequence[dict[str, Any]]) -> None:
    """Print a table of numbers. A column has a heading, and the format of its cells, with names of a row's values."""
    cells = [{heading: cell.format(**row) for heading, cell in columns.items()} for row in rows]
    console.print(plain_table(cells, console.width, left=()), highlight=False)
