"""`tributary bench learner`: how many gradients per second one learner takes in, from actors that do nothing but send.

The senders need neither TensorFlow nor an environment. Everything from their message to the applied update is that of
a training run: processes, transport, aggregation, admission, accumulation, optimizer.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from actors.environments import EnvironmentSpec, environment_spec
from launch.machine import prepare_tensorflow, thread_budget
from launch.on_ray.actor_process import ActorProcess
from launch.output import EXIT_DONE, check_json_file, provenance, write_json
from launch.presets import PRESETS
from shared.config import LearnerConfig, RunConfig
from shared.errors import setting_error
from shared.layout import ParameterLayout
from shared.types import EpisodeStats, GradientReport, StageSeconds, WeightSnapshot

# By then every page of the object store and of shared memory has been used once.
_WARM_UP_GRADIENTS = 400
# An actor-critic reports about as many statistics with each gradient.
_STATISTICS = {f"statistic {number}": 0.5 for number in range(8)}

Network = Literal["a3c_cnn", "nature_cnn"]


@dataclass(frozen=True)
class LearnerArguments:
    """Measure the rate at which one learner takes in gradients: 1, 2, 4 … actors send a constant gradient as fast as
    the learner accepts it."""

    actors: int | Literal["auto"] = "auto"
    """Largest number of senders. auto: one per core, less one from four cores on."""
    gradients_per_update: int = 1
    """K, the gradients accumulated per update."""
    aggregation: Literal["none", "node"] = "none"
    """node: the K gradients are added in a process of their node, and the sum is sent through Ray's object store."""
    network: Network = "a3c_cnn"
    """Network whose parameters are sent."""
    envs: int = 32
    """Environments per actor; converts gradients to agent steps."""
    unroll: int = 20
    """Unroll length; converts gradients to agent steps."""
    calls_in_flight: int = 2
    """Outstanding gradients per sender."""
    seconds: float = 5.0
    """Duration of the measurement for each number of senders."""
    json: Path | None = None
    """Output file of the figures."""


def bench_learner(arguments: LearnerArguments) -> int:
    """Run `tributary bench learner` and return its exit code.

    Raises:
        ConfigurationError: an argument is invalid.
    """
    check_json_file(arguments.json)
    if not arguments.seconds > 0:
        raise setting_error("seconds", arguments.seconds, "must be greater than 0")
    console = Console()
    result = measure_learner(arguments, console)
    _show(console, result, arguments)
    if arguments.json is not None:
        write_json(arguments.json, result | provenance())
    return EXIT_DONE


def measure_learner(
    arguments: LearnerArguments, console: Console | None = None, *, shared_memory: bool = True
) -> dict[str, Any]:
    """The figures of `tributary bench learner`; `console` shows the progress.

    Without `shared_memory` gradients travel through Ray's object store, as between machines.

    Raises:
        ConfigurationError: the senders do not fit into the memory of this machine.
    """
    config = learner_config(arguments)
    spec = environment_spec(config.environment)
    budget = thread_budget(config)
    import ray

    from launch.on_ray.cluster import connect
    from launch.on_ray.executor import PROCESS_OPTIONS

    rows: dict[int, dict[str, Any]] = {}
    try:
        connect(config, budget.actors)
        learner = ray.remote(num_cpus=0, **PROCESS_OPTIONS)(LearnerBenchProcess).remote(
            config, spec, budget.learner_threads
        )
        for count in sender_counts(budget.actors):
            if console is not None:
                console.print(f"{count} sender{'s' * (count > 1)} …", style="dim", highlight=False)
            rows[count] = ray.get(learner.measure.remote(count, arguments.seconds, shared_memory))
    finally:
        ray.shutdown()
    agent_steps = arguments.envs * arguments.unroll
    return summarise(rows, agent_steps) | {
        "agent_steps_per_gradient": agent_steps,
        "gradients_per_update": arguments.gradients_per_update,
        "aggregation": arguments.aggregation,
        "network": arguments.network,
    }


def sender_counts(most: int) -> list[int]:
    """1, 2, 4 … and `most`."""
    counts = [1]
    while counts[-1] * 2 < most:
        counts.append(counts[-1] * 2)
    return counts if most == 1 else [*counts, most]


def summarise(rows: dict[int, dict[str, Any]], agent_steps: int) -> dict[str, Any]:
    """The highest measured rate, and the ceiling of a learner with a core of its own, in gradients and agent steps.

    The ceiling is the inverse of the CPU time per gradient: on shared cores the senders take time from the learner,
    so that its measured rate is lower.
    """
    best = max(rows.values(), key=lambda row: row["gradients_per_second"])
    ceiling = 1.0 / min(row["cpu_seconds_per_gradient"] for row in rows.values())
    return {
        "senders": {str(count): row for count, row in rows.items()},
        "gradients_per_second": best["gradients_per_second"],
        "bytes_per_second": best["bytes_per_second"],
        "cpu_seconds_per_gradient": best["cpu_seconds_per_gradient"],
        "ceiling_gradients_per_second": ceiling,
        "ceiling_agent_steps_per_second": ceiling * agent_steps,
    }


def learner_config(arguments: LearnerArguments) -> RunConfig:
    """The settings of the measured learner and its senders."""
    preset = PRESETS["pong"].config
    return replace(
        preset,
        actors=arguments.actors,
        aggregation=arguments.aggregation,
        stop_at_return=None,
        network=replace(preset.network, name=arguments.network, centre_observations=False),
        learner=LearnerConfig(gradients_per_update=arguments.gradients_per_update),
        actor=replace(
            preset.actor,
            environments=arguments.envs,
            unroll_length=arguments.unroll,
            # Without reuse, one gradient stands for all agent steps of a rollout.
            epochs=1,
            minibatches=1,
            calls_in_flight=arguments.calls_in_flight,
        ),
        evaluation=replace(preset.evaluation, every_frames=0),
    )


def _layout(parameters: int) -> ParameterLayout:
    """A layout of one tensor: senders and learner need no network to agree on it."""
    return ParameterLayout(("parameters",), ((parameters,),))


class _ConstantActor:
    """Replaces `Actor` in a sender: `run` returns the same gradient at once."""

    def __init__(self, config: RunConfig, actor_id: int) -> None:
        self._agent_steps = config.actor.environments * config.actor.unroll_length
        self._id = actor_id
        self._report: GradientReport | None = None

    def run(self, snapshot: WeightSnapshot, target: WeightSnapshot | None) -> GradientReport:  # noqa: ARG002
        # An actor reads all weights; where they lie in shared memory, that is what their transport costs.
        snapshot.parameters.sum()
        report = self._report or self._first(snapshot.parameters.size)
        self._report = report._replace(sequence=report.sequence + 1, version=snapshot.version)
        return self._report

    def _first(self, parameters: int) -> GradientReport:
        return GradientReport(
            actor_id=self._id,
            sequence=0,
            version=0,
            layout_fingerprint=_layout(parameters).fingerprint,
            gradient=np.random.default_rng(self._id).normal(0.0, 1e-3, parameters).astype(np.float32),
            agent_steps=self._agent_steps,
            samples=self._agent_steps,
            episodes=EpisodeStats(np.empty(0, np.float64), np.empty(0, np.int64)),
            stage_seconds=StageSeconds(0.0, 0.0, 0.0, 0.0, 0.0),
            statistics=_STATISTICS,
        )


class SenderProcess(ActorProcess):
    """An actor's process without TensorFlow and environments."""

    def make_runner(self, config: RunConfig, spec: EnvironmentSpec, actor_id: int) -> _ConstantActor:  # noqa: ARG002
        return _ConstantActor(config, actor_id)


class LearnerBenchProcess:
    """A learner with the coordinator's loop over senders, in a Ray actor."""

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, threads: int) -> None:
        prepare_tensorflow(threads, gpu=False)
        from actors.policy import Policy

        self._config, self._spec = config, spec
        self._initial = Policy(config, spec).initial_parameters()

    def measure(self, senders: int, seconds: float, shared_memory: bool) -> dict[str, Any]:
        """Take in the gradients of new senders for `seconds` after a warm-up: rates, lag, and CPU of this process."""
        from launch.loop.coordinator import Coordinator
        from launch.on_ray.executor import RayExecutor
        from launch.on_ray.node_aggregator import NodesExecutor
        from learner.learner import Learner, Outcome

        config = self._config
        learner = Learner(config, _layout(self._initial.size), self._initial)
        executor: RayExecutor
        if config.aggregation == "node":
            executor = NodesExecutor(config, self._spec, senders, 0, None, SenderProcess)
        else:
            executor = RayExecutor(
                config, self._spec, senders, actor_process=SenderProcess, shared_memory=shared_memory
            )
        coordinator = Coordinator(
            learner, executor, calls_per_actor=config.actor.calls_in_flight, supervision=config.supervision
        )
        outcomes = (event for event in coordinator.run() if isinstance(event, Outcome))
        try:
            seen: set[int] = set()
            warm_up = 0
            while warm_up < _WARM_UP_GRADIENTS or len(seen) < executor.actors:
                seen.add(next(outcomes).report.actor_id)
                warm_up += 1
            wall, cpu = time.perf_counter(), time.process_time()
            updates, messages = learner.version, coordinator.messages
            lags: list[int] = []
            while not lags or time.perf_counter() - wall < seconds:
                lags.append(next(outcomes).policy_lag)
            elapsed, cpu = time.perf_counter() - wall, time.process_time() - cpu
        finally:
            executor.close()
        message_bytes = self._initial.nbytes
        return {
            "gradients_per_second": len(lags) / elapsed,
            "updates_per_second": (learner.version - updates) / elapsed,
            "bytes_per_second": (coordinator.messages - messages) * message_bytes / elapsed,
            "cpu_seconds_per_gradient": cpu / len(lags),
            "busy_fraction": cpu / elapsed,
            "policy_lag_mean": float(np.mean(lags)),
            "policy_lag_max": max(lags),
            "parameters": self._initial.size,
        }


def _show(console: Console, result: dict[str, Any], arguments: LearnerArguments) -> None:
    parameters = next(iter(result["senders"].values()))["parameters"]
    title = f"one learner, {parameters:,} parameters, {arguments.gradients_per_update} gradients per update"
    if arguments.aggregation == "node":
        title += ", added on their node"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in ("senders", "gradients/s", "MB/s", "learner CPU per gradient", "learner busy"):
        table.add_column(heading, justify="right")
    for count, row in result["senders"].items():
        table.add_row(
            count,
            f"{row['gradients_per_second']:.0f}",
            f"{row['bytes_per_second'] / 1e6:.0f}",
            f"{1e3 * row['cpu_seconds_per_gradient']:.2f} ms",
            f"{row['busy_fraction']:.0%}",
        )
    console.print(table, highlight=False)
    console.print(
        f"ceiling with a core of its own: {result['ceiling_gradients_per_second']:.0f} gradients/s, which is "
        f"{result['ceiling_agent_steps_per_second']:,.0f} agent steps/s at {arguments.envs} environments x unroll "
        f"{arguments.unroll}",
        highlight=False,
    )
