"""`tributary config [PRESET] [SETTINGS]`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from launch.arguments import parse
from launch.commands.help import asks_for_help
from launch.commands.options import PresetArguments, print_preset_help, request_of
from launch.commands.settings import as_toml
from launch.output import EXIT_DONE, check_json_file, write_json
from launch.presets import PRESETS
from launch.request import base_settings


@dataclass(frozen=True)
class ConfigArguments(PresetArguments):
    """Print all settings of a preset, with the changes that are typed, as a file for tributary train --config."""

    config_file: Path | None = None
    """File of settings to start from, as in tributary train."""
    json: Path | None = None
    """File to write the settings to besides, as a run's config.json has them."""


def config_line(arguments: Sequence[str]) -> int:
    """Run `tributary config` with its arguments. Returns the exit code."""
    parsed, typed = parse(ConfigArguments, "config", arguments)
    request = request_of(parsed, typed)
    if asks_for_help(arguments):
        print_preset_help(ConfigArguments, "config", arguments, request)
        return EXIT_DONE
    base = base_settings(request)
    check_json_file(parsed.json)
    config = request.changed(base.config)
    print(as_toml(config, base.preset if base.preset in PRESETS else None), end="")
    if parsed.json is not None:
        write_json(parsed.json, msgspec.to_builtins(config))
    return EXIT_DONE
