"""`tributary config [PRESET] [SETTINGS]`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import tyro

from launch.commands.options import asks_for_help, help_page, parse, request_of, spelt_out, take_preset, with_full_help
from launch.commands.settings import as_toml
from launch.output import EXIT_DONE, check_json_file, write_json
from launch.presets import PRESETS
from launch.request import base_settings
from shared.config import RunConfig

_PURPOSE = "Print all settings of a preset, with the changes that are typed, as a file for tributary train --config."


@dataclass(frozen=True)
class ConfigArguments:
    """Print all settings as a file that `--config` reads."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    config_file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    """File of settings to start from, as in tributary train."""
    json: Path | None = None
    """File to write the settings to besides, as a run's config.json has them."""


def config_line(arguments: Sequence[str]) -> int:
    """Run `tributary config` with its arguments. Returns the exit code."""
    rest = spelt_out(arguments)
    named = take_preset(rest)
    base = base_settings(request_of(named, rest))
    if asks_for_help(rest):
        print(help_page("config [PRESET]", _PURPOSE, base.preset, base.config, ConfigArguments), end="")
        return EXIT_DONE
    parsed = parse(ConfigArguments, "config [PRESET]", with_full_help(rest), ConfigArguments(base.config))
    check_json_file(parsed.json)
    print(as_toml(parsed.config, base.preset if base.preset in PRESETS else None), end="")
    if parsed.json is not None:
        write_json(parsed.json, msgspec.to_builtins(parsed.config))
    return EXIT_DONE
