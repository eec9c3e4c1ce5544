"""`tributary plan`: what N actors would give, from what is measured on this machine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from actors.environments import environment_spec
from launch.bench.components import measure_components
from launch.bench.learner import LearnerArguments, measure_learner
from launch.bench.queueing import Costs, Prediction, predict, saturation
from launch.bench.scaling import ScalingArguments, bench_config, measure_throughput
from launch.bench.scaling_result import Point
from launch.output.exit_codes import EXIT_DONE
from launch.output.hardware import hardware_line, usable_cores
from launch.output.json_file import check_json_file, write_json
from launch.output.output_file import check_output
from launch.output.provenance import provenance
from shared.config import TransferConfig
from shared.errors import setting_error

_CURVE = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class PlanArguments:
    """Predict throughput, policy lag and the point of saturation for more actors than there are here, and check the
    prediction against this machine. About five minutes; nothing else should run."""

    cluster_actors: tuple[int, ...] = _CURVE
    """Numbers of actors to predict for."""
    actors_per_node: int = 15
    """Actors of one machine of the cluster: weights cross the network once for each machine."""
    gigabits: float = 10.0
    """Of the learner's network link, each way, per second."""
    gradients_per_update: int = 1
    """K."""
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
    learner = _learner_costs(arguments)
    checks = []
    for actors in [int(text) for text in arguments.check.split(",") if text.strip()]:
        console.print(f"{actors} actors here …", style="dim", highlight=False)
        point = Point(actors, arguments.gradients_per_update, arguments.unroll)
        measured = measure_throughput(scaling, point)["agent_steps_per_second"]
        expected = _predict_here(arguments, alone, loaded, learner["shared_memory"]["float32"], actors) * steps
        checks.append({"actors": actors, "measured": measured, "predicted": expected, "error": expected / measured - 1})
    curves = {
        precision: [
            _row(
                predict(costs, n, arguments.gradients_per_update, arguments.calls_in_flight),
                steps,
                spec.frames_per_agent_step,
            )
            for n in arguments.cluster_actors
        ]
        for precision, costs in cluster_costs(arguments, loaded, learner).items()
    }
    result: dict[str, Any] = {
        "step_seconds_alone": alone,
        "step_seconds_on_busy_cores": loaded,
        "learner_seconds_per_gradient": learner,
        "checks": checks,
        "curves": curves,
        "saturation_actors": {
            precision: saturation(costs) for precision, costs in cluster_costs(arguments, loaded, learner).items()
        },
        "settings": {name: value for name, value in vars(arguments).items() if name not in ("json", "output")},
        **provenance(),
    }
    _show(console, result)
    if arguments.output is not None:
        _draw(arguments.output, result)
        console.print(f"curve: {arguments.output}", highlight=False, soft_wrap=True)
    if arguments.json is not None:
        write_json(arguments.json, result)
    return EXIT_DONE


def _check(arguments: PlanArguments) -> None:
    for name in ("actors_per_node", "gradients_per_update", "envs", "unroll", "epochs", "minibatches"):
        if getattr(arguments, name) < 1:
            raise setting_error(name, getattr(arguments, name), "must be at least 1")
    if min(arguments.cluster_actors, default=0) < 1:
        raise setting_error("cluster_actors", arguments.cluster_actors, "must be numbers of at least 1")
    for name in ("gigabits", "seconds"):
        if not getattr(arguments, name) > 0:
            raise setting_error(name, getattr(arguments, name), "must be greater than 0")
    if not all(part.strip().isdecimal() for part in arguments.check.split(",") if part.strip()):
        raise setting_error("check", arguments.check, "must be numbers like 1,2,4")
    check_output(arguments.output, (".png", ".svg"))


def _learner_costs(arguments: PlanArguments) -> dict[str, dict[str, float]]:
    """Seconds of the learner's CPU per gradient, by way and precision."""
    costs: dict[str, dict[str, float]] = {"shared_memory": {}, "objects": {}}
    for way in costs:
        for precision in _BYTES:
            transfer = TransferConfig(shared_memory=way == "shared_memory", precision=precision)  # type: ignore[arg-type]
            measured = measure_learner(
                LearnerArguments(
                    actors=1,
                    gradients_per_update=arguments.gradients_per_update,
                    network=arguments.network,
                    transfer=transfer,
                )
            )
            costs[way][precision] = measured["cpu_seconds_per_gradient"]
            parameters = measured["senders"]["1"]["parameters"]
    return costs | {"parameters": parameters}


def _predict_here(arguments: PlanArguments, alone: float, loaded: float, learner: float, actors: int) -> float:
    """Gradients per second of so many actors on this machine, whose cores the learner shares."""
    cores = usable_cores()
    busy = min(actors, cores)
    # From one process to one on each core, steps get slower in proportion to the cores at work.
    share = (busy - 1) / (cores - 1) if cores > 1 else 1.0
    gradient = (alone + share * (loaded - alone)) * arguments.agent_steps_per_gradient
    free = predict(Costs(gradient, learner), actors, arguments.gradients_per_update, arguments.calls_in_flight)
    return min(free.gradients_per_second, cores / (gradient + learner))


def cluster_costs(arguments: PlanArguments, loaded: float, learner: dict[str, Any]) -> dict[str, Costs]:
    """Between machines, by precision: gradients as objects over the learner's link.

    Where the gradients of an update are added on their nodes, K of them cost the learner and its link what one does.
    """
    gradient = loaded * arguments.agent_steps_per_gradient
    link = arguments.gigabits * 1e9 / 8.0
    together = arguments.gradients_per_update
    costs = {}
    for precision, size in _BYTES.items():
        seconds, network = learner["objects"][precision], size * learner["parameters"] / link
        costs[precision] = Costs(gradient, seconds, network)
        if together > 1:
            costs[f"{precision}, added by node"] = Costs(gradient, seconds / together, network / together)
    return costs


def _row(prediction: Prediction, steps: float, frames_per_agent_step: int) -> dict[str, Any]:
    rate = prediction.gradients_per_second * steps
    return prediction._asdict() | {
        "agent_steps_per_second": rate,
        "frames_per_second": rate * frames_per_agent_step,
    }


def _show(console: Console, result: dict[str, Any]) -> None:
    learner = result["learner_seconds_per_gradient"]
    console.print(
        f"one agent step {1e6 * result['step_seconds_alone']:.0f} µs on one core, "
        f"{1e6 * result['step_seconds_on_busy_cores']:.0f} with all cores busy; the learner's CPU per gradient "
        f"{1e3 * learner['shared_memory']['float32']:.2f} ms on this machine, between machines "
        f"{1e3 * learner['objects']['float32']:.2f} (bfloat16 {1e3 * learner['objects']['bfloat16']:.2f})",
        highlight=False,
    )
    for check in result["checks"]:
        console.print(
            f"check: {check['actors']} actors here {check['measured']:,.0f} agent steps/s, predicted "
            f"{check['predicted']:,.0f} ({check['error']:+.1%})",
            highlight=False,
        )
    table = Table(box=None, pad_edge=False)
    curves = result["curves"]
    for heading in ("actors", *curves, "policy lag", "learner busy", "held back by"):
        table.add_column(heading, justify="right")
    for rows in zip(*curves.values(), strict=True):
        plain = rows[0]
        table.add_row(
            f"{plain['actors']:,}",
            *(f"{row['agent_steps_per_second']:,.0f}" for row in rows),
            f"{plain['policy_lag']:,.0f}",
            f"{plain['learner_utilisation']:.0%}",
            plain["held_back_by"],
        )
    console.print("agent steps per second, by what is on the wire; the last three columns are of float32", style="dim")
    console.print(table, highlight=False)
    full = ", ".join(f"{name} {actors:.0f}" for name, actors in result["saturation_actors"].items())
    console.print(
        f"one learner is full at about so many actors: {full}; the point moves with --unroll and --envs, in proportion",
        highlight=False,
        soft_wrap=True,
    )


def _draw(path: Path, result: dict[str, Any]) -> None:
    from launch.output.pictures import COLOURS, figure, save

    with figure() as (drawn, (axes,)):
        for colour, (precision, rows) in zip(COLOURS, result["curves"].items(), strict=False):
            actors = [row["actors"] for row in rows]
            rates = [row["agent_steps_per_second"] for row in rows]
            axes.plot(actors, rates, "o-", color=colour, label=f"predicted, {precision} on the wire")
        first = result["curves"]["float32"][0]
        ideal = [first["agent_steps_per_second"] / first["actors"] * n for n in actors]
        axes.plot(actors, ideal, ":", color="black", linewidth=1, label="ideal")
        # Further ones share cores here.
        checks = [check for check in result["checks"] if check["actors"] <= result["hardware"]["cores"]]
        if checks:
            axes.plot(
                [c["actors"] for c in checks], [c["measured"] for c in checks], "x", color="black", label="measured"
            )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlabel("actors, each on a core of its own")
        axes.set_ylabel("agent steps per second")
        axes.set_title(f"From costs measured on {hardware_line(result)}")
        axes.legend(fontsize=8)
        save(drawn, [path], settings=result["settings"])
