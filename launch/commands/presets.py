"""Commands that start from a preset: `[PRESET] [SETTINGS]` as in `tributary train`, `tributary config`, `presets`."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from launch.arguments import ENVIRONMENT_OPTIONS, Operand, parse
from launch.commands.settings import as_toml, asks_for_help, print_help
from launch.output import write_json
from launch.presets import DEFAULT_PRESET, PRESETS
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


@dataclass(frozen=True)
class ConfigArguments(PresetArguments):
    """Print all settings of a preset, with the changes that are typed, as a file for tributary train --config."""

    config_file: Path | None = None
    """File of settings to start from, as in tributary train."""
    json: Path | None = None
    """File to write the settings to besides, as a run's config.json has them."""


def config_line(arguments: Sequence[str]) -> None:
    parsed, typed = parse(ConfigArguments, "config", arguments)
    request = request_of(parsed, typed)
    if asks_for_help(arguments):
        print_preset_help(ConfigArguments, "config", arguments, request)
        return
    base = base_settings(request)
    config = request.changed(base.config)
    print(as_toml(config, base.preset if base.preset in PRESETS else None), end="")
    write_json(parsed.json, msgspec.to_builtins(config))


@dataclass(frozen=True)
class PresetsArguments:
    """List the presets."""

    json: Path | None = None
    """File to write all their settings to."""


def presets(arguments: PresetsArguments) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("preset", "environment", "network", "description"):
        table.add_column(heading, no_wrap=heading != "description")
    for name, preset in PRESETS.items():
        default = " (default)" * (name == DEFAULT_PRESET)
        # Extras like [box2d] would be read as markup.
        description = escape(preset.description)
        table.add_row(name + default, preset.config.environment.id, preset.config.network.name, description)
    console = Console()
    if not console.is_terminal:
        # One line for each preset, for programs that read the list.
        console.width = max(console.width, 240)
    console.print(table)
    write_json(arguments.json, {name: msgspec.to_builtins(preset.config) for name, preset in PRESETS.items()})
