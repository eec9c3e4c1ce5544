"""`tributary config` and `tributary presets`."""

from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.markup import escape
from rich.table import Table

from launch.files import write_json
from launch.output import wide_console
from launch.presets import DEFAULT_PRESET, PRESET_GROUPS, PRESETS
from launch.settings.help import as_toml
from launch.settings.resolve import PresetArguments, resolve_request


@dataclass(frozen=True)
class ConfigArguments(PresetArguments):
    """Print all settings of a preset, with the changes that are typed, as a file for tributary train --config."""

    config: Path | None = None
    """File of settings to start from, as in tributary train."""
    json: Path | None = None
    """File to write the settings to besides, as a run's config.json has them."""


def config_line(arguments: ConfigArguments) -> None:
    run = resolve_request(arguments.request())
    print(as_toml(run.config, run.preset if run.preset in PRESETS else None), end="")
    write_json(arguments.json, msgspec.to_builtins(run.config))


@dataclass(frozen=True)
class PresetsArguments:
    """List the presets."""

    json: Path | None = None
    """File to write all their settings to."""


def presets(arguments: PresetsArguments) -> None:
    # One line for each preset.
    console = wide_console(240)
    names = {name: name + " (default)" * (name == DEFAULT_PRESET) for name in PRESETS}
    for title, group in PRESET_GROUPS.items():
        table = Table.grid("preset", "description", padding=(0, 2, 0, 0))
        table.title, table.title_justify = title, "left"
        table.columns[0].no_wrap, table.columns[0].min_width = True, max(map(len, names.values()))
        for name, preset in group.items():
            # Extras like [box2d] would be read as markup.
            table.add_row(names[name], escape(preset.description))
        console.print(table)
    write_json(arguments.json, {name: msgspec.to_builtins(preset.config) for name, preset in PRESETS.items()})
