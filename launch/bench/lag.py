"""`tributary bench lag`: return against policy lag, of as many actors as one likes, in one process."""

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated, TypeVar, cast

import msgspec
import tyro
from rich.console import Console

from actors.environments import environment_spec
from launch.bench.arrival_model import ArrivalModel
from launch.bench.lag_cells import CORRECTIONS, Cell, Correction, crossed, settings_but_order
from launch.bench.lag_result import result_of, show, write
from launch.bench.lag_study import LagStudy
from launch.commands.arguments import parse
from launch.commands.checks import check_network
from launch.commands.interrupts import Interrupts
from launch.commands.preset_line import asks_for_help, help_page, spelt_out, take_preset, unnamed_preset, with_full_help
from launch.commands.seeds import parse_seeds
from launch.output.exit_codes import EXIT_DONE, EXIT_INTERRUPTED
from launch.output.json_file import check_json_file, write_json
from launch.output.lines import print_line
from launch.output.words import duration
from launch.presets import PRESETS
from launch.presets.written import set_of_one_run
from shared.config import RunConfig
from shared.errors import setting_error
from shared.methods.names import METHODS

_COMMAND = "bench lag [PRESET]"
# What each run has of its own, and what gives it.
_OF_CELLS = {
    "actors": "--virtual-actors",
    "seed": "--seeds",
    "learner.gradients_per_update": "--gradients-per-update",
    "learner.staleness": "--corrections",
}
# Every run is played in one process and to its last frame, and evaluated there.
_MEAN_NOTHING = (
    "executor",
    "address",
    "stop_at_return",
    "stop_measure",
    "stop_after_seconds",
    "evaluation.every_frames",
)
_Value = TypeVar("_Value", int, float)


@dataclass(frozen=True)
class LagArguments:
    """Train as so many actors would, played in one process: gradients arrive in an order drawn from the queue of
    tributary plan, with the versions that they would have, from the environments of one. Numbers of actors, gradients
    per update, corrections, learning rates and seeds are crossed. Each run plays all frames. After Ctrl-C, or when it
    was killed, the same command goes on."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    model: ArrivalModel = field(default_factory=ArrivalModel)
    """What orders of arrival are drawn from: --model.stragglers, --model.spread and others, see --help-all."""
    virtual_actors: str = "1,8,64,256,1024"
    """Numbers of actors to stand for."""
    gradients_per_update: str = "1,8,32"
    """Values of K. K gradients are averaged, and the rate is multiplied as --learner.learning-rate-scaling says."""
    corrections: str = ",".join(CORRECTIONS)
    """What becomes of old gradients: values of --learner.staleness, and clipped, which differentiates each rollout
    again by the clipped ratio, as often as the settings say, or twice where they say once. The others do so once."""
    rates: str = "0.5,1,2"
    """Multiples of the learning rate."""
    seeds: str = "1-5"
    """Seeds like 1,2,3 or 1-10, of weights, environments, actions and arrivals."""
    processes: int = 1
    """Runs at a time."""
    output: Path | None = None
    """Folder of the study. Default: one below runs/ that belongs to the preset, the settings and the model."""
    json: Path | None = None
    """File to write the result to, besides lag.json in the folder."""


def lag_line(arguments: Sequence[str]) -> int:
    """Run `tributary bench lag` with what is typed after it. Returns the exit code.

    Raises:
        ConfigurationError: it names no preset, or settings that cannot be.
    """
    rest = spelt_out(arguments)
    preset = take_preset(rest) or unnamed_preset(rest)
    base = LagArguments(PRESETS[preset].config)
    if asks_for_help(rest):
        purpose = " ".join(str(LagArguments.__doc__).split())
        page = help_page(_COMMAND, purpose, preset, base.config, LagArguments, without=(*_OF_CELLS, *_MEAN_NOTHING))
        print(page, end="")
        return EXIT_DONE
    return lag(parse(LagArguments, _COMMAND, with_full_help(rest), base), preset)


def lag(arguments: LagArguments, preset: str) -> int:
    """Train, show and write. Returns the exit code.

    Raises:
        ConfigurationError: a mistake in the settings.
    """
    cells = _cells(arguments)
    check_json_file(arguments.json)
    if arguments.processes < 1:
        raise setting_error("processes", arguments.processes, "must be at least 1")
    config = shared_settings(arguments.config, PRESETS[preset].config)
    check_network(config, environment_spec(config.environment))
    for cell in cells:
        settings_but_order(config, cell)
        if cell.correction == "clipped" and METHODS[config.method.name].target_network:
            raise setting_error(
                "corrections", "clipped", f"{config.method.name} has no probabilities to take a ratio of"
            )
    study = LagStudy(arguments.output or _default_folder(preset, config, arguments.model), config, arguments.model)
    console = Console()
    with Interrupts() as interrupts, study.opened():
        left = study.left(cells)
        print_line(console, f"study: {study.folder}, {len(left)} of {len(cells)} runs to do")
        with interrupts.watched():
            started = time.monotonic()
            for number, row in enumerate(study.play(left, arguments.processes, lambda: interrupts.asked), start=1):
                seconds = (time.monotonic() - started) / number * (len(left) - number)
                more = f"; the rest takes about {duration(seconds)}" if number < len(left) else ""
                print_line(console, f"{number} of {len(left)}: {_told(row)}{more}")
        if study.rows():
            result = result_of(study)
            write(study, result)
            show(console, result, study.folder)
            if arguments.json is not None:
                write_json(arguments.json, result)
        if not interrupts.asked:
            return EXIT_DONE
    print_line(console, "interrupted: runs that have ended are kept, and the same command goes on")
    return EXIT_INTERRUPTED


def _told(row: dict[str, object]) -> str:
    cell = Cell(*(row[name] for name in Cell._fields))  # type: ignore[arg-type]
    returned = row["evaluation_mean_return"]
    words = "not finite" if returned is None else f"return {returned:.1f}"
    return f"{cell.name}: {words}, policy lag {row['policy_lag_mean']:.1f}, {row['seconds']:.1f} s"


def _cells(arguments: LagArguments) -> list[Cell]:
    corrections = [part.strip() for part in arguments.corrections.split(",")]
    for correction in corrections:
        if correction not in CORRECTIONS:
            raise setting_error("corrections", arguments.corrections, f"must be some of {','.join(CORRECTIONS)}")
    return crossed(
        _numbers("virtual_actors", arguments.virtual_actors, int),
        _numbers("gradients_per_update", arguments.gradients_per_update, int),
        cast(list[Correction], list(dict.fromkeys(corrections))),
        _numbers("rates", arguments.rates, float),
        parse_seeds(arguments.seeds),
    )


def _numbers(setting: str, text: str, read: Callable[[str], _Value]) -> list[_Value]:
    try:
        values = sorted({read(part) for part in text.split(",")})
    except ValueError:
        values = []
    if not values or not values[0] > 0 or not math.isfinite(values[-1]):
        raise setting_error(setting, text, "must be numbers above 0, like 1,2,4")
    return values


def shared_settings(config: RunConfig, preset: RunConfig) -> RunConfig:
    """The settings that all runs have. Those that a cell has of its own are given otherwise.

    Raises:
        ConfigurationError: one of those is given, or one that is not for such runs.
    """
    for name, instead in _OF_CELLS.items():
        given = attrgetter(name)(config)
        if given != attrgetter(name)(preset):
            raise setting_error(name, given, f"is given by {instead} here")
    for name in set_of_one_run(config):
        raise setting_error(name, getattr(config, name), "is of one run, and here are several")
    for name in _MEAN_NOTHING:
        given = attrgetter(name)(config)
        if given is not None and given != attrgetter(name)(preset):
            raise setting_error(
                name, given, "means nothing here: all runs play all frames in one process, leave it out"
            )
    if config.learner.target_policy_lag is not None:
        raise setting_error("learner.target_policy_lag", config.learner.target_policy_lag, "is not for bench lag")
    if config.actor.calls_in_flight != 1:
        raise setting_error("actor.calls_in_flight", config.actor.calls_in_flight, "the model has one call of an actor")
    # What would end a run is not looked at: all play the same frames.
    return replace(config, stop_at_return=None, stop_after_seconds=None)


def _default_folder(preset: str, config: RunConfig, model: ArrivalModel) -> Path:
    """The same for the same settings, so that the same command goes on, and more cells join those that are there."""
    digest = hashlib.sha256(msgspec.json.encode([config, model])).hexdigest()[:8]
    return Path("runs") / f"lag-{preset}-{digest}"
