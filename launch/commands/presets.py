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
from launch.settings.resolve import PresetArguments, base_settings, changed_by_hand

# Spaces between columns.
_GAP = 2


@dataclass(frozen=True)
class ConfigArguments(PresetArguments):
    """Print all settings of a preset, with the changes that are typed, as a file for tributary train --config."""

    config: Path | None = None
    """File of settings to start from, as in tributary train."""
    json: Path | None = None
    """File to write the settings to besides, as a run's config.json has them."""


def config_line(arguments: ConfigArguments) -> None:
    request = arguments.request()
    base = base_settings(request)
    config = changed_by_hand(base.config, request.settings)
    print(as_toml(config, base.preset if base.preset in PRESETS else None), end="")
    write_json(arguments.json, msgspec.to_builtins(config))


@dataclass(frozen=True)
class PresetsArguments:
    """List the presets."""

    json: Path | None = None
    """File to write all their settings to."""


def presets(arguments: PresetsArguments) -> None:
    # One line for each preset.
    console = wide_console(240)
    cells = {
        name: {
            "preset": name + " (default)" * (name == DEFAULT_PRESET),
            "environment": preset.config.environment.id,
            "network": preset.config.network.name,
        }
        for name, preset in PRESETS.items()
    }
    widths = {heading: max(len(row[heading]) for row in cells.values()) for heading in cells[DEFAULT_PRESET]}
    if console.width < _GAP * len(widths) + sum(widths.values()) + max(len(p.description) for p in PRESETS.values()):
        # Beside all columns, descriptions would be a word wide.
        widths = {"preset": widths["preset"]}
    for title, group in PRESET_GROUPS.items():
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), title=title, title_justify="left")
        table.show_header = title == next(iter(PRESET_GROUPS))
        for heading, width in widths.items():
            table.add_column(heading, no_wrap=True, min_width=width)
        table.add_column("description")
        for name, preset in group.items():
            # Extras like [box2d] would be read as markup.
            table.add_row(*(cells[name][heading] for heading in widths), escape(preset.description))
        console.print(table)
    write_json(arguments.json, {name: msgspec.to_builtins(preset.config) for name, preset in PRESETS.items()})
