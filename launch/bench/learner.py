"""`tributary bench learner`: the ceiling of one central learner, known before a cluster is rented."""

import os
import time
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from actors.environments import EnvironmentSpec, environment_spec
from launch.bench.slice_costs import of_each_slice, show_slice_costs, slice_costs
from launch.machine.budget import thread_budget
from launch.output import EXIT_DONE, check_json_file, provenance, write_json
from launch.presets import PRESETS
from shared.config import LearnerConfig, RunConfig, TransferConfig
from shared.errors import setting_error
from shared.wire import encode

# Until every page of the object store has been used once.
_WARM_UP_SUMS = 100


@dataclass(frozen=True)
class LearnerArguments:
    """Send ready-made gradients through Ray as fast as one learner takes them, from 1, 2, 4 … actors that do nothing
    else."""

    actors: int | Literal["auto"] = "auto"
    """The most senders. auto: one per core, less one where there are four or more."""
    gradients_per_update: int = 1
    """Gradients that are accumulated before they are applied."""
    staleness: Literal["none", "inverse", "gap", "delay_compensated"] = "none"
    """What becomes of old gradients: see --learner.staleness of tributary train."""
    shards: tuple[int, ...] = (1,)
    """Slices that the weights are updated in: see --learner.shards of tributary train. Several numbers are measured one
    after the other."""
    gradients_per_message: int = 1
    """Gradients of one message: 2 or more as where they are added on their way, through Ray's objects. It divides
    --gradients-per-update."""
    network: Literal["a3c_cnn", "nature_cnn"] = "a3c_cnn"
    """Whose parameters are sent."""
    envs: int = 32
    """Environments per actor, to say what the ceiling means in agent steps."""
    unroll: int = 20
    """Unroll length, for the same."""
    calls_in_flight: int = 2
    """Gradients asked of one sender at a time."""
    transfer: TransferConfig = field(default_factory=TransferConfig)
    seconds: float = 5.0
    """Seconds for each number of senders."""
    json: Path | None = None
    """File to write the figures to."""


def bench_learner(arguments: LearnerArguments) -> int:
    """Run `tributary bench learner`. Returns the exit code.

    Raises:
        ConfigurationError: a mistake in the settings.
    """
    check_json_file(arguments.json)
    if not arguments.seconds > 0:
        raise setting_error("seconds", arguments.seconds, "must be greater than 0")
    if not arguments.shards:
        raise setting_error("shards", "", "must be one number or several")
    console = Console()
    results = {}
    for shards in arguments.shards:
        results[shards] = measure_learner(arguments, console, shards)
        _show(console, results[shards], arguments, shards)
    (result, *others) = results.values()
    if others:
        result = {"shards": {str(shards): found for shards, found in results.items()}} | slice_costs(results)
        show_slice_costs(console, result)
    result |= provenance()
    if arguments.json is not None:
        write_json(arguments.json, result)
    return EXIT_DONE


def measure_learner(arguments: LearnerArguments, console: Console | None = None, shards: int = 1) -> dict[str, Any]:
    """The figures of `tributary bench learner` for so many slices, with its progress on `console`.

    Raises:
        ConfigurationError: there is no room for the senders.
    """
    each = arguments.gradients_per_message
    if each < 1 or arguments.gradients_per_update % each:
        raise setting_error(
            "gradients_per_message", each, f"must divide --gradients-per-update {arguments.gradients_per_update}"
        )
    if each > 1 and arguments.staleness != "none":
        raise setting_error("staleness", arguments.staleness, "weighs each gradient, and none of a message of several")
    if each > 1 and shards > 1:
        raise setting_error("gradients_per_message", each, "slices take gradients one by one; leave --shards out")
    config = learner_config(arguments, shards)
    spec = environment_spec(config.environment)
    budget = thread_budget(config)
    import ray

    from launch.bench.synthetic import senders
    from launch.on_ray.cluster import connect

    rows: dict[int, dict[str, Any]] = {}
    try:
        connect(config, budget.actors)
        process = start_learner(config, spec, budget.learner_threads)
        for count in sender_counts(budget.actors):
            if console is not None:
                console.print(f"{count} sender{'s' * (count > 1)} …", style="dim", highlight=False)
            sent = partial(senders, config, spec, count, each)
            rows[count] = ray.get(process.run.remote(sent, arguments.seconds, os.getpid()))
    finally:
        ray.shutdown()
    agent_steps = arguments.envs * arguments.unroll
    return summarise(rows, agent_steps) | {
        "agent_steps_per_gradient": agent_steps,
        "gradients_per_update": arguments.gradients_per_update,
        "staleness": arguments.staleness,
        "network": arguments.network,
        "transfer": asdict(arguments.transfer),
    }


def measure_head(arguments: LearnerArguments, node_gradients: int, parameters: int) -> float:
    """CPU seconds per gradient of a process that adds sums of nodes up to K, which is `gradients_per_update`.

    Raises:
        ConfigurationError: there is no room for the senders.
    """
    config = learner_config(arguments)
    spec = environment_spec(config.environment)
    budget = thread_budget(config)
    import ray

    from launch.bench.synthetic import SyntheticHead
    from launch.on_ray.actor_process import Weights
    from launch.on_ray.cluster import connect
    from launch.on_ray.members import PROCESS_OPTIONS

    sums, cpu, started = 0, 0.0, 0.0
    try:
        connect(config, budget.actors)
        head = ray.remote(num_cpus=0, **PROCESS_OPTIONS)(SyntheticHead).remote(config, spec, node_gradients)
        while not started or time.perf_counter() - started < arguments.seconds:
            if sums == _WARM_UP_SUMS:
                cpu, started = ray.get(head.cpu_seconds.remote()), time.perf_counter()
            # Each sum makes an update, whose weights come with the next call.
            weights = encode(np.zeros(parameters, np.float32), arguments.transfer.precision)
            ray.get(head.collect.remote(ray.put(Weights(sums, weights, 0)), None))
            sums += 1
        cpu = ray.get(head.cpu_seconds.remote()) - cpu
    finally:
        ray.shutdown()
    return cpu / ((sums - _WARM_UP_SUMS) * arguments.gradients_per_update)


def start_learner(config: RunConfig, spec: EnvironmentSpec, threads: int, **where: Any) -> Any:
    """Start the learner's process, on CPUs."""
    import ray

    from launch.bench.synthetic import BenchLearnerProcess
    from launch.on_ray.members import PROCESS_OPTIONS

    return ray.remote(num_cpus=0, **PROCESS_OPTIONS, **where)(BenchLearnerProcess).remote(config, spec, threads)


def sender_counts(most: int) -> list[int]:
    """1, 2, 4 … and the most."""
    counts = [1]
    while counts[-1] * 2 < most:
        counts.append(counts[-1] * 2)
    return counts if most == 1 else [*counts, most]


def summarise(rows: dict[int, dict[str, Any]], agent_steps: int) -> dict[str, Any]:
    """The best rate that was seen, the ceiling that the learner's CPU seconds imply, and both in agent steps."""
    best = max(rows.values(), key=lambda row: row["gradients_per_second"])
    # Of a learner with a core of its own. On shared cores the senders are in its way.
    ceiling = 1.0 / min(row["cpu_seconds_per_gradient"] for row in rows.values())
    return {
        "senders": {str(count): row for count, row in rows.items()},
        "gradients_per_second": best["gradients_per_second"],
        "bytes_per_second": best["bytes_per_second"],
        "cpu_seconds_per_gradient": best["cpu_seconds_per_gradient"],
        "ceiling_gradients_per_second": ceiling,
        "ceiling_agent_steps_per_second": ceiling * agent_steps,
    }


def learner_config(arguments: LearnerArguments, shards: int = 1) -> RunConfig:
    """The run whose learner is measured."""
    preset = PRESETS["pong"].config
    return replace(
        preset,
        actors=arguments.actors,
        stop_at_return=None,
        network=replace(preset.network, name=arguments.network, centre_observations=False),
        learner=LearnerConfig(
            gradients_per_update=arguments.gradients_per_update, staleness=arguments.staleness, shards=shards
        ),
        actor=replace(
            preset.actor,
            environments=arguments.envs,
            unroll_length=arguments.unroll,
            # The agent steps of a rollout are those of a gradient.
            epochs=1,
            minibatches=1,
            calls_in_flight=arguments.calls_in_flight,
        ),
        transfer=arguments.transfer,
        # Nobody plays.
        evaluation=replace(preset.evaluation, every_frames=0),
    )


def _show(console: Console, result: dict[str, Any], arguments: LearnerArguments, shards: int) -> None:
    parameters = next(iter(result["senders"].values()))["parameters"]
    slices = f" in {shards} slices" if shards > 1 else ""
    title = f"one learner{slices}, {parameters:,} parameters, {arguments.gradients_per_update} gradients per update"
    if arguments.staleness != "none":
        title += f", staleness {arguments.staleness}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    headings = ["senders", "gradients/s", "MB/s", "learner CPU per gradient", "learner busy"]
    for heading in [*headings, "CPU of each slice"] if shards > 1 else headings:
        table.add_column(heading, justify="right")
    for count, row in result["senders"].items():
        cells = [
            count,
            f"{row['gradients_per_second']:.0f}",
            f"{row['bytes_per_second'] / 1e6:.0f}",
            f"{1e3 * row['cpu_seconds_per_gradient']:.2f} ms",
            f"{row['busy_fraction']:.0%}",
        ]
        if shards > 1:
            each = of_each_slice(row, shards)
            cells.append("?" if each is None else f"{1e3 * each:.2f} ms")
        table.add_row(*cells)
    console.print(table, highlight=False)
    console.print(
        f"with a core of its own the learner takes about {result['ceiling_gradients_per_second']:.0f} gradients/s: at "
        f"{arguments.envs} environments x unroll {arguments.unroll}, {result['ceiling_agent_steps_per_second']:,.0f} "
        f"agent steps/s from all actors together",
        highlight=False,
    )
