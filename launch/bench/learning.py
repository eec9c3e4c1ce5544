"""`tributary bench learning`: how long presets and variants of them take to learn, several seeds of each, in turn."""

import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
import tyro
from rich.console import Console

from launch.bench.learning_result import Contender, Study, show, summarise, write
from launch.commands.arguments import parse
from launch.commands.in_turn import PlannedRun, check_side_by_side, left_to_do, train_in_turn
from launch.commands.interrupts import Interrupts
from launch.commands.preset_line import asks_for_help, help_page, spelt_out, take_preset, unnamed_preset, with_full_help
from launch.commands.seeds import parse_seeds
from launch.output import EXIT_DONE, EXIT_INTERRUPTED, check_json_file, make_folder, print_line, write_json
from launch.presets import PRESETS
from launch.presets.written import set_of_one_run
from launch.run.folder import RunFolder
from shared.config import RunConfig, flat_settings
from shared.errors import ConfigurationError, setting_error

_COMMAND = "bench learning [PRESET…]"


@dataclass(frozen=True)
class LearningArguments:
    """Train each preset with several seeds until it reaches a mark, or for so many minutes, and put times, returns and
    curves beside each other. Seeds take turns. After Ctrl-C, or when it was killed, the same command goes on."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    mark: float | None = None
    """Return to reach, confirmed by an evaluation as --stop-at-return is. Default: the preset's, without --minutes."""
    minutes: float | None = None
    """Minutes of training after which a run is stopped. Without --mark the return by then is what is compared."""
    seeds: str = "1-5"
    """Seeds like 1,2,3 or 1-10."""
    compare: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Settings to train each preset with besides, like --compare "--actor.environments 16". May be given several
    times."""
    side_by_side: int = 1
    """Runs at a time. Set --actors, so that there are cores for all."""
    output: Path | None = None
    """Folder of the study. Default: one below runs/ that belongs to these presets and settings."""
    json: Path | None = None
    """File to write the result to, besides learning.json in the folder."""


def learning_line(arguments: Sequence[str]) -> int:
    """Run `tributary bench learning` with what is typed after it. Returns the exit code.

    Raises:
        ConfigurationError: it names no preset, or settings that cannot be.
    """
    rest, presets = spelt_out(arguments), list[str]()
    while (preset := take_preset(rest)) is not None:
        presets.append(preset)
    presets = presets or [unnamed_preset(rest)]
    if asks_for_help(rest):
        purpose = " ".join(str(LearningArguments.__doc__).split())
        base = PRESETS[presets[0]].config
        print(help_page(_COMMAND, purpose, presets[0], base, LearningArguments), end="")
        return EXIT_DONE
    rest = _with_values_attached(with_full_help(rest), "--compare")
    return learning(*_contenders(presets, rest))


def learning(arguments: LearningArguments, contenders: Sequence[Contender]) -> int:
    """Train, show and write. Returns the exit code.

    Raises:
        ConfigurationError: a mistake in the settings, or a run could not start.
    """
    seeds = parse_seeds(arguments.seeds)
    check_side_by_side(arguments.side_by_side)
    check_json_file(arguments.json)
    study = Study(arguments.output or _default_folder(contenders), contenders, seeds)
    # Contenders take turns within a seed: a noisy hour hits all of them alike.
    runs = [
        PlannedRun(
            f"{contender.name}, seed {seed}",
            replace(contender.config, seed=seed),
            study.run(contender, seed),
            contender.preset,
        )
        for seed in seeds
        for contender in contenders
    ]
    left = [planned for run in runs if (planned := _left_to_do(run)) is not None]
    make_folder(study.folder, "output")
    console = Console()
    print_line(console, f"study: {study.folder}, {len(left)} of {len(runs)} runs to do")
    with Interrupts() as interrupts:
        codes = train_in_turn(left, arguments.side_by_side, console, interrupts)
        result = summarise(study)
        write(study, result)
        show(console, result, study.folder)
        if arguments.json is not None:
            write_json(arguments.json, result)
        if not interrupts.asked:
            return max(codes, default=EXIT_DONE)
    print_line(console, "interrupted: what was learned is kept, and the same command goes on")
    return EXIT_INTERRUPTED


def _parse(preset: str, arguments: Sequence[str]) -> LearningArguments:
    return parse(LearningArguments, _COMMAND, arguments, LearningArguments(PRESETS[preset].config))


def _with_values_attached(arguments: Sequence[str], name: str) -> list[str]:
    """`--name VALUE` as `--name=VALUE`: the parser takes a value that begins with a dash in no other way."""
    attached: list[str] = []
    for argument in arguments:
        if attached and attached[-1] == name:
            attached[-1] = f"{name}={argument}"
        else:
            attached.append(argument)
    return attached


def _contenders(presets: Sequence[str], arguments: Sequence[str]) -> tuple[LearningArguments, list[Contender]]:
    """What was typed, and each preset as it is with that and with each of the settings to compare besides."""
    contenders = []
    for preset in presets:
        typed = _parse(preset, arguments)
        for changes in ("", *typed.compare):
            try:
                words = shlex.split(changes)
            except ValueError as error:
                raise setting_error("compare", changes, f"cannot be read: {error}") from error
            changed = _parse(preset, [*arguments, *words])
            if replace(changed, config=typed.config) != typed:
                raise setting_error("compare", changes, "takes settings of training; type the others by themselves")
            contenders.append(Contender(" ".join([preset, *words]), preset, _limited(changed, PRESETS[preset].config)))
    for name in ("name", "folder", "config"):
        seen = [getattr(contender, name) for contender in contenders]
        for contender, value in zip(contenders, seen, strict=True):
            if seen.count(value) > 1:
                raise ConfigurationError(f"{contender.name} would be compared with itself: name each once")
    return typed, contenders


def _limited(arguments: LearningArguments, preset: RunConfig) -> RunConfig:
    """The settings of a contender's runs, which end at the mark, or when their time is up."""
    config, mark = arguments.config, arguments.mark
    for name, instead in (("stop_at_return", "--mark"), ("stop_after_seconds", "--minutes"), ("seed", "--seeds")):
        if getattr(config, name) != getattr(preset, name):
            raise setting_error(name, getattr(config, name), f"is given by {instead} here")
    for name in set_of_one_run(config):
        raise setting_error(name, getattr(config, name), "is of one run, and here are several")
    if arguments.minutes is None:
        mark = preset.stop_at_return if mark is None else mark
        if mark is None:
            raise ConfigurationError("name what is measured: --mark R, the return to reach, or --minutes N")
    elif not arguments.minutes > 0:
        raise setting_error("minutes", arguments.minutes, "must be greater than 0")
    seconds = None if arguments.minutes is None else 60.0 * arguments.minutes
    return replace(config, stop_at_return=mark, stop_after_seconds=seconds)


def _default_folder(contenders: Sequence[Contender]) -> Path:
    """The same for the same contenders, so that the same command goes on."""
    settings = msgspec.json.encode([(contender.name, contender.config) for contender in contenders])
    presets = "-".join(dict.fromkeys(contender.preset for contender in contenders))
    return Path("runs") / f"learning-{presets}-{hashlib.sha256(settings).hexdigest()[:8]}"


def _left_to_do(run: PlannedRun) -> PlannedRun | None:
    """The run as it is to be trained, from its beginning or from where it stopped; None if it has ended.

    Raises:
        ConfigurationError: its folder is in use, or of a run with other settings.
    """
    if not (run.folder / "config.json").is_file():
        return run
    before, now = flat_settings(RunFolder(run.folder).read_settings("output")), flat_settings(run.config)
    for name, value in now.items():
        if before.get(name) != value:
            raise setting_error(
                "output", run.folder, f"has a run with {name} {before.get(name)}, and not {value}; name another folder"
            )
    return left_to_do(run)
