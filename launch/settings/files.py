"""Settings in files and dictionaries, changes of a preset or of other settings.

All functions raise a ConfigurationError about unknown names and invalid values.
"""

import json
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec

from launch.files import typed_path
from launch.presets import check_preset
from shared.config import RunConfig
from shared.config.checks import declared
from shared.errors import ConfigurationError, alternatives, one_line, setting_error

# TOML has no null. The command line uses the same word.
NONE = "None"
SHORT_NAMES = {
    "env": "environment.id",
    "lr": "optimizer.learning_rate",
    "frames": "total_frames",
    # `import` cannot be the name of a field.
    "environment.import": "environment.imports",
}
"""Short names of settings on the command line."""
# Settings by their names in other libraries; docs/coming-from.md has more.
_NAMES_ELSEWHERE = {
    **dict.fromkeys(("workers", "num_workers", "num_env_runners"), "actors"),
    **dict.fromkeys(("gpu", "gpus", "num_gpus", "cuda"), "actor.device"),
    **dict.fromkeys(("num_envs", "n_envs"), "actor.total_environments"),
    **dict.fromkeys(("num_steps", "n_steps", "t_max", "rollout_fragment_length"), "actor.unroll_length"),
    **dict.fromkeys(("timesteps", "total_timesteps"), "total_frames"),
    "batch_size": "learner.agent_steps_per_update",
    "gamma": "method.discount",
    "gae_lambda": "method.return_lambda",
    "ent_coef": "method.entropy_cost",
    "vf_coef": "method.value_cost",
    "clip_range": "method.clip_ratio",
    "n_epochs": "actor.epochs",
    "grad_clip": "optimizer.max_gradient_norm",
    "max_grad_norm": "optimizer.max_gradient_norm",
}
# 40M, 2.5k, 1e6, 1,000,000: counts are long, and zeros are easily miscounted.
_COUNT = re.compile(r"([+-]?(?:[1-9]\d{0,2}(?:,\d{3})+|\d[\d_]*)(?:\.\d+)?)(?:([km])|e\+?(\d{1,2}))?", re.IGNORECASE)
_POWERS = {"k": 3, "m": 6}
_MUST_BE = {
    int: "a whole number, like 20000, 20k, 2M or 2e4",
    float: "a number, like 0.001, 1e-3 or 2M",
    bool: "True or False",
    str: "text",
    tuple: "a sequence",
    dict: "names, each with a number, True, False or text",
}


class ConfigFile(NamedTuple):
    """The settings of a file, by their full names.

    A run's config.json is `whole`, independent of any preset, and `preset` is the name of that run. In others `preset`
    is the preset that the file names, or None.
    """

    path: Path
    settings: dict[str, Any]
    preset: str | None
    whole: bool


@contextmanager
def errors_of(file: Path | None) -> Iterator[None]:
    """Name the file in errors about its settings."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{file}: {error}") from error


def read_config_file(path: Path) -> ConfigFile:
    of_json = path.suffix == ".json"
    try:
        text = path.read_text(encoding="utf-8-sig")
        settings = json.loads(text, object_pairs_hook=_without_repetition) if of_json else tomllib.loads(text)
    except OSError as error:
        raise setting_error("config", path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        kind = "JSON, as a run's config.json is" if of_json else "TOML"
        raise setting_error("config", path, f"is not {kind}: {one_line(error)}") from error
    if not isinstance(settings, dict):
        raise setting_error("config", path, "is not the config.json of a run: it holds no settings")
    # One of an older version may lack a group.
    groups = {section.partition(".")[0] for section in _SECTIONS}
    whole = of_json and len(groups & settings.keys()) > len(groups) / 2
    preset = path.resolve().parent.name if whole else settings.pop("preset", None)
    with errors_of(path):
        if not whole and preset is not None:
            check_preset(str(preset))
        flat = by_full_name(settings)
    if whole:
        # Storage belongs to one run.
        flat.pop("storage", None)
    return ConfigFile(path, flat, preset, whole)


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, whose parser would take the last of several values; TOML refuses them."""
    settings = dict(pairs)
    for name in settings:
        if sum(name == other for other, _ in pairs) > 1:
            raise ValueError(f"the name {name!r} occurs more than once")
    return settings


def with_settings(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """`config` with changed settings, by full names such as `optimizer.learning_rate`, or in nested mappings."""
    sections: dict[str, dict[str, Any]] = {}
    for name, value in by_full_name(settings).items():
        section, _, field = name.rpartition(".")
        sections.setdefault(section, {})[field] = read_value(name, KINDS[name], value)
    changed = sections.pop("", {})
    changed |= {section: replace(getattr(config, section), **fields) for section, fields in sections.items()}
    return replace(config, **changed)


def modules_of(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The modules that settings by full names give their environment."""
    names = {"environment.id", "environment.imports"} & settings.keys()
    return with_settings(RunConfig(), {name: settings[name] for name in names}).environment.modules


def by_full_name(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their full names."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        name = prefix + str(key).replace("-", "_")
        if name in KINDS:
            flat[name] = value
        elif name not in _SECTIONS:
            near = similar(name, [*_SECTIONS, *KINDS])
            advice = f"; did you mean {' or '.join(near)}?" if near else "; see docs/settings.md"
            raise ConfigurationError(f"{option_name(name)}: there is no such setting{advice}")
        elif isinstance(value, Mapping):
            flat |= by_full_name(value, f"{name}.")
        else:
            example = next(setting for setting in KINDS if setting.startswith(f"{name}."))
            raise setting_error(name, value, f"is a group of settings, like {example}")
    return flat


# ---- One value: the only place that reads its type, from a file, a dictionary or the text of a command line


def read_value(name: str, kind: Any, value: Any) -> Any:
    """A value of the type `kind` for the setting or option `name`, from text or from a value of Python.

    The annotation of a type may be a function that reads it.
    """
    kinds, origin = get_args(kind), get_origin(kind)
    if origin is Annotated:
        return kinds[1](value) if callable(kinds[1]) else read_value(name, kinds[0], value)
    if origin is tuple and isinstance(value, list | tuple):
        if [*value] == [NONE]:
            return ()
        if kinds[0] in (int, float) and (joined := [x for x in value if isinstance(x, str) and "," in x]):
            raise setting_error(name, joined[0], "must be numbers with spaces between them, like 64 64")
        return tuple(read_value(name, kinds[0], element) for element in value)
    plain = _plain(value)
    if isinstance(plain, str):
        if plain == NONE and NoneType in kinds:
            return None
        if not {int, float}.isdisjoint({kind, *kinds}):
            if name.rpartition(".")[2].endswith("seconds") and plain[-1:].lower() in _POWERS:
                raise setting_error(name, value, "must be a number of seconds, like 600: k and m are for counts")
            plain = _count(plain)
    try:
        # Text stays text in the options of an environment.
        return msgspec.convert(plain, kind, strict=origin is dict, dec_hook=_path)
    except msgspec.ValidationError as error:
        # The last type of a union, besides None.
        last = kind if origin not in (Union, UnionType) else [other for other in kinds if other is not NoneType][-1]
        origin = get_origin(last)
        must_be = alternatives(get_args(last)) if origin is Literal else _MUST_BE.get(origin or last)
        raise setting_error(name, value, f"must be {must_be}" if must_be else str(error)) from error


def _plain(value: Any) -> Any:
    """`value` without a class of the caller or of NumPy, which other processes may not know."""
    if isinstance(value, Mapping):
        return {_plain(option): _plain(each) for option, each in value.items()}
    if isinstance(value, str):
        # An enumeration has another text for `str`.
        return str.__str__(value)
    return value.item() if getattr(value, "shape", None) == () else value


def _count(text: str) -> int | str:
    """2500 for 2.5k; the text itself if it is no count."""
    if match := _COUNT.fullmatch(text):
        digits, suffix, exponent = match.groups()
        power = _POWERS[suffix.lower()] if suffix else int(exponent or 0)
        number = Decimal(digits.replace(",", "").replace("_", "")).scaleb(power)
        if number == number.to_integral_value():
            return int(number)
    return text


def _path(_: type, value: Any) -> Path:
    # A shell leaves the ~ of --run-dir=~/runs to the command.
    if not isinstance(value, str | Path):
        raise TypeError("must be a path")
    return typed_path(str(value))


# ---- Names


def option_name(name: str) -> str:
    """A field or a setting as it is typed: --optimizer.learning-rate."""
    return f"--{name.replace('_', '-')}"


def similar(name: str, names: Collection[str]) -> list[str]:
    """The known names that an unknown one may stand for, at most three."""
    group, _, last = name.rpartition(".")
    if (meant := (SHORT_NAMES | _NAMES_ELSEWHERE).get(last, "")) in names:
        return [meant]
    # Names of the same group are compared by their last parts: as full names they are all similar.
    parts = {other: other.rpartition(".")[2] for other in names if group in ("", other.rpartition(".")[0])}
    same = [other for other in names if other.rpartition(".")[2] == last]
    near = get_close_matches(last, parts.values(), n=1)
    whole = [] if group and parts else get_close_matches(name, names, n=1)
    # A command's own options first.
    alike = sorted((other for other, part in parts.items() if part in near), key=lambda other: "." in other)
    return same[:3] or alike[:3] or whole


KINDS = {name: kind for name, (kind, _) in declared(RunConfig).items()}
"""The type of each setting by its full name."""
_SECTIONS = sorted({name.rpartition(".")[0] for name in KINDS} - {""})
