"""`tributary presets`: the list of presets."""

from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from launch.output import EXIT_DONE, check_json_file, write_json
from launch.presets import DEFAULT_PRESET, PRESETS


@dataclass(frozen=True)
class PresetsArguments:
    """List the presets."""

    json: Path | None = None
    """File to write all their settings to."""


def presets(arguments: PresetsArguments) -> int:
    """Run `tributary presets`. Returns the exit code."""
    check_json_file(arguments.json)
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
    if arguments.json is not None:
        write_json(arguments.json, {name: msgspec.to_builtins(preset.config) for name, preset in PRESETS.items()})
    return EXIT_DONE
