"""`tributary plan`: what N actors would give, from costs measured on this machine.

The model has two limits. Actors work independently: N / (actor + learner + link) gradients per second, where the three
are the seconds that one gradient takes in each. And the learner and its network link each take one gradient at a time:
1 / max(learner, link). The rate is the smaller of the two. Both are upper bounds: waiting in a queue, which matters
where the two limits meet, is not modelled (there a closed queue with exponential times is 8 % slower).
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from actors.environments import environment_spec
from launch.bench.learner import LearnerArguments, Network, measure_learner
from launch.bench.scaling import Point, ScalingArguments, bench_config, measure_throughput
from launch.bench.throughput import measure_components
from launch.machine import ACTOR_BYTES, usable_cores
from launch.output import EXIT_DONE, check_json_file, check_output, hardware_line, print_line, provenance, write_json
from shared.errors import setting_error

_CURVE = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_ONE_BY_ONE, _BY_NODE = "float32", "float32, added by node"
_ELEMENT_BYTES = 4


@dataclass(frozen=True)
class PlanArguments:
    """Predict throughput, policy lag, memory and the point of saturation for more actors than this machine has cores,
    and check the prediction against this machine. About five minutes; nothing else should run."""

    cluster_actors: tuple[int, ...] = _CURVE
    """Numbers of actors to predict."""
    actors_per_node: int = 15
    """Actors of one machine of the cluster."""
    gigabits: float = 10.0
    """Bandwidth of the learner's network link, per second and direction."""
    gradients_per_update: int = 1
    """K, the gradients accumulated per update. From 2 on, sums of K on each node are predicted too."""
    envs: int = 32
    """Environments of each actor."""
    unroll: int = 20
    """Unroll length."""
    epochs: int = 1
    """Passes over each rollout."""
    minibatches: int = 1
    """Minibatches of each pass."""
    calls_in_flight: int = 1
    """Outstanding gradients per actor."""
    environment: str = "ALE/Pong-v5"
    """An ALE game."""
    network: Network = "a3c_cnn"
    """Network."""
    check: str = "1,2,4"
    """Numbers of actors to measure on this machine and compare with the prediction. Empty: none."""
    seconds: float = 15.0
    """Duration of each of these measurements."""
    json: Path | None = None
    """Output file of the figures."""
    output: Path | None = None
    """Output file of the curve, .png or .svg."""

    @property
    def agent_steps_per_gradient(self) -> float:
        """Mean over the gradients of a rollout."""
        return self.envs * self.unroll / (self.epochs * self.minibatches)


class Costs(NamedTuple):
    """Seconds per gradient: of an actor, of the learner's process, and of the learner's link."""

    actor: float
    learner: float
    link: float = 0.0

    def cycle(self, calls_in_flight: int) -> float:
        """Seconds between two gradients of an actor that never queues; a second call hides the transfer."""
        return self.actor if calls_in_flight > 1 else sum(self)

    def saturation_actors(self, calls_in_flight: int) -> float:
        """Number of actors at which the learner or its link is full."""
        return self.cycle(calls_in_flight) / max(self.learner, self.link)


def plan(arguments: PlanArguments) -> int:
    """Run `tributary plan` and return its exit code.

    Raises:
        ConfigurationError: an argument is invalid.
    """
    checked_actors = _check(arguments)
    console = Console()
    scaling = ScalingArguments(
        envs=arguments.envs,
        environment=arguments.environment,
        network=arguments.network,
        epochs=arguments.epochs,
        minibatches=arguments.minibatches,
        calls_in_flight=arguments.calls_in_flight,
        seconds=arguments.seconds,
    )
    config = bench_config(scaling, Point(1, 1, arguments.unroll))
    spec = environment_spec(config.environment)
    if not spec.has_lives:
        raise setting_error("environment", arguments.environment, "the plan is for Atari; name an ALE game")
    console.print("environment, acting and gradient, on one core and on all of them …", style="dim")
    cores = usable_cores()
    components = measure_components(config, spec, (1, cores))
    alone, loaded = components[1].step_seconds(), components[cores].step_seconds()
    console.print("the learner …", style="dim")
    learner = measure_learner_costs(arguments)
    steps = arguments.agent_steps_per_gradient
    checks = []
    for actors in checked_actors:
        console.print(f"{actors} actors on this machine …", style="dim", highlight=False)
        point = Point(actors, arguments.gradients_per_update, arguments.unroll)
        measured = measure_throughput(scaling, point)["agent_steps_per_second"]
        expected = steps * predict_here(arguments, alone, loaded, learner["shared_memory"]["float32"], actors, cores)
        checks.append({"actors": actors, "measured": measured, "predicted": expected, "error": expected / measured - 1})
    costs = cluster_costs(arguments, loaded, learner)
    result: dict[str, Any] = {
        "step_seconds_alone": alone,
        "step_seconds_on_busy_cores": loaded,
        "learner_seconds_per_gradient": learner,
        "checks": checks,
        "curves": {
            way: [predict(arguments, way, costs[way], n, spec.frames_per_agent_step) for n in arguments.cluster_actors]
            for way in costs
        },
        "saturation_actors": {way: costs[way].saturation_actors(arguments.calls_in_flight) for way in costs},
        "frames_per_agent_step": spec.frames_per_agent_step,
        "actor_bytes": ACTOR_BYTES,
        "settings": {name: value for name, value in vars(arguments).items() if name not in ("json", "output")},
        **provenance(),
    }
    show(console, result)
    if arguments.output is not None:
        _draw(arguments.output, result)
        print_line(console, f"curve: {arguments.output}")
    if arguments.json is not None:
        write_json(arguments.json, result)
    return EXIT_DONE


def _check(arguments: PlanArguments) -> list[int]:
    """Validate the arguments; return the numbers of actors of --check."""
    check_json_file(arguments.json)
    check_output(arguments.output, (".png", ".svg"))
    for name in ("actors_per_node", "gradients_per_update", "envs", "unroll", "epochs", "minibatches"):
        if getattr(arguments, name) < 1:
            raise setting_error(name, getattr(arguments, name), "must be at least 1")
    if min(arguments.cluster_actors, default=0) < 1:
        raise setting_error("cluster_actors", arguments.cluster_actors, "must be numbers of at least 1")
    for name in ("gigabits", "seconds"):
        if not getattr(arguments, name) > 0:
            raise setting_error(name, getattr(arguments, name), "must be greater than 0")
    checked = [part.strip() for part in arguments.check.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) for part in checked):
        raise setting_error("check", arguments.check, "must be numbers like 1,2,4")
    return [int(part) for part in checked]


def measure_learner_costs(arguments: PlanArguments) -> dict[str, Any]:
    """CPU seconds of the learner's process per gradient, by transport, and the number of parameters.

    `objects`: through Ray's object store, as between machines; `shared_memory`: as on one machine; `sums`, from K = 2
    on: of a sum of K that was added on its node. One sender with one call: the process wakes up for each message, as it
    does for those of many actors that take longer to compute.
    """
    costs: dict[str, Any] = {}

    def measure(way: str, *, shared_memory: bool = False, **settings: Any) -> None:
        sender = LearnerArguments(
            actors=1,
            calls_in_flight=1,
            network=arguments.network,
            gradients_per_update=arguments.gradients_per_update,
            **settings,
        )
        found = measure_learner(sender, shared_memory=shared_memory)
        costs[way] = {"float32": found["cpu_seconds_per_gradient"]}
        costs["parameters"] = found["senders"]["1"]["parameters"]

    measure("shared_memory", shared_memory=True)
    measure("objects")
    if arguments.gradients_per_update > 1:
        measure("sums", aggregation="node")
    return costs


def cluster_costs(arguments: PlanArguments, step_seconds: float, learner: dict[str, Any]) -> dict[str, Costs]:
    """Costs between machines: one by one, and from K = 2 on as sums, which share one transfer."""
    actor = step_seconds * arguments.agent_steps_per_gradient
    link = _ELEMENT_BYTES * learner["parameters"] / (arguments.gigabits * 1e9 / 8)
    costs = {_ONE_BY_ONE: Costs(actor, learner["objects"]["float32"], link)}
    if arguments.gradients_per_update > 1:
        costs[_BY_NODE] = Costs(actor, learner["sums"]["float32"], link / arguments.gradients_per_update)
    return costs


def predict(
    arguments: PlanArguments, way: str, costs: Costs, actors: int, frames_per_agent_step: int
) -> dict[str, Any]:
    """Rates, lag and memory of `actors` actors that have a core each.

    Between the snapshot and the report of an actor every other outstanding gradient is applied once: a mean lag of
    (N c - 1) / K updates. With sums on n nodes, an actor starts with the weights that came with its node's last sum:
    N / K + n (c - 1 / K) - 1.
    """
    count, calls = arguments.gradients_per_update, arguments.calls_in_flight
    nodes = math.ceil(actors / arguments.actors_per_node)
    free, full = actors / costs.cycle(calls), 1.0 / max(costs.learner, costs.link)
    rate = min(free, full)
    lag = actors / count + nodes * (calls - 1 / count) - 1 if way == _BY_NODE else (actors * calls - 1) / count
    return {
        "actors": actors,
        "nodes": nodes,
        "memory_gib": actors * ACTOR_BYTES / 2**30,
        "gradients_per_second": rate,
        "agent_steps_per_second": rate * arguments.agent_steps_per_gradient,
        "frames_per_second": rate * arguments.agent_steps_per_gradient * frames_per_agent_step,
        "policy_lag": lag,
        "learner_utilisation": rate * costs.learner,
        "held_back_by": "actors" if free < full else "learner" if costs.learner >= costs.link else "network",
    }


def predict_here(
    arguments: PlanArguments, alone: float, loaded: float, learner: float, actors: int, cores: int
) -> float:
    """Gradients per second of `actors` actors that share the cores of this machine with the learner.

    The seconds of an agent step grow linearly from one busy core to all of them.
    """
    busy = (min(actors, cores) - 1) / (cores - 1) if cores > 1 else 1.0
    costs = Costs((alone + busy * (loaded - alone)) * arguments.agent_steps_per_gradient, learner)
    return min(actors / costs.cycle(arguments.calls_in_flight), cores / sum(costs), 1.0 / learner)


def show(console: Console, result: dict[str, Any]) -> None:
    """Print costs, checks, a table for each way, and the points of saturation."""
    learner = result["learner_seconds_per_gradient"]
    console.print(
        f"agent step {1e6 * result['step_seconds_alone']:.0f} µs on one core, "
        f"{1e6 * result['step_seconds_on_busy_cores']:.0f} with all cores busy; learner's CPU per gradient "
        f"{1e3 * learner['shared_memory']['float32']:.2f} ms on this machine, between machines "
        f"{1e3 * learner['objects']['float32']:.2f}",
        highlight=False,
    )
    for check in result["checks"]:
        console.print(
            f"check: {check['actors']} actors here {check['measured']:,.0f} agent steps/s, predicted "
            f"{check['predicted']:,.0f} ({check['error']:+.1%})",
            highlight=False,
        )
    for way, heading in ((_ONE_BY_ONE, "one by one"), (_BY_NODE, "added by node")):
        if way in result["curves"]:
            _show_way(console, result, way, heading)


def _show_way(console: Console, result: dict[str, Any], way: str, heading: str) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("actors", "nodes", "memory", "agent steps/s", "policy lag", "learner busy", "held back by"):
        table.add_column(column, justify="right")
    for row in result["curves"][way]:
        table.add_row(
            f"{row['actors']:,}",
            f"{row['nodes']:,}",
            f"{row['memory_gib']:,.0f} GiB",
            f"{row['agent_steps_per_second']:,.0f}",
            f"{row['policy_lag']:,.1f}",
            f"{row['learner_utilisation']:.0%}",
            row["held_back_by"],
        )
    console.print(f"gradients between machines, {heading}", style="dim", highlight=False)
    console.print(table, highlight=False)
    console.print(
        f"the learner is full at {result['saturation_actors'][way]:.0f} actors, in proportion to --unroll and --envs",
        highlight=False,
    )


def _draw(path: Path, result: dict[str, Any]) -> None:
    from launch.results.plot import COLOURS, figure, save

    with figure() as (drawn, (axes,)):
        for colour, (way, rows) in zip(COLOURS, result["curves"].items(), strict=False):
            actors, rates = ([row[name] for row in rows] for name in ("actors", "agent_steps_per_second"))
            axes.plot(actors, rates, "o-", color=colour, label=f"predicted, {way}")
        # Checks with more actors than cores are not comparable with actors that have a core each.
        checks = [check for check in result["checks"] if check["actors"] <= result["hardware"]["cores"]]
        if checks:
            actors, rates = ([check[name] for check in checks] for name in ("actors", "measured"))
            axes.plot(actors, rates, "x", color="black", label="measured")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlabel("actors, each on a core of its own")
        axes.set_ylabel("agent steps per second")
        axes.set_title(f"From costs measured on {hardware_line(result)}")
        axes.legend(fontsize=8)
        save(drawn, [path], settings=result["settings"])
