"""`tributary bench throughput`: agent steps per second with learning, beside what the cores could do at most."""

import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from actors.environments import EnvironmentSpec, environment_spec
from launch.bench.components import Components, measure_components
from launch.commands.arguments import parse
from launch.commands.checks import check_network
from launch.commands.interrupts import Interrupts
from launch.commands.preset_line import asks_for_help, help_page, spelt_out, take_preset, unnamed_preset, with_full_help
from launch.commands.training_process import training_process
from launch.machine.budget import thread_budget
from launch.output import EXIT_DONE, check_json_file, provenance, usable_cores, write_json
from launch.presets import PRESETS
from launch.results.curves import read_rows
from launch.run.folder import RunFolder
from shared.config import RunConfig, flat_settings
from shared.errors import ConfigurationError, setting_error
from shared.types import StageSeconds

# Seconds after the actors' first reports that are not counted: first traces, first updates.
WARM_UP_SECONDS = 4.0
_POLL_SECONDS = 0.5
_PLAIN_NETWORKS = ("a3c_cnn", "nature_cnn", "impala_resnet")
# How far policies have moved from those that acted, in rows of runs that differentiate rollouts again.
DRIFT = ("ratio_deviation", "clipped_share", "approximate_kl")


@dataclass(frozen=True)
class ThroughputArguments:
    """Measure agent steps per second with learning, and hold them against what environment, acting and gradient cost
    alone and on busy cores. About a minute and a half. What would end a run is not looked at."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    seconds: float = 15.0
    """Seconds that the whole system is measured for."""
    json: Path | None = None
    """File to write the figures to."""


def throughput_line(arguments: Sequence[str]) -> int:
    """Run `tributary bench throughput [PRESET] [SETTINGS]`. Returns the exit code.

    Raises:
        ConfigurationError: it names no preset, or settings that cannot be.
    """
    rest = spelt_out(arguments)
    preset = take_preset(rest) or unnamed_preset(rest)
    base = ThroughputArguments(PRESETS[preset].config)
    if asks_for_help(rest):
        purpose = " ".join(str(ThroughputArguments.__doc__).split())
        print(help_page("bench throughput [PRESET]", purpose, preset, base.config, ThroughputArguments), end="")
        return EXIT_DONE
    return throughput(parse(ThroughputArguments, "bench throughput [PRESET]", with_full_help(rest), base), preset)


def throughput(arguments: ThroughputArguments, preset: str) -> int:
    """Measure, show and write. Returns the exit code.

    Raises:
        ConfigurationError: a mistake in the settings.
    """
    check_json_file(arguments.json)
    if not arguments.seconds > 0:
        raise setting_error("seconds", arguments.seconds, "must be greater than 0")
    config = endless(arguments.config)
    spec = environment_spec(config.environment)
    if not spec.has_lives:
        raise setting_error("environment.id", config.environment.id, "the bench is for Atari; name an ALE game")
    check_network(config, spec)
    if config.network.name not in _PLAIN_NETWORKS:
        raise setting_error(
            "network.name",
            config.network.name,
            f"has no plain form to be held against; use {', '.join(_PLAIN_NETWORKS)}",
        )
    budget = thread_budget(config)
    # Actors that are fewer than the cores leave the others to the learner.
    cores = min(usable_cores(), budget.actors)
    console = Console()
    alone, loaded = _components(config, spec, cores, console, "")
    console.print(f"the whole system, {budget.describe()} …", style="dim", highlight=False)
    measured = steady_state(train_for(config, arguments.seconds), arguments.seconds)
    # Before and after the system: it has seen the same slow and fast minutes of a shared machine.
    once_more = _components(config, spec, cores, console, ", once more")
    alone, loaded = alone + once_more[0], loaded + once_more[1]
    rate = measured["agent_steps_per_second"]
    result = {
        "agent_steps_per_second": rate,
        "frames_per_second": rate * config.frames_per_agent_step,
        "bound_cores": cores,
        "bound_agent_steps_per_second": alone.bound(cores),
        "fraction_of_bound": rate / alone.bound(cores),
        "bound_under_load_agent_steps_per_second": loaded.bound(cores),
        "fraction_of_bound_under_load": rate / loaded.bound(cores),
        "alone": _as_json(alone),
        "under_load": _as_json(loaded),
        **measured,
        **provenance(),
        "preset": preset,
        "settings": flat_settings(config) | {"actors": budget.actors},
    }
    _show(console, result)
    if arguments.json is not None:
        write_json(arguments.json, result)
    return EXIT_DONE


def _components(
    config: RunConfig, spec: EnvironmentSpec, cores: int, console: Console, when: str
) -> tuple[Components, Components]:
    """Measured in one process alone, and on so many cores at once."""
    console.print(
        f"environment, acting and gradient, one thread each, alone and {cores} at once{when} …",
        style="dim",
        highlight=False,
    )
    measured = measure_components(config, spec, (1, cores))
    return measured[1], measured[cores]


def _as_json(components: Components) -> dict[str, Any]:
    return {
        "seconds_per_step": components.medians(),
        "least_and_most_seconds_per_step": {
            name: (min(part), max(part)) for name, part in components._asdict().items()
        },
    }


def endless(config: RunConfig) -> RunConfig:
    """The settings of a run that is measured until it is stopped."""
    return replace(config, total_frames=10**12, stop_at_return=None, stop_after_seconds=None, log_every_seconds=1.0)


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

    `drift` is how far policies were from those that acted, where rollouts are differentiated again.

    Raises:
        ConfigurationError: the rows cover too little time.
    """
    working = [row for row in rows if row["agent_steps"] > 0]
    begin = working[0]["elapsed_seconds"] + WARM_UP_SECONDS if working else 0.0
    counted = [row for row in working if begin <= row["elapsed_seconds"] <= begin + seconds + 1.0]
    # A row of an interval in which no gradient came has no rates and no statistics.
    rows = [row for row in counted[1:] if sum(row["policy_lag_counts"].values())]
    if not any(row["agent_steps_per_second"] for row in rows):
        raise setting_error("seconds", seconds, "is too short for the actors to start and be measured")
    first, last = counted[0], counted[-1]
    elapsed = last["elapsed_seconds"] - first["elapsed_seconds"]
    updates = last["updates"] - first["updates"]
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
        "drift": {name: float(np.mean([row[name] for row in rows])) for name in DRIFT if name in rows[0]},
        "measured_seconds": elapsed,
    }


def drift_lines(drift: dict[str, float]) -> list[str]:
    """One line for the screen; none where the weights that act are those that differentiate."""
    if not drift:
        return []
    return [
        f"policy drift       mean |ratio - 1| {drift['ratio_deviation']:.3f}, clipped {drift['clipped_share']:.1%}, "
        f"KL about {drift['approximate_kl']:.4f} nats"
    ]


def _network(settings: dict[str, Any]) -> str:
    if settings["network.recurrent"] == "none":
        return settings["network.name"]
    return f"{settings['network.name']} + {settings['network.recurrent']} {settings['network.recurrent_units']}"


def _show(console: Console, result: dict[str, Any]) -> None:
    stages, settings = result["stage_seconds_per_step"], result["settings"]
    title = (
        f"{settings['environment.id']}, {_network(settings)}, {settings['network.precision']}: "
        f"{settings['actors']} actors x {settings['actor.environments']} environments, unroll "
        f"{settings['actor.unroll_length']}"
    )
    if settings["actor.epochs"] * settings["actor.minibatches"] > 1:
        title += f", {settings['actor.epochs']} epochs x {settings['actor.minibatches']} minibatches"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in ("µs per agent step and core", "alone", "all cores at once", "in the system"):
        table.add_column(heading, justify="left" if heading.startswith("µs") else "right")
    for stage in StageSeconds._fields:
        # An actor synchronises and waits in the system only.
        plain = (result[how]["seconds_per_step"].get(stage) for how in ("alone", "under_load"))
        cells = ("" if seconds is None else f"{1e6 * seconds:.1f}" for seconds in plain)
        table.add_row(stage, *cells, f"{1e6 * stages[stage]:.1f}")
    console.print(table, highlight=False)
    lines = (
        f"agent steps/s      {result['agent_steps_per_second']:,.0f}   (frames/s {result['frames_per_second']:,.0f})",
        f"bound              {result['bound_agent_steps_per_second']:,.0f}   on {result['bound_cores']} cores",
        f"fraction of bound  {result['fraction_of_bound']:.3f}",
        f"bound under load   {result['bound_under_load_agent_steps_per_second']:,.0f}",
        f"fraction of that   {result['fraction_of_bound_under_load']:.3f}",
        f"learner            {1e3 * result['learner_seconds_per_update']:.2f} ms per gradient, "
        f"{result['updates_per_second']:.1f} updates/s",
        f"policy lag         mean {result['policy_lag_mean']:.2f}, max {result['policy_lag_max']}",
        *drift_lines(result["drift"]),
    )
    for line in lines:
        console.print(line, highlight=False)
