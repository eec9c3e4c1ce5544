"""What the folder of several seeds says of them, so that those that are not done can be gone on with."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from launch.output import write_json
from launch.run.folder import check_imports
from shared.config import RunConfig
from shared.errors import ConfigurationError, setting_error

_SEEDS = "seeds.json"
SETTINGS = "settings.json"
"""The file with the settings of all runs, which `--config` reads."""
FILES = (_SEEDS, SETTINGS)
"""All that is written."""


class SeveralSeeds(NamedTuple):
    """Seeds that are trained with the same settings. `start_from` is the folder of a run that all start from."""

    config: RunConfig
    seeds: tuple[int, ...]
    preset: str
    start_from: str | None


def write_seeds(folder: Path, several: SeveralSeeds) -> None:
    """Write seeds.json and settings.json."""
    write_json(folder / SETTINGS, msgspec.to_builtins(several.config))
    write_json(folder / _SEEDS, {"seeds": several.seeds, "preset": several.preset, "start_from": several.start_from})


def is_resumable(folder: Path) -> bool:
    """Whether `tributary train --resume` takes it: the folder of a run, or of several seeds, but not of a study."""
    return (folder / "config.json").is_file() or (folder / _SEEDS).is_file()


def read_seeds(folder: Path, *, trust_imports: bool, named_modules: Collection[str] = ()) -> SeveralSeeds | None:
    """What was written; None for a folder that is not of several seeds.

    Raises:
        ConfigurationError: it cannot be read; or see `check_imports`.
    """
    if not (folder / _SEEDS).is_file():
        return None
    try:
        kept: dict[str, Any] = json.loads((folder / _SEEDS).read_text())
        settings = json.loads((folder / SETTINGS).read_text())
        config = msgspec.convert(settings, RunConfig)
        found = SeveralSeeds(config, tuple(map(int, kept["seeds"])), str(kept["preset"]), kept["start_from"])
    except (OSError, ValueError, KeyError, TypeError, ConfigurationError) as error:
        raise setting_error("resume", folder, f"{_SEEDS} or {SETTINGS} cannot be read: {error}") from error
    if not trust_imports:
        check_imports(config.environment, named_modules, "resume", str(folder))
    return found
