"""`tributary plan`: what N actors would give, from costs measured on this machine in about half a minute.

The model has four limits in gradients per second, with the seconds that one gradient takes at its actor and in the
learner's process. All are upper bounds: waiting in a queue is not modelled, and neither is the bandwidth of a network.

    actors   N / (actor + learner)            each actor waits for the weights after its own gradient
    cores    cores / (actor + learner)        more actors than cores do not add to it
    learner  1 / learner
    nodes    nodes / aggregator               where a process of each node adds its gradients
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from actors.environments import EnvironmentSpec, environment_spec
from launch.bench.bound import Meter, calls_within, measure_at_once, measuring_processes
from launch.bench.learner import measure_learner
from launch.bench.throughput import print_rows, print_stages, progress
from launch.checks import check_network
from launch.commands.presets import PresetArguments, parse_with_preset
from launch.machine import ACTOR_BYTES, automatic_actors, usable_cores
from launch.on_ray.placement import aggregation_of, gradients_together
from launch.output import EXIT_DONE, print_line, provenance, write_json
from launch.request import resolved, rollouts_line
from shared.config import RunConfig, flat_settings
from shared.errors import setting_error
from shared.types import GradientReport, Played, StageSeconds, WeightSnapshot

_MOST_ACTORS = 1024
_MEASURED_SECONDS = 2.0
_MILLIONS_OF_FRAMES = (40, 200)


@dataclass(frozen=True)
class PlanArguments(PresetArguments):
    """Predict throughput, policy lag and memory for more actors than this machine has cores, and the number of actors
    at which the learner is full. Measures for about half a minute; nothing else should run."""

    node_cores: int | None = None
    """Cores of one machine of the cluster to plan for. Default: those of this machine."""
    json: Path | None = None
    """Output file of the figures."""


class Costs(NamedTuple):
    """Measured costs: seconds per agent step of each stage of an actor, with one actor at work and with one on each
    core; CPU seconds per gradient of the learner and of an aggregator (see `measure_learner`); and the parameters of
    the network."""

    alone: dict[str, float]
    loaded: dict[str, float]
    learner: dict[str, float]
    parameters: int


def plan_line(arguments: Sequence[str]) -> int:
    """Run `tributary plan [PRESET] [SETTINGS]` and return its exit code."""
    parsed = parse_with_preset(PlanArguments, "plan", arguments)
    if parsed is None:
        return EXIT_DONE
    typed, preset = parsed
    node_cores = usable_cores() if typed.node_cores is None else typed.node_cores
    if node_cores < 1:
        raise setting_error("node_cores", node_cores, "must be at least 1")
    console, per_node = Console(), automatic_actors(node_cores)
    asked = typed.config.actor_range[1]
    # The whole curve is for the rollouts that a run divides among this number of actors.
    sharing = asked or per_node
    config = resolved(typed.config, sharing)
    spec = environment_spec(config.environment)
    check_network(config, spec)
    crowding = config.actor.crowding(sharing)
    for line in (rollouts_line(config, sharing), crowding and f"warning: {crowding}"):
        if line:
            print_line(console, line)
    costs = measure_costs(config, spec, console)
    counts = {2**i for i in range(int(math.log2(_MOST_ACTORS)) + 1)} | {per_node}
    counts |= set() if asked is None else {asked}
    curve = [predict(config, costs, n, math.ceil(n / per_node), node_cores) for n in sorted(counts)]
    result = {
        "step_seconds_alone": sum(costs.alone.values()),
        "step_seconds_on_busy_cores": sum(costs.loaded.values()),
        "stage_seconds_alone": costs.alone,
        "stage_seconds_on_busy_cores": costs.loaded,
        "learner_seconds_per_gradient": costs.learner,
        "parameters": costs.parameters,
        "agent_steps_per_gradient": agent_steps_per_gradient(config),
        "actor_bytes": ACTOR_BYTES,
        "node_cores": node_cores,
        "curve": curve,
        "saturation_actors": {
            where: saturation_actors(config, costs, nodes, node_cores)
            for where, nodes in (("one_machine", 1), ("several_machines", 2))
        },
        "preset": preset,
        "settings": flat_settings(config),
        **provenance(),
    }
    result["advice"] = advice(config, result)
    _show(console, result)
    write_json(typed.json, result)
    return EXIT_DONE


def measure_costs(config: RunConfig, spec: EnvironmentSpec, console: Console) -> Costs:
    """Measure a configuration on this machine."""
    # The mean that centres observations is measured at the start of a run. It changes values and no costs.
    config = replace(config, network=replace(config.network, centre_observations=False))
    cores = usable_cores()
    progress(console, f"1/3  starting {cores} process{'es' * (cores > 1)} with an actor each …")
    with measuring_processes(_actor_meter, config, spec, cores) as processes:
        progress(console, "2/3  environment, acting and gradient, on one core and on all of them …")
        alone, loaded = (
            dict(zip(StageSeconds._fields[:-1], map(float, np.mean(stages, axis=0)), strict=True))
            for stages in (
                measure_at_once(processes[:1], _MEASURED_SECONDS),
                measure_at_once(processes, _MEASURED_SECONDS),
            )
        )
    progress(console, "3/3  the learner: gradients from this machine, and as between machines …")
    learner = measure_learner(config, spec, _MEASURED_SECONDS)
    return Costs(alone, loaded, learner, learner.pop("parameters"))


def _actor_meter(config: RunConfig, spec: EnvironmentSpec) -> Meter:
    """Measures the seconds of each stage of an actor per agent step, without those in which it waits."""
    from actors.actor import Actor
    from actors.policy import Policy
    from shared.graph import aligned_copy

    actor = Actor(config, spec, 0)
    # Aligned, as those of a run are.
    weights = WeightSnapshot(0, aligned_copy(Policy(config, spec).initial_parameters()))
    target = weights if config.method.uses_target_network else None
    agent_steps = config.actor.environments * config.actor.unroll_length

    def rollout() -> Any:
        reports: list[GradientReport] = []
        while len(reports) < config.actor.gradients_per_rollout:
            # With fresh gradients the report has the seconds of the call before it, which played, too.
            result = actor.run(weights, target)
            reports += [] if isinstance(result, Played) else [result]
        return np.sum([report.stage_seconds[:-1] for report in reports], axis=0) / agent_steps

    rollout()
    return lambda opens, closes: np.mean(calls_within(rollout, opens, closes)[0], axis=0)


def agent_steps_per_gradient(config: RunConfig) -> float:
    """Mean number of new agent steps of a gradient. A rollout gives E x M gradients."""
    actor = config.actor
    return actor.environments * actor.unroll_length / actor.gradients_per_rollout


def _gradients_together(config: RunConfig, actors: int, nodes: int, node_cores: int) -> int:
    """Number of gradients in a sum that a node sends, as `--aggregation` decides it; 1 without sums."""
    at_work = min(actors // nodes, node_cores)
    sums = aggregation_of(config, [at_work] * nodes, one_machine=nodes == 1).level == "node"
    return gradients_together(config, at_work) if sums else 1


def _gradient_seconds(config: RunConfig, costs: Costs, actors: int, nodes: int, node_cores: int) -> tuple[float, float]:
    """Seconds per gradient at its actor and in the learner's process."""
    # The costs of an agent step grow linearly from one busy core to all of them.
    busy = (min(math.ceil(actors / nodes), node_cores) - 1) / (node_cores - 1) if node_cores > 1 else 1.0
    alone, loaded = sum(costs.alone.values()), sum(costs.loaded.values())
    # On several machines most gradients come from another machine than the learner's.
    way = "shared_memory" if nodes == 1 else "objects"
    together = _gradients_together(config, actors, nodes, node_cores)
    learner = costs.learner[way]
    if together > 1:
        # Sums of K were measured. A smaller one costs as much as one of K.
        sum_of_k = costs.learner["shared_memory_sums" if nodes == 1 else "sums"]
        learner = sum_of_k * config.learner.gradients_per_update / together
    return (alone + busy * (loaded - alone)) * agent_steps_per_gradient(config), learner


def predict(config: RunConfig, costs: Costs, actors: int, nodes: int, node_cores: int) -> dict[str, Any]:
    """Rates, lag and memory of `actors` actors on `nodes` machines.

    Between the snapshot and the report of an actor every other outstanding gradient is applied once: a mean lag of
    (N c - 1) / K updates. With sums of S on n nodes, an actor starts with the weights that came with its node's last
    sum: (N + n (c S - 1) - S) / K. A fresh gradient misses only those applied during its own part of a rollout.
    """
    actor, learner = _gradient_seconds(config, costs, actors, nodes, node_cores)
    calls, count = config.actor.calls_in_flight, config.learner.gradients_per_update
    together = _gradients_together(config, actors, nodes, node_cores)
    sums = together > 1
    aggregator = costs.learner["aggregator"] if sums else 0.0
    limits = {
        # A second call in flight hides the transfer.
        "actors": actors / (actor if calls > 1 else actor + learner),
        "cores": nodes * node_cores / (actor + learner + aggregator),
        "learner": 1.0 / learner,
        "nodes": nodes / aggregator if sums else math.inf,
    }
    held_back_by = min(limits, key=lambda limit: limits[limit])
    rate = limits[held_back_by]
    agent_steps = rate * agent_steps_per_gradient(config)
    frames = agent_steps * config.frames_per_agent_step
    share = costs.alone["gradient"] / sum(costs.alone.values()) if config.actor.fresh_gradients else 1.0
    others = share * actors + nodes * (calls * together - 1) - together if sums else share * (actors * calls - 1)
    return {
        "actors": actors,
        "nodes": nodes,
        "memory_gib": actors * ACTOR_BYTES / 2**30,
        "gradients_per_second": rate,
        "agent_steps_per_second": agent_steps,
        "frames_per_second": frames,
        **{f"minutes_to_{millions}m_frames": millions * 1e6 / frames / 60 for millions in _MILLIONS_OF_FRAMES},
        "policy_lag": max(0.0, others / count),
        "learner_utilisation": rate * learner,
        "held_back_by": held_back_by,
    }


def saturation_actors(config: RunConfig, costs: Costs, nodes: int, node_cores: int) -> float:
    """Number of actors at which the learner, or the process that adds on each node, is full, with all cores busy."""
    actor, learner = _gradient_seconds(config, costs, nodes * node_cores, nodes, node_cores)
    sums = _gradients_together(config, nodes * node_cores, nodes, node_cores) > 1
    full = max(learner, costs.learner["aggregator"] / nodes if sums else 0.0)
    return (actor if config.actor.calls_in_flight > 1 else actor + learner) / full


def advice(config: RunConfig, result: dict[str, Any]) -> list[str]:
    """How many actors to start, and what to set for more of them."""
    full = result["saturation_actors"]
    here, cores = automatic_actors(result["node_cores"]), result["node_cores"]
    row = next(row for row in result["curve"] if row["actors"] == here)
    lines = [
        f"one machine of {cores} core{'s' * (cores > 1)}: --actors {here}, which auto starts: "
        f"{row['agent_steps_per_second']:,.0f} agent steps/s, 40 M frames in {row['minutes_to_40m_frames']:,.0f} min"
    ]
    if full["one_machine"] < here:
        lines[0] += f"; the learner is full at {full['one_machine']:.0f}: set --actors to that"
    several = full["several_machines"]
    lines.append(f"several machines: the learner is full at about {several:,.0f} actors; more of them would wait")
    last = result["curve"][-1]
    if last["held_back_by"] in ("learner", "nodes"):
        if config.actor.fresh_gradients:
            changes = ["other seeds; larger rollouts would put more agent steps in flight"]
        else:
            changes = ["a longer --actor.unroll-length"]
            if config.actor.gradients_per_rollout > 1:
                changes.append("fewer --actor.epochs or --actor.minibatches")
            if config.learner.gradients_per_update == 1:
                changes.append("--learner.gradients-per-update K, whose gradients are added on their node")
        lines.append(f"to use more: {'; '.join(changes)}")
    lines.append("more actors change what is learned from the same frames: docs/scaling.md")
    return lines


def _show(console: Console, result: dict[str, Any]) -> None:
    """Print measured inputs, the curve and the advice."""
    alone, loaded = result["stage_seconds_alone"], result["stage_seconds_on_busy_cores"]
    print_stages(console, {"one core busy": alone, "all cores busy": loaded})
    names = {
        "shared_memory": "on one machine",
        "objects": "between machines",
        "sums": "as sums between machines",
        "shared_memory_sums": "as sums on one",
        "aggregator": "to add on a node",
    }
    learner = ", ".join(
        f"{1e3 * seconds:.2f} {names[way]}" for way, seconds in result["learner_seconds_per_gradient"].items()
    )
    settings = result["settings"]
    print_line(console, f"learner, ms per gradient: {learner}; {result['parameters']:,} parameters")
    print_line(
        console,
        f"assumed: {result['node_cores']} cores a machine, {result['actor_bytes'] >> 20} MiB an actor; rollouts of "
        f"{settings['actor.environments']} x {settings['actor.unroll_length']}, "
        f"K = {settings['learner.gradients_per_update']}",
    )
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "actors": lambda row: f"{row['actors']:,}",
        "nodes": lambda row: f"{row['nodes']:,}",
        "memory": lambda row: f"{row['memory_gib']:,.0f} GiB",
        "agent\nsteps/s": lambda row: f"{row['agent_steps_per_second']:,.0f}",
        "minutes\nto 40 M": lambda row: f"{row['minutes_to_40m_frames']:,.1f}",
        "to 200 M\nframes": lambda row: f"{row['minutes_to_200m_frames']:,.1f}",
        "policy\nlag": lambda row: f"{row['policy_lag']:,.1f}",
        "learner\nbusy": lambda row: f"{row['learner_utilisation']:.0%}",
        "held\nback by": lambda row: row["held_back_by"],
    }
    print_rows(console, columns, result["curve"])
    for line in result["advice"]:
        print_line(console, line)
