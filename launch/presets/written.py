"""Settings from files and dictionaries, which change a preset or the settings of a run."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from launch.output import nearest
from launch.presets import PRESETS
from launch.presets.removed import without_removed
from shared.config import RunConfig
from shared.errors import ConfigurationError, one_line, setting_error

# TOML has no null. The command line uses the same word.
NONE = "None"
SHORT_NAMES = {
    "env": "environment.id",
    "lr": "optimizer.learning_rate",
    "frames": "total_frames",
    # Python has no field `import`.
    "environment.import": "environment.imports",
}
"""Short names on the command line."""
OF_ONE_RUN = ("storage", "record_arrivals", "replay_arrivals")
"""Settings of a single run, which no other run inherits."""


class ConfigFile(NamedTuple):
    """The settings in a file, by their full names.

    The config.json of a run is `whole`: it changes no preset, and `preset` is the run's name. Otherwise `preset` is
    the one that the file names, or None.
    """

    path: Path
    settings: dict[str, Any]
    preset: str | None
    whole: bool

    @property
    def environment_id(self) -> str | None:
        """The id of the environment in the file, or None."""
        found = self.settings.get("environment.id")
        return None if found is None else str(found)

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules in the file, which register its environment.

        Raises:
            ConfigurationError: the names are invalid.
        """
        named: dict[str, Any] = {
            name: self.settings[name] for name in ("environment.id", "environment.imports") if name in self.settings
        }
        return with_settings(RunConfig(), named).environment.modules

    def over(self, base: RunConfig) -> RunConfig:
        """`base` with the settings of the file.

        Raises:
            ConfigurationError: a setting is invalid.
        """
        try:
            return with_settings(RunConfig() if self.whole else base, self.settings)
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.path}: {error}") from error


def read_config_file(path: Path) -> ConfigFile:
    """Read TOML, or the config.json of a run.

    Raises:
        ConfigurationError: the file cannot be read, or names an unknown preset or setting.
    """
    whole = path.suffix == ".json"
    try:
        text = path.read_text()
        settings = json.loads(text) if whole else tomllib.loads(text)
    except OSError as error:
        raise setting_error("config", path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        kind = "JSON, as a run's config.json is" if whole else "TOML"
        raise setting_error("config", path, f"is no {kind}: {one_line(error)}") from error
    if not isinstance(settings, dict):
        raise setting_error("config", path, "is not the config.json of a run: it holds no settings")
    preset = path.resolve().parent.name if whole else settings.pop("preset", None)
    if not whole and preset is not None and preset not in PRESETS:
        raise ConfigurationError(
            f"{path}: unknown preset {preset}{nearest(str(preset), PRESETS)}; see tributary presets"
        )
    try:
        found = named(without_removed(settings) if whole else settings)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    if whole:
        found = {name: value for name, value in found.items() if name not in OF_ONE_RUN}
    return ConfigFile(path, found, preset, whole)


def with_settings(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """`config` with changed settings, by names like `optimizer.learning_rate`, or in nested mappings.

    Raises:
        ConfigurationError: a name is unknown, or a value is invalid.
    """
    sections: dict[str, dict[str, Any]] = {}
    for name, value in named(settings).items():
        section, _, field = name.rpartition(".")
        sections.setdefault(section, {})[field] = _converted(name, value)
    changed = sections.pop("", {})
    changed |= {section: replace(getattr(config, section), **fields) for section, fields in sections.items()}
    return replace(config, **changed)


def for_another_run(config: RunConfig) -> RunConfig:
    """The settings of a run for another one: those of a single run are reset."""
    unset: dict[str, Any] = {name: getattr(RunConfig, name) for name in OF_ONE_RUN}
    return replace(config, **unset)


def set_of_one_run(config: RunConfig) -> list[str]:
    """The names of the settings of a single run that are set."""
    return [name for name in OF_ONE_RUN if getattr(config, name) != getattr(RunConfig, name)]


def named(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in nested mappings, by their full names.

    Raises:
        ConfigurationError: a name is unknown.
    """
    return dict(_flat(settings, ""))


def _flat(settings: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        name = prefix + str(key).replace("-", "_")
        if name in _KINDS:
            yield name, value
        elif name not in _SECTIONS:
            raise ConfigurationError(f"--{name.replace('_', '-')}: there is no such setting{_nearest(name)}")
        elif isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        else:
            raise setting_error(name, value, f"is a group of settings, like {_first_of(name)}")


def _converted(name: str, value: Any) -> Any:
    kind = _KINDS[name]
    if value == NONE and NoneType in get_args(kind):
        return None
    if isinstance(value, np.generic):
        value = value.item()
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        problem = f"must be {' or '.join(choices)}" if choices else one_line(error).replace("`", "").lower()
        raise setting_error(name, value, problem) from error


def _nearest(name: str) -> str:
    # The name without its group.
    left_out = [known for known in _KINDS if known.rpartition(".")[2] == name]
    if left_out:
        return f", did you mean {left_out[0]}?"
    section = name.rpartition(".")[0]
    if name in SHORT_NAMES:
        return f", its whole name is {SHORT_NAMES[name]}"
    if section in _SECTIONS:
        return nearest(name, [known for known in _KINDS if known.startswith(f"{section}.")])
    return nearest(name, [*_SECTIONS, *_KINDS])


def _first_of(section: str) -> str:
    return next(name for name in _KINDS if name.startswith(f"{section}."))


def _kinds(kind: type, prefix: str) -> Iterator[tuple[str, Any]]:
    for field, hint in get_type_hints(kind).items():
        if isinstance(hint, type) and is_dataclass(hint):
            yield from _kinds(hint, f"{prefix}{field}.")
        else:
            yield prefix + field, hint


# The type of each setting by its full name, and the names of the groups.
_KINDS = dict(_kinds(RunConfig, ""))
_SECTIONS = sorted({name.rpartition(".")[0] for name in _KINDS} - {""})
