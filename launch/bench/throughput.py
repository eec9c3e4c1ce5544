"""`tributary bench throughput`: agent steps per second with learning, and the time of each stage."""

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.console import Console

from actors.environments import environment_spec
from launch.driver import train_in_process
from launch.files import write_json
from launch.machine import busy, load_average, thread_budget, usable_gpus
from launch.output import plain_table, print_line
from launch.provenance import provenance
from launch.results.curves import lag_counts
from launch.run.events import Event, Row
from launch.run.metrics import lag_summary
from launch.settings.check import check_network, on_device
from launch.settings.resolve import PresetArguments, divided_among, resolve_request, rollouts_line
from shared.config import RunConfig, flat_settings
from shared.config.checks import Range
from shared.errors import ConfigurationError, TrainingFailedError, setting_error

# Excluded after the actors' first reports: first traces, first updates.
WARM_UP_SECONDS = 4.0
# On an idle virtual machine that others share, medians of repeats differ by a fifth at most.
STEADY_RATIO = 1.25
# Loads of a rehearsal, in cores, by the seconds so far that its rows have.
_LOADS = {
    "learner_cores": "learner_cpu_seconds",
    "learner_delay": "learner_delay_seconds",
    "machine_cores": "machine_cpu_seconds",
}


@dataclass(frozen=True)
class ThroughputArguments(PresetArguments):
    """Measure agent steps per second with learning, and the time of each stage. About a minute, in which nothing else
    should run. Limits that would end a run are ignored."""

    seconds: Annotated[float, Range(above=0.0)] = 15.0
    """Duration of the measurement, after its warm-up."""
    json: Path | None = None
    """Output file of the figures."""


def throughput(arguments: ThroughputArguments) -> None:
    run = resolve_request(arguments.request())
    spec = environment_spec(run.config.environment)
    base, device = on_device(endless(run.config), spec, usable_gpus())
    budget = thread_budget(base)
    config = divided_among(base, budget.actors)
    check_network(config, spec)
    console, load = Console(), busy(load_average())
    if device is not None:
        print_line(console, device)
    progress(console, f"{budget.describe(config.executor)} …")
    print_line(console, rollouts_line(config, budget.actors))
    measured = steady_state(config, train_for(config, arguments.seconds), arguments.seconds)
    result = {
        **measured,
        "agent_steps_per_gradient": agent_steps_per_gradient(config),
        "busy": busy_reasons(load, {"the system": measured["agent_steps_per_second_by_halves"]}),
        **provenance(),
        "preset": run.preset,
        "settings": flat_settings(config) | {"actors": budget.actors},
    }
    _show(console, result)
    write_json(arguments.json, result)


def busy_reasons(load: str | None, repeats: Mapping[str, Sequence[float]]) -> list[str]:
    """Signs of a busy machine in figures: its load, and repeats that differ more than on an idle machine."""
    # A process that is frozen for seconds makes no agent step.
    ratios = {name: max(values) / max(min(values), 1e-9) for name, values in repeats.items() if len(values) > 1}
    reasons = [load] if load is not None else []
    return reasons + [
        f"repeated measurements of {name} differ by a factor of {ratio:.2f}"
        for name, ratio in ratios.items()
        if ratio > STEADY_RATIO
    ]


def agent_steps_per_gradient(config: RunConfig) -> float:
    """Mean number of new agent steps of a gradient. A rollout gives E x M gradients."""
    actor = config.actor
    return actor.environments * actor.unroll_length / actor.gradients_per_rollout


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

    with tempfile.TemporaryDirectory(prefix="tributary-bench-") as parent:
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
    machine were busy on, and the share of the time in which the loop had to wait for a core.
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
        **{load: rate(seconds, first, last) for load, seconds in _LOADS.items() if seconds in last},
    }


def _show(console: Console, result: dict[str, Any]) -> None:
    unit = "µs per agent step and actor"
    stages = [{unit: stage, "": f"{1e6 * seconds:.1f}"} for stage, seconds in result["stage_seconds_per_step"].items()]
    console.print(plain_table(stages, console.width, left=(unit,)), highlight=False)
    for line in (
        f"agent steps/s  {result['agent_steps_per_second']:,.0f}   (frames/s {result['frames_per_second']:,.0f})",
        f"learner        {1e3 * result['learner_seconds_per_update']:.2f} ms per gradient, "
        f"{result['updates_per_second']:.1f} updates/s",
        f"policy lag     mean {result['policy_lag_mean']:.2f}, max {result['policy_lag_max']}",
    ):
        print_line(console, line)
    warn_of_busy(console, result["busy"])
    print_line(console, "to measure more actors than this machine has cores for: tributary bench scaling --rehearse")


def progress(console: Console, line: str) -> None:
    console.print(line, style="dim", highlight=False)


def warn_of_busy(console: Console, reasons: Sequence[str]) -> None:
    if reasons:
        why = "; ".join(reasons)
        advice = "the figures are too low: measure again when it is idle, or for longer"
        print_line(console, f"busy machine: {why}; {advice}")
