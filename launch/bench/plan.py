"""`tributary plan`: what N actors would give, from what is measured on this machine."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.console import Console

from actors.environments import environment_spec
from launch.bench.components import measure_components
from launch.bench.division import bills, divisions
from launch.bench.learner_costs import idle_cost, learner_costs, shared_memory_costs, slices_costs
from launch.bench.plan_result import draw, show
from launch.bench.queueing import Costs, Prediction, Tree, group_tree, predict, saturation
from launch.bench.scaling_measurements import measure_throughput
from launch.bench.scaling_result import Point
from launch.bench.scaling_settings import ScalingArguments, bench_config
from launch.on_ray.tree import node_share
from launch.output import EXIT_DONE, check_json_file, check_output, provenance, usable_cores, write_json
from shared.errors import setting_error
from shared.wire import WirePrecision

_CURVE = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_BYTES: dict[WirePrecision, int] = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class PlanArguments:
    """Predict throughput, policy lag and the point of saturation for more actors than there are here, and check the
    prediction against this machine. Five to ten minutes; nothing else should run."""

    cluster_actors: tuple[int, ...] = _CURVE
    """Numbers of actors to predict for."""
    actors_per_node: int = 15
    """Actors of one machine of the cluster: weights cross the network once for each machine."""
    gigabits: float = 10.0
    """Of the learner's network link, each way, per second."""
    gradients_per_update: int = 1
    """K."""
    shards: int = 1
    """S: predict a learner in so many slices, too. See --learner.shards of tributary train."""
    envs: int = 32
    """Environments of each actor."""
    unroll: int = 20
    """Unroll length."""
    epochs: int = 1
    """Times that each rollout is differentiated."""
    minibatches: int = 1
    """Parts that a rollout is differentiated in."""
    calls_in_flight: int = 1
    """Gradients asked of one actor at a time."""
    environment: str = "ALE/Pong-v5"
    """An ALE game."""
    network: Literal["a3c_cnn", "nature_cnn"] = "a3c_cnn"
    """Network."""
    agent_steps_per_second: float | None = None
    """What to buy: adds a bill, of how many cores by how many runs, and what they cost. Needs --core-hour."""
    core_hour: float | None = None
    """Price of a core for an hour, in any currency."""
    check: str = "1,2,4"
    """Numbers of actors to measure here, and hold the prediction against; empty: none."""
    seconds: float = 15.0
    """Seconds for each of these."""
    json: Path | None = None
    """File to write the figures to."""
    output: Path | None = None
    """File for the curve, .png or .svg."""

    @property
    def agent_steps_per_gradient(self) -> float:
        """On average: a gradient of a later epoch has none of its own."""
        return self.envs * self.unroll / (self.epochs * self.minibatches)


def plan(arguments: PlanArguments) -> int:
    """Run `tributary plan`. Returns the exit code.

    Raises:
        ConfigurationError: a mistake in the settings.
    """
    check_json_file(arguments.json)
    _check(arguments)
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
    spec = environment_spec(bench_config(scaling, Point(1, 1, arguments.unroll)).environment)
    if not spec.has_lives:
        raise setting_error("environment", arguments.environment, "the plan is for Atari; name an ALE game")
    console.print("environment, acting and gradient, on one core and on all of them …", style="dim")
    cores = usable_cores()
    components = measure_components(bench_config(scaling, Point(1, 1, arguments.unroll)), spec, (1, cores))
    alone, loaded = components[1].step_seconds(), components[cores].step_seconds()
    steps = arguments.agent_steps_per_gradient
    console.print("the learner …", style="dim")
    share = node_share(arguments.gradients_per_update, arguments.actors_per_node)
    network, count, idle = arguments.network, arguments.gradients_per_update, idle_cost(arguments.network)
    learner = {
        **learner_costs(network, count, share, tuple(_BYTES), idle),
        "shared_memory": shared_memory_costs(network, count, tuple(_BYTES)),
        "idle": idle,
    }
    if arguments.shards > 1:
        learner["slices"] = slices_costs(network, count, arguments.shards, tuple(_BYTES), idle)
    checks = []
    for actors in [int(text) for text in arguments.check.split(",") if text.strip()]:
        console.print(f"{actors} actors here …", style="dim", highlight=False)
        point = Point(actors, arguments.gradients_per_update, arguments.unroll)
        measured = measure_throughput(scaling, point)["agent_steps_per_second"]
        expected = _predict_here(arguments, alone, loaded, learner["shared_memory"]["float32"], actors) * steps
        checks.append({"actors": actors, "measured": measured, "predicted": expected, "error": expected / measured - 1})
    ways = cluster_ways(arguments, loaded, learner)
    curves = {
        name: [
            _row(way.predict(arguments, actors), steps, spec.frames_per_agent_step)
            for actors in arguments.cluster_actors
        ]
        for name, way in ways.items()
    }
    result: dict[str, Any] = {
        "step_seconds_alone": alone,
        "step_seconds_on_busy_cores": loaded,
        "learner_seconds_per_gradient": learner,
        "checks": checks,
        "curves": curves,
        **divided(arguments, ways),
        "frames_per_agent_step": spec.frames_per_agent_step,
        "saturation_actors": {name: saturation(way.costs) for name, way in ways.items()},
        "settings": {name: value for name, value in vars(arguments).items() if name not in ("json", "output")},
        **provenance(),
    }
    show(console, result)
    if arguments.output is not None:
        draw(arguments.output, result)
        console.print(f"curve: {arguments.output}", highlight=False, soft_wrap=True)
    if arguments.json is not None:
        write_json(arguments.json, result)
    return EXIT_DONE


def _check(arguments: PlanArguments) -> None:
    for name in ("actors_per_node", "gradients_per_update", "shards", "envs", "unroll", "epochs", "minibatches"):
        if getattr(arguments, name) < 1:
            raise setting_error(name, getattr(arguments, name), "must be at least 1")
    if min(arguments.cluster_actors, default=0) < 1:
        raise setting_error("cluster_actors", arguments.cluster_actors, "must be numbers of at least 1")
    for name in ("gigabits", "seconds", "agent_steps_per_second", "core_hour"):
        value = getattr(arguments, name)
        if value is not None and not value > 0:
            raise setting_error(name, value, "must be greater than 0")
    asked = {name: getattr(arguments, name) for name in ("agent_steps_per_second", "core_hour")}
    if len([value for value in asked.values() if value is not None]) == 1:
        (given,) = (name for name, value in asked.items() if value is not None)
        (other,) = asked.keys() - {given}
        raise setting_error(given, asked[given], f"makes a bill together with --{other.replace('_', '-')}")
    if not all(part.strip().isdecimal() and int(part) for part in arguments.check.split(",") if part.strip()):
        raise setting_error("check", arguments.check, "must be numbers like 1,2,4")
    check_output(arguments.output, (".png", ".svg"))


def _predict_here(arguments: PlanArguments, alone: float, loaded: float, learner: float, actors: int) -> float:
    """Gradients per second of so many actors on this machine, whose cores the learner shares."""
    cores = usable_cores()
    busy = min(actors, cores)
    # From one process to one on each core, steps get slower in proportion to the cores at work.
    share = (busy - 1) / (cores - 1) if cores > 1 else 1.0
    gradient = (alone + share * (loaded - alone)) * arguments.agent_steps_per_gradient
    free = predict(Costs(gradient, learner), actors, arguments.gradients_per_update, arguments.calls_in_flight)
    return min(free.gradients_per_second, cores / (gradient + learner))


class Way(NamedTuple):
    """A way for gradients between machines: what they cost, and where they are added, if they are."""

    costs: Costs
    added: Literal["nowhere", "on nodes", "in two levels"] = "nowhere"

    def predict(self, arguments: PlanArguments, actors: int) -> Prediction:
        """What so many actors give this way."""
        count, each = arguments.gradients_per_update, arguments.actors_per_node
        tree = None
        if self.added == "on nodes":
            tree = Tree(each)
        elif self.added == "in two levels":
            tree = group_tree(actors, each, node_share(count, each))
        return predict(self.costs, actors, count, arguments.calls_in_flight, tree)


def cluster_ways(arguments: PlanArguments, loaded: float, learner: dict[str, Any]) -> dict[str, Way]:
    """Between machines, by name: gradients as objects over the learner's link, by precision; and added on their way.

    K gradients that were added cost the learner's link what one does. So do those of a node's sum the link of the
    node that its group is added up on. Slices are on the learner's node, and behind the same link.
    """
    actor = loaded * arguments.agent_steps_per_gradient
    link = arguments.gigabits * 1e9 / 8.0
    count = arguments.gradients_per_update
    costs = Costs(actor, learner=0.0, idle=learner["idle"])
    ways: dict[str, Way] = {}
    for precision, size in _BYTES.items():
        network = size * learner["parameters"] / link
        ways[precision] = Way(costs._replace(learner=learner["objects"][precision], network=network))
        if arguments.shards > 1:
            of_learner, of_slice = (learner["slices"][part][precision] for part in ("learner", "slice"))
            sliced = costs._replace(learner=of_learner, slice=of_slice, network=network)
            ways[f"{precision}, in {arguments.shards} slices"] = Way(sliced)
        if count > 1:
            summed = learner["sums"][precision]
            head = max(learner["heads"][precision], network / node_share(count, arguments.actors_per_node))
            of_sums = costs._replace(learner=summed, network=network / count)
            ways[f"{precision}, added by node"] = Way(of_sums, "on nodes")
            ways[f"{precision}, in two levels"] = Way(of_sums._replace(head=head), "in two levels")
    return ways


def divided(arguments: PlanArguments, ways: dict[str, Way]) -> dict[str, Any]:
    """The most actors that are asked about as one run or several, and the bill if one is asked for; both by way.

    Of the ways with float32 on the wire.
    """
    steps, bought = arguments.agent_steps_per_gradient, arguments.agent_steps_per_second
    most = max(arguments.cluster_actors)
    found: dict[str, Any] = {"divisions": {}, "bills": {}}
    for name, way in ways.items():
        if not name.startswith("float32"):
            continue
        predict_run = partial(way.predict, arguments)
        rows = divisions(predict_run, most, arguments.actors_per_node, steps)
        found["divisions"][name] = [_flat(row._asdict()) for row in rows]
        if bought is not None:
            assert arguments.core_hour is not None
            bill = bills(predict_run, bought, steps, arguments.actors_per_node, arguments.core_hour)
            found["bills"][name] = [_flat(row._asdict()) for row in bill]
    return found


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    prediction: Prediction = row.pop("prediction")
    return prediction._asdict() | row


def _row(prediction: Prediction, steps: float, frames_per_agent_step: int) -> dict[str, Any]:
    rate = prediction.gradients_per_second * steps
    return prediction._asdict() | {
        "agent_steps_per_second": rate,
        "frames_per_second": rate * frames_per_agent_step,
    }
