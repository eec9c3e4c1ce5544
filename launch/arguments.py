"""The arguments of a command, read by the types of the fields of a dataclass, such as `run_dir: Path | None = None`.

Not by argparse, which takes -1e-3 for an option, nor by tyro, whose message about a mistake is a box of ten lines and
whose import takes a third of the time of `--help`.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields
from decimal import Decimal
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from launch.output import check_can_be_written, typed_path
from launch.presets.settings_files import KINDS, NONE, SHORT_NAMES, similar
from shared.config import OptionValue, RunConfig
from shared.config.task import read_option
from shared.errors import ConfigurationError, alternatives, setting_error

_Value = TypeVar("_Value")
_Command = TypeVar("_Command")

_OPERAND = "operand"
Operand = Annotated[_Value, _OPERAND]
"""Type of a field that is given by its place on the line, without a name."""

HELP = ("-h", "--help", "--help-all")
ENVIRONMENT_OPTIONS = "environment.options"

_OPTION = re.compile(r"--([a-zA-Z][^=\s]*)(?:=(.*))?", re.DOTALL)
_SHORT_OPTION = re.compile(r"-([a-zA-Z][\w.-]*)")
# 40M, 2.5k, 1e6, 1,000,000: counts are long, and zeros are easily miscounted.
_COUNT = re.compile(r"([+-]?(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d+)?)(?:([km])|e\+?(\d{1,2}))?", re.IGNORECASE)
_POWERS = {"k": 3, "m": 6}
_MOST_LISTED = 12


class Fields(NamedTuple):
    """The types of what a command takes, by name: its own options, its operands, and the settings of a run.

    A field `config_file` is the option --config. With a field `config: RunConfig` every setting is an option.
    """

    options: dict[str, Any]
    operands: dict[str, Any]
    settings: dict[str, Any]


def fields_of(command: type) -> Fields:
    """What the dataclass of a command declares."""
    found = Fields({}, {}, {})
    for name, kind in get_type_hints(command, include_extras=True).items():
        if kind is RunConfig:
            found.settings.update(KINDS)
        elif _OPERAND in getattr(kind, "__metadata__", ()):
            found.operands[name] = kind
        else:
            found.options["config" if name == "config_file" else name] = kind
    return found


def parse(
    command: type[_Command], title: str, words: Sequence[str], program: str = "tributary"
) -> tuple[_Command, dict[str, Any]]:
    """An instance of the dataclass `command`, and the typed settings of the run by their full names.

    Args:
        command: the arguments; its field `config`, if any, keeps its default.
        title: name of the command, for messages that refer to `program TITLE --help`.
        words: what is typed after it. Requests for help are passed over.

    Raises:
        ConfigurationError: unknown options, invalid values, or missing or superfluous operands.
    """
    title = f"{program} {title}"
    own, operands, of_run = fields_of(command)
    options = {**of_run, **own}
    values, loose = _read_options(options, title, words)
    for word in loose:
        if dashed := _SHORT_OPTION.fullmatch(word):
            raise _unknown(word, dashed[1].replace("-", "_"), options, title)
    defaults = {field.name: field.default for field in fields(command)}  # type: ignore[arg-type]
    for name, kind in operands.items():
        if get_origin(get_args(kind)[0]) is tuple:
            values[name] = tuple(_read(name, _element(kind), word) for word in loose)
            loose = []
        elif loose:
            values[name] = _read(name, kind, loose.pop(0))
        elif defaults[name] is MISSING:
            raise ConfigurationError(f"{name.upper()}: is missing; see {title} --help")
    if loose:
        raise ConfigurationError(f"{loose[0]}: is one word too many; see {title} --help")
    settings = {name: values.pop(name) for name in of_run if name in values and name not in own}
    if "config" in values:
        values["config_file"] = values.pop("config")
    # Before an environment of the user changes to another folder.
    files = {name: values[name].absolute() for name in ("json", "output") if values.get(name) is not None}
    check_can_be_written(files.get("json"), "json")
    return command(**values | files), settings


def _read_options(options: dict[str, Any], title: str, words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The values of options of these types, and the words that belong to none."""
    values: dict[str, Any] = {}
    loose: list[str] = []
    left = deque(word for word in words if word not in HELP)

    def following(attached: str | None) -> Iterator[str]:
        """The values of an option: up to the next option."""
        if attached is not None:
            yield attached
        while left and not _OPTION.fullmatch(left[0]):
            yield left.popleft()

    while left:
        word = left.popleft()
        match = _OPTION.fullmatch(word)
        if match is None:
            loose.append(word)
            continue
        typed, attached = match.groups()
        name = typed.replace("-", "_")
        name = SHORT_NAMES.get(name, name)
        switched_off = re.sub(r"(^|\.)no_(?=[^.]+$)", r"\1", name)
        if name.startswith(f"{ENVIRONMENT_OPTIONS}.") and ENVIRONMENT_OPTIONS in options:
            pairs = [typed.partition(f"{ENVIRONMENT_OPTIONS}.")[2], *following(attached)]
            values.setdefault(ENVIRONMENT_OPTIONS, {}).update(_pairs(pairs))
        elif options.get(name) is bool:
            values[name] = _read(name, bool, "True" if attached is None else attached)
        elif name not in options and options.get(switched_off) is bool:
            values[switched_off] = not _read(switched_off, bool, "True" if attached is None else attached)
        elif name not in options:
            raise _unknown(word, name, options, title)
        elif name == ENVIRONMENT_OPTIONS:
            values.setdefault(name, {}).update(_pairs([*following(attached)]))
        elif get_origin(options[name]) is tuple:
            values[name] = tuple(_read(name, _element(options[name]), text) for text in following(attached))
        else:
            values[name] = _read(name, options[name], _one(name, attached, left))
    return values, loose


def option_name(name: str) -> str:
    """A field or a setting as it is typed: --optimizer.learning-rate."""
    return f"--{name.replace('_', '-')}"


def _one(name: str, attached: str | None, left: deque[str]) -> str:
    if attached is not None:
        return attached
    if not left or _OPTION.fullmatch(left[0]):
        raise ConfigurationError(f"{option_name(name)}: its value is missing")
    return left.popleft()


def _unknown(word: str, name: str, known: Mapping[str, Any], title: str) -> ConfigurationError:
    group = name.rpartition(".")[0]
    listed = [option_name(other) for other in known if not group or other.rpartition(".")[0] == group]
    if near := similar(name, known):
        advice = f"did you mean {' or '.join(map(option_name, near))}?"
    elif 0 < len(listed) <= _MOST_LISTED:
        advice = f"there are {', '.join(listed)}"
    else:
        advice = f"see {title} --help{'-all' if listed else ''}"
    return ConfigurationError(f"{word.partition('=')[0]}: there is no such option; {advice}")


def _element(kind: Any) -> Any:
    """The type of the elements of a tuple, which may be annotated."""
    return get_args(get_args(kind)[0] if get_origin(kind) is Annotated else kind)[0]


def _read(name: str, kind: Any, text: str) -> Any:
    """The value of a field from its text. The annotation of a type may be a function that reads it."""
    kinds = get_args(kind)
    match get_origin(kind):
        case origin if origin is Annotated:
            return kinds[1](text) if callable(kinds[1]) else _read(name, kinds[0], text)
        case origin if origin in (Union, UnionType):
            if text == NONE and NoneType in kinds:
                return None
            *others, last = [other for other in kinds if other is not NoneType]
            for other in others:
                with suppress(ConfigurationError):
                    return _read(name, other, text)
            return _read(name, last, text)
        case origin if origin is Literal:
            if text in kinds:
                return text
            raise setting_error(name, text, f"must be {alternatives(kinds)}")
    try:
        return _READERS[kind](text)
    except ValueError as error:
        raise setting_error(name, text, str(error)) from error


def _pairs(texts: Sequence[str]) -> dict[str, OptionValue]:
    if len(texts) % 2:
        raise setting_error(ENVIRONMENT_OPTIONS, " ".join(texts), "must be names and values, like length 5 goal far")
    return {name: read_option(value) for name, value in zip(texts[::2], texts[1::2], strict=True)}


def _count(text: str) -> int:
    match = _COUNT.fullmatch(text)
    if match is not None:
        number, suffix, exponent = match.groups()
        power = _POWERS[suffix.lower()] if suffix else int(exponent or 0)
        value = Decimal(number.replace(",", "").replace("_", "")).scaleb(power)
        # 1.5 is no count, and 1.0 is more likely a mistake than a 1.
        if value == value.to_integral_value() and ("." not in number or power):
            return int(value)
    raise ValueError("must be a whole number, like 20000, 20k, 2M or 2e4")


def _number(text: str) -> float:
    for read in (float, _count):
        with suppress(ValueError):
            return float(read(text))
    raise ValueError("must be a number, like 0.001, 1e-3 or 2M")


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("must be True or False")
    return text.lower() == "true"


_READERS: dict[Any, Callable[[str], Any]] = {
    int: _count,
    float: _number,
    bool: _truth,
    str: str,
    # A shell leaves the ~ of --run-dir=~/runs to the command.
    Path: typed_path,
}
