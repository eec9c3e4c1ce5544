"""`tributary bench throughput`: agent steps per second with learning, beside what the cores could do at most."""

import signal
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from actors.environments import environment_spec
from launch.commands.interrupts import Interrupts
from launch.commands.training_process import training_process
from launch.machine.budget import thread_budget
from launch.machine.tensorflow_process import prepare_tensorflow
from launch.output.exit_codes import EXIT_DONE
from launch.output.hardware import usable_cores
from launch.output.json_file import check_json_file, write_json
from launch.output.provenance import provenance
from launch.presets import PRESETS
from launch.results.curves import read_rows
from launch.run.folder import RunFolder
from shared.config import EnvironmentConfig, RunConfig, TransferConfig
from shared.errors import ConfigurationError, setting_error
from shared.types import StageSeconds

# Seconds after the actors' first reports that are not counted: first traces, first updates.
WARM_UP_SECONDS = 4.0
_POLL_SECONDS = 0.5
_PRESET = "pong"


@dataclass(frozen=True)
class ThroughputArguments:
    """Measure agent steps per second with learning, and hold them against what environment, acting and gradient cost
    alone. About a minute."""

    environment: EnvironmentConfig = field(default_factory=lambda: PRESETS[_PRESET].config.environment)
    network: Literal["a3c_cnn", "nature_cnn"] = "a3c_cnn"
    """Network."""
    actors: int | Literal["auto"] = "auto"
    """Actor processes. auto: one per core, less one where there are four or more."""
    envs: int = 32
    """Environments of each actor."""
    unroll: int = 20
    """Steps of each environment between two gradients."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the layers."""
    calls_in_flight: int = PRESETS[_PRESET].config.actor.calls_in_flight
    """Rollouts asked of one actor at a time."""
    transfer: TransferConfig = field(default_factory=TransferConfig)
    seconds: float = 15.0
    """Seconds that the whole system is measured for."""
    json: Path | None = None
    """File to write the figures to."""


def throughput(arguments: ThroughputArguments) -> int:
    """Run `tributary bench throughput`. Returns the exit code.

    Raises:
        ConfigurationError: a mistake in the settings.
    """
    check_json_file(arguments.json)
    if not arguments.seconds > 0:
        raise setting_error("seconds", arguments.seconds, "must be greater than 0")
    config = _config(arguments)
    spec = environment_spec(config.environment)
    if not spec.images:
        raise setting_error("environment.id", config.environment.id, "the bench is for Atari; name an ALE game")
    budget = thread_budget(config)
    console = Console()
    console.print(f"environment, acting and gradient alone, one thread, {arguments.envs} environments …", style="dim")
    prepare_tensorflow(1, gpu=False)
    from launch.bench.components import ComponentsBench

    bench = ComponentsBench(config, spec)
    components = bench.measure()
    console.print(f"the whole system, {budget.describe()} …", style="dim", highlight=False)
    measured = steady_state(train_for(config, arguments.seconds), arguments.seconds)
    console.print("environment, acting and gradient alone, once more …", style="dim")
    components += bench.measure()
    # Actors that are fewer than the cores leave the others to the learner.
    cores = min(usable_cores(), budget.actors)
    bound = components.bound(cores)
    rate = measured["agent_steps_per_second"]
    result = {
        "agent_steps_per_second": rate,
        "frames_per_second": rate * config.frames_per_agent_step,
        "bound_agent_steps_per_second": bound,
        "fraction_of_bound": rate / bound,
        **{f"{name}_seconds_per_step": components.median(name) for name in components._fields},
        **measured,
        "components_least_and_most_seconds_per_step": {
            name: (min(part), max(part)) for name, part in components._asdict().items()
        },
        "bound_cores": cores,
        **provenance(),
        "settings": {
            "environment": config.environment.id,
            "network": arguments.network,
            "actors": budget.actors,
            "environments_per_actor": arguments.envs,
            "unroll_length": arguments.unroll,
            "precision": arguments.precision,
            "calls_in_flight": arguments.calls_in_flight,
            "transfer": asdict(arguments.transfer),
        },
    }
    _show(console, result)
    if arguments.json is not None:
        write_json(arguments.json, result)
    return EXIT_DONE


def _config(arguments: ThroughputArguments) -> RunConfig:
    config = endless_config(
        arguments.network, arguments.precision, arguments.envs, arguments.unroll, arguments.calls_in_flight
    )
    return replace(config, actors=arguments.actors, environment=arguments.environment, transfer=arguments.transfer)


def endless_config(
    network: Literal["a3c_cnn", "nature_cnn"],
    precision: Literal["float32", "bfloat16"],
    environments: int,
    unroll_length: int,
    calls_in_flight: int,
) -> RunConfig:
    """The settings of a run that is measured until it is stopped: those of the preset, and these of its actors."""
    preset = PRESETS[_PRESET].config
    actor = replace(
        preset.actor, environments=environments, unroll_length=unroll_length, calls_in_flight=calls_in_flight
    )
    return replace(
        preset,
        total_frames=10**12,
        stop_at_return=None,
        log_every_seconds=1.0,
        network=replace(preset.network, name=network, precision=precision),
        actor=actor,
    )


def train_for(config: RunConfig, seconds: float) -> list[dict[str, Any]]:
    """Train in processes of their own, as `tributary train` does, until `seconds` after the warm-up; the run's rows.

    Raises:
        ConfigurationError: the run ended before.
    """
    with tempfile.TemporaryDirectory(prefix="tributary-bench-") as parent:
        run = RunFolder(Path(parent) / "run")
        with (Path(parent) / "output").open("w+") as output:
            # A closed terminal interrupts the bench, which ends the process that trains: it is in no terminal's group.
            with Interrupts(), training_process(config, run.path, "bench", output) as training:
                while training.poll() is None and not _covers(_working_rows(run), seconds):
                    time.sleep(_POLL_SECONDS)
                if training.poll() is None:
                    training.send_signal(signal.SIGINT)
            output.seek(0)
            lines = output.read().strip().splitlines()
        rows = _working_rows(run)
        if not _covers(rows, seconds):
            raise ConfigurationError(f"the system could not be measured: {lines[-1] if lines else 'training failed'}")
    return rows


def _working_rows(run: RunFolder) -> list[dict[str, Any]]:
    """The rows since the actors' first report."""
    try:
        return [row for row in read_rows(run) if row["agent_steps"] > 0]
    except ConfigurationError:
        return []


def _covers(rows: list[dict[str, Any]], seconds: float) -> bool:
    return bool(rows) and rows[-1]["elapsed_seconds"] >= rows[0]["elapsed_seconds"] + WARM_UP_SECONDS + seconds + 1.0


def steady_state(rows: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Rates and costs between the warm-up and `seconds` later, from a run's rows of metrics.

    Raises:
        ConfigurationError: the rows cover too little time.
    """
    working = [row for row in rows if row["agent_steps"] > 0]
    begin = working[0]["elapsed_seconds"] + WARM_UP_SECONDS if working else 0.0
    counted = [row for row in working if begin <= row["elapsed_seconds"] <= begin + seconds + 1.0]
    if len(counted) < 2:
        raise setting_error("seconds", seconds, "is too short for the actors to start and be measured")
    first, last = counted[0], counted[-1]
    elapsed = last["elapsed_seconds"] - first["elapsed_seconds"]
    updates = last["updates"] - first["updates"]
    rows = counted[1:]
    weights = [row["agent_steps_per_second"] for row in rows]
    stages = {
        stage: float(np.average([row["stage_microseconds"][stage] for row in rows], weights=weights)) * 1e-6
        for stage in rows[0]["stage_microseconds"]
    }
    return {
        "agent_steps_per_second": (last["agent_steps"] - first["agent_steps"]) / elapsed,
        "updates_per_second": updates / elapsed,
        "learner_seconds_per_update": float(np.mean([row["learner_milliseconds"] for row in rows])) * 1e-3,
        "policy_lag_mean": float(np.mean([row["policy_lag_mean"] for row in rows])),
        "policy_lag_max": max(row["policy_lag_max"] for row in rows),
        "stage_seconds_per_step": stages,
        "measured_seconds": elapsed,
    }


def _show(console: Console, result: dict[str, Any]) -> None:
    stages, settings = result["stage_seconds_per_step"], result["settings"]
    title = (
        f"{settings['environment']}, {settings['network']}, {settings['precision']}: {settings['actors']} actors x "
        f"{settings['environments_per_actor']} environments, unroll {settings['unroll_length']}"
    )
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in ("µs per agent step and core", "alone", "in the system"):
        table.add_column(heading, justify="left" if heading.startswith("µs") else "right")
    for stage in StageSeconds._fields:
        # An actor synchronises and waits in the system only.
        alone = result.get(f"{stage}_seconds_per_step")
        table.add_row(stage, "" if alone is None else f"{1e6 * alone:.1f}", f"{1e6 * stages[stage]:.1f}")
    console.print(table, highlight=False)
    lines = (
        f"agent steps/s      {result['agent_steps_per_second']:,.0f}   (frames/s {result['frames_per_second']:,.0f})",
        f"bound              {result['bound_agent_steps_per_second']:,.0f}   on {result['bound_cores']} cores",
        f"fraction of bound  {result['fraction_of_bound']:.3f}",
        f"learner            {1e3 * result['learner_seconds_per_update']:.2f} ms per gradient, "
        f"{result['updates_per_second']:.1f} updates/s",
        f"policy lag         mean {result['policy_lag_mean']:.2f}, max {result['policy_lag_max']}",
    )
    for line in lines:
        console.print(line, highlight=False)
