"""What `tributary bench scaling` measures: its arguments, and the settings of each point."""

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from launch.bench.scaling_result import Point
from launch.bench.throughput import endless
from launch.presets import PRESETS
from shared.config import ActorConfig, RunConfig
from shared.errors import setting_error

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


def points_of(arguments: ScalingArguments) -> list[Point]:
    """The points to measure, in the order in which they take turns."""
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
