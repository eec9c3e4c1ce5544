"""`tributary bench scaling`: throughput against the number of actors, beside the bound and the learner's ceiling."""

import itertools
import json
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
from rich.console import Console

from actors.environments import EnvironmentSpec, environment_spec
from launch.bench.components import measure_components
from launch.bench.learner import LearnerArguments, measure_learner
from launch.bench.scaling_result import Point, show, summarise, write
from launch.bench.throughput import WARM_UP_SECONDS, endless, steady_state, train_for
from launch.commands.interrupts import Interrupts
from launch.commands.training_process import training_process
from launch.machine.budget import thread_budget
from launch.output.exit_codes import EXIT_DONE, EXIT_INTERRUPTED
from launch.output.hardware import usable_cores
from launch.output.json_file import check_json_file, write_json
from launch.output.words import duration
from launch.presets import PRESETS
from launch.run.folder import RunFolder
from launch.run.progress import lag_summary
from shared.config import ActorConfig, RunConfig
from shared.errors import ConfigurationError, setting_error

# About what components and the start of a run take, to say how long it will be.
_COMPONENT_SECONDS, _START_SECONDS = 20.0, 15.0
_PRESET = "pong"


@dataclass(frozen=True)
class ScalingArguments:
    """Measure throughput for several numbers of actors, gradients per update and unroll lengths, in turn, and say
    where it saturates and on what. Ctrl-C keeps what was measured; --continue goes on."""

    actors: str = "1,2"
    """Numbers of actors."""
    gradients_per_update: str = "1"
    """Values of K."""
    unroll: str = "20"
    """Unroll lengths."""
    envs: int = 32
    """Environments of each actor."""
    environment: str = "ALE/Pong-v5"
    """An ALE game."""
    network: Literal["a3c_cnn", "nature_cnn"] = "a3c_cnn"
    """Network."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the layers."""
    epochs: int = 1
    """Times that each rollout is differentiated."""
    minibatches: int = 1
    """Parts that a rollout is differentiated in."""
    calls_in_flight: int = 1
    """Gradients asked of one actor at a time."""
    seconds: float = 15.0
    """Seconds that each point is measured for, after its warm-up."""
    repeats: int = 3
    """Times that each point is measured. Points take turns: what is compared is measured close together."""
    until_return: float | None = None
    """Train each point until this mean return besides, and give time and frames to it."""
    until_seconds: float = 3600.0
    """With --until-return: seconds after which a point that has not got there is given up."""
    address: str = "local"
    """Ray cluster to measure on, as in tributary train."""
    output: Path | None = None
    """Folder for the results. Default: scaling-<time>."""
    resume: Path | None = None
    """Also written --continue: folder of an earlier measurement to go on with. Its settings are used."""
    json: Path | None = None
    """File to write the result to, besides scaling.json in the folder."""


def scaling(arguments: ScalingArguments) -> int:
    """Run `tributary bench scaling`. Returns the exit code.

    Raises:
        ConfigurationError: a mistake in the settings.
    """
    check_json_file(arguments.json)
    folder, arguments = _open(arguments)
    points = _points(arguments)
    spec = _check(arguments, points, folder)
    store = _Store(folder / "measurements.jsonl")
    console = Console()
    interrupted = False
    try:
        _measure_all(arguments, points, spec, store, console)
    except KeyboardInterrupt:
        interrupted = True
        console.print("interrupted: what was measured is kept")
    result = summarise(_settings(arguments), points, store.read())
    if not result["points"]:
        console.print(f"nothing was measured; go on with tributary bench scaling --continue {folder}", soft_wrap=True)
        return EXIT_INTERRUPTED
    write(folder, result)
    show(console, result, folder)
    if interrupted:
        console.print(f"go on with: tributary bench scaling --continue {folder}", soft_wrap=True)
    if arguments.json is not None:
        write_json(arguments.json, result)
    return EXIT_INTERRUPTED if interrupted else EXIT_DONE


class _Store:
    """Measurements, one JSON object per line, each written as soon as it is made."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> list[dict[str, Any]]:
        if not self._file.is_file():
            return []
        lines = self._file.read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def add(self, kind: str, **values: Any) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps({"kind": kind, "time": datetime.now().isoformat("T", "seconds"), **values}) + "\n")


def _open(arguments: ScalingArguments) -> tuple[Path, ScalingArguments]:
    """The folder, and the settings: those in it when it is gone on with."""
    if arguments.resume is not None:
        file = arguments.resume / "settings.json"
        if not file.is_file():
            raise setting_error("continue", arguments.resume, "is not the folder of a scaling measurement")
        try:
            kept = msgspec.json.decode(file.read_bytes(), type=ScalingArguments)
        except msgspec.DecodeError as error:
            raise setting_error("continue", arguments.resume, f"settings.json cannot be read: {error}") from error
        return arguments.resume, replace(kept, json=arguments.json)
    folder = arguments.output or Path(f"scaling-{datetime.now():%Y%m%d-%H%M%S}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise setting_error("output", folder, f"exists; name another, or go on with it: --continue {folder}")
    return folder, arguments


def _points(arguments: ScalingArguments) -> list[Point]:
    return [
        Point(*values)
        for values in itertools.product(
            _numbers("actors", arguments.actors),
            _numbers("gradients_per_update", arguments.gradients_per_update),
            _numbers("unroll", arguments.unroll),
        )
    ]


def _numbers(setting: str, text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise setting_error(setting, text, "must be numbers like 1,2,4")
    return sorted({int(part) for part in parts})


def _check(arguments: ScalingArguments, points: Sequence[Point], folder: Path) -> EnvironmentSpec:
    """Refuse what could not be measured; make the folder."""
    for name in ("seconds", "until_seconds"):
        if not getattr(arguments, name) > 0:
            raise setting_error(name, getattr(arguments, name), "must be greater than 0")
    if arguments.repeats < 1:
        raise setting_error("repeats", arguments.repeats, "must be at least 1")
    spec = environment_spec(bench_config(arguments, points[0]).environment)
    if not spec.has_lives:
        raise setting_error("environment", arguments.environment, "the bench is for Atari; name an ALE game")
    if arguments.address == "local":
        for point in points:
            thread_budget(bench_config(arguments, point))
    if arguments.resume is None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise setting_error("output", folder, f"cannot be made: {error.strerror}") from error
        write_json(folder / "settings.json", _settings(arguments))
    return spec


def _settings(arguments: ScalingArguments) -> dict[str, Any]:
    """What is measured; where the results go is not part of it."""
    return {name: value for name, value in asdict(arguments).items() if name not in ("output", "resume", "json")}


def bench_config(arguments: ScalingArguments, point: Point) -> RunConfig:
    """The settings that a point is measured with."""
    preset = endless(PRESETS[_PRESET].config)
    return replace(
        preset,
        actors=point.actors,
        address=arguments.address,
        environment=replace(preset.environment, id=arguments.environment),
        network=replace(preset.network, name=arguments.network, precision=arguments.precision),
        learner=replace(preset.learner, gradients_per_update=point.gradients_per_update),
        actor=ActorConfig(
            environments=arguments.envs,
            unroll_length=point.unroll,
            epochs=arguments.epochs,
            minibatches=arguments.minibatches,
            calls_in_flight=arguments.calls_in_flight,
        ),
    )


def _measure_all(
    arguments: ScalingArguments,
    points: Sequence[Point],
    spec: EnvironmentSpec,
    store: _Store,
    console: Console,
) -> None:
    """Measure what is not measured yet."""
    done = Counter((m["kind"], *m.get("point", ())) for m in store.read())
    seconds = _START_SECONDS + WARM_UP_SECONDS + arguments.seconds
    turns = [(repeat, point) for repeat in range(arguments.repeats) for point in points]
    turns = [(repeat, point) for repeat, point in turns if done[("throughput", *point)] <= repeat]
    unrolls = len({point.unroll for point in points})
    left = len(turns) * seconds + (0 if done[("components",)] >= 2 else 2 * _COMPONENT_SECONDS * unrolls)
    console.print(f"{len(turns)} measurements, about {duration(left)}", style="dim", highlight=False)
    started = time.monotonic()
    if not done[("ceiling",)]:
        _measure_ceiling(arguments, points, store, console)
    if done[("components",)] < 1:
        _measure_components(arguments, points, spec, store, console)
    for number, (repeat, point) in enumerate(turns, start=1):
        rest = (time.monotonic() - started) / (number - 1) * (len(turns) - number + 1) if number > 1 else left
        console.print(
            f"{number}/{len(turns)}  {_name(point)}, repeat {repeat + 1}   left {duration(rest)}",
            style="dim",
            highlight=False,
        )
        store.add("throughput", point=point, **measure_throughput(arguments, point))
    if done[("components",)] < 2:
        _measure_components(arguments, points, spec, store, console)
    if arguments.until_return is not None:
        for point in points:
            if not done[("until", *point)]:
                console.print(f"{_name(point)} until a return of {arguments.until_return:g} …", style="dim")
                store.add("until", point=point, **_measure_until(arguments, point))


def _measure_ceiling(arguments: ScalingArguments, points: Sequence[Point], store: _Store, console: Console) -> None:
    console.print("the learner's ceiling …", style="dim")
    ceilings = {}
    for count in sorted({point.gradients_per_update for point in points}):
        senders = max(1, min(2, usable_cores()))
        measured = measure_learner(
            LearnerArguments(actors=senders, gradients_per_update=count, network=arguments.network, envs=arguments.envs)
        )
        ceilings[str(count)] = measured["ceiling_gradients_per_second"]
    store.add("ceiling", gradients_per_second=ceilings)


def _measure_components(
    arguments: ScalingArguments, points: Sequence[Point], spec: EnvironmentSpec, store: _Store, console: Console
) -> None:
    """e, a and g alone, and with as many processes at once as each point has actors, at most one on each core here."""
    console.print("environment, acting and gradient, alone and at once …", style="dim")
    here = usable_cores()
    alone, loaded = {}, {}
    for unroll in sorted({point.unroll for point in points}):
        counts = {1} | {min(point.actors, here) for point in points}
        measured = measure_components(bench_config(arguments, Point(1, 1, unroll)), spec, sorted(counts))
        alone[str(unroll)] = measured[1].medians()
        loaded[str(unroll)] = {str(count): components.medians() for count, components in measured.items()}
    cores = here if arguments.address == "local" else None
    store.add("components", seconds=alone, seconds_under_load=loaded, cores=cores)


def measure_throughput(arguments: ScalingArguments, point: Point) -> dict[str, Any]:
    """Rates and costs of a point, from a run of its own."""
    config = bench_config(arguments, point)
    rows = train_for(config, arguments.seconds)
    measured = steady_state(rows, arguments.seconds)
    lags: Counter[int] = Counter()
    for row in rows:
        lags.update({int(lag): count for lag, count in row["policy_lag_counts"].items()})
    rollouts = measured["agent_steps_per_second"] / (arguments.envs * point.unroll)
    gradients = rollouts * config.actor.gradients_per_rollout
    return {
        **measured,
        "frames_per_second": measured["agent_steps_per_second"] * config.frames_per_agent_step,
        "policy_lag_p95": lag_summary(lags)[1],
        "learner_utilisation": gradients * measured["learner_seconds_per_update"],
        "agent_steps_dropped": rows[-1]["agent_steps_dropped"],
    }


def _measure_until(arguments: ScalingArguments, point: Point) -> dict[str, Any]:
    config = replace(
        bench_config(arguments, point),
        stop_at_return=arguments.until_return,
        stop_after_seconds=arguments.until_seconds,
        log_every_seconds=10.0,
    )
    summary = _train(config)
    reached = summary["confirmed_crossing"]
    return {
        "seconds": reached["seconds"] if reached else None,
        "frames": reached["frames"] if reached else None,
        "mean_return": summary["mean_return_100"],
    }


def _train(config: RunConfig) -> dict[str, Any]:
    """The summary of a run of its own."""
    with tempfile.TemporaryDirectory(prefix="tributary-bench-") as parent:
        run = RunFolder(Path(parent) / "run")
        with Interrupts(), training_process(config, run.path, "bench", subprocess.PIPE) as training:
            output, _ = training.communicate()
        if training.returncode != 0:
            lines = output.strip().splitlines()
            raise ConfigurationError(f"the system could not be measured: {lines[-1] if lines else 'training failed'}")
        return json.loads(run.summary.read_text())


def _name(point: Point) -> str:
    return f"{point.actors} actors, K = {point.gradients_per_update}, unroll {point.unroll}"
