"""Commands that take `[PRESET] [SETTINGS]` as `tributary train` does."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from launch.arguments import ENVIRONMENT_OPTIONS, Operand, parse
from launch.commands.help import asks_for_help, print_help
from launch.request import TrainRequest, base_settings, complete, train_request
from shared.config import RunConfig

_Preset = TypeVar("_Preset", bound="PresetArguments")


@dataclass(frozen=True)
class PresetArguments:
    """The first fields of a command that takes `[PRESET] [SETTINGS]` as `tributary train` does."""

    preset: Operand[str | None] = None
    config: RunConfig = field(default_factory=RunConfig)
    config_file: Path | None = None
    """File of settings, as in tributary train."""
    trust_imports: bool = False
    """With --config: import the modules that the file names, as in tributary train."""


def request_of(arguments: PresetArguments, typed: dict[str, Any], **more: Any) -> TrainRequest:
    """The request of a line with the settings `typed`, and further fields of it."""
    return train_request(
        arguments.preset,
        {name: value for name, value in typed.items() if name != ENVIRONMENT_OPTIONS},
        options=typed.get(ENVIRONMENT_OPTIONS, {}),
        config=arguments.config_file,
        trust_imports=arguments.trust_imports,
        **more,
    )


def parse_with_preset(command: type[_Preset], title: str, words: Sequence[str]) -> tuple[_Preset, str] | None:
    """The arguments of `tributary TITLE [PRESET] [SETTINGS]` with the settings of a run, completed as those of
    `tributary train`, and the name of the preset. None: help was printed.
    """
    arguments, typed = parse(command, title, words)
    request = request_of(arguments, typed)
    if asks_for_help(words):
        print_preset_help(command, title, words, request)
        return None
    run = complete(request)
    return replace(arguments, config=run.config), run.preset


def print_preset_help(command: type, title: str, words: Sequence[str], request: TrainRequest) -> None:
    """`print_help` with the settings that a request starts from."""
    base = base_settings(request)
    print_help(command, title, words, base.config, base.preset)
