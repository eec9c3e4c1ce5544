"""What is typed after a command, read by the types of the fields that it is for. tyro does the work."""

import contextlib
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from decimal import Decimal
from itertools import takewhile
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from launch.commands.mistakes import in_one_line
from shared.config import OptionValue
from shared.config.task import read_option
from shared.errors import ConfigurationError, setting_error

_Arguments = TypeVar("_Arguments")

# 40M, 2.5k, 1e6, 1,000,000: counts are long, and zeros are easily miscounted.
_COUNT = re.compile(r"([+-]?(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d+)?)(?:([km])|e\+?(\d{1,2}))?", re.IGNORECASE)
_POWERS = {"k": 3, "m": 6}
_TRUTH = {"true": True, "false": False}
_READERS = ConstructorRegistry()


def parse(kind: type[_Arguments], command: str, arguments: Sequence[str], default: Any = None) -> _Arguments:
    """The arguments of `tributary COMMAND`, as an instance of the dataclass `kind`.

    Raises:
        ConfigurationError: they are not such arguments; what tyro prints of the mistake, in one line.
    """
    options = {} if default is None else {"default": default}
    spelt = _with_flags_spelt_out(kind, arguments)
    captured = io.StringIO()
    try:
        with contextlib.redirect_stderr(captured):
            return tyro.cli(kind, prog=f"tributary {command}", args=spelt, registry=_READERS, **options)
    except SystemExit as exit_:
        if exit_.code in (0, None):
            raise
        known = [name for name, _ in _names(kind)]
        raise ConfigurationError(in_one_line(captured.getvalue(), command.partition(" [")[0], known)) from None


def option(arguments: Sequence[str], name: str) -> str | None:
    """What is typed for an option, before the arguments are parsed: their defaults may depend on it."""
    for i, argument in enumerate(arguments):
        if argument.startswith(f"{name}="):
            return argument.partition("=")[2]
        if argument == name and i + 1 < len(arguments):
            return arguments[i + 1]
    return None


def options(arguments: Sequence[str], name: str) -> tuple[str, ...]:
    """All that is typed for an option that takes several words, before the arguments are parsed."""
    found: list[str] = []
    for i, argument in enumerate(arguments):
        if argument.startswith(f"{name}="):
            found.append(argument.partition("=")[2])
        elif argument == name:
            found += takewhile(lambda word: not word.startswith("--"), arguments[i + 1 :])
    return tuple(found)


def _count(text: str) -> int:
    match = _COUNT.fullmatch(text)
    if match is not None:
        number, suffix, exponent = match.groups()
        power = _POWERS[suffix.lower()] if suffix else int(exponent or 0)
        value = Decimal(number.replace(",", "").replace("_", "")).scaleb(power)
        # 1.5 is none, nor is 1.0: whoever writes a point means something else.
        if value == value.to_integral_value() and ("." not in number or power):
            return int(value)
    raise ValueError(f"{text}: must be a whole number, like 20000, 20k, 2M or 2e4")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        with contextlib.suppress(ValueError):
            return float(_count(text))
        raise ValueError(f"{text}: must be a number, like 0.001, 1e-3 or 2M") from None


@_READERS.primitive_rule
def _counts(field: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    return _reader("INT", _count, lambda value: isinstance(value, int)) if field.type is int else None


@_READERS.primitive_rule
def _numbers(field: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    return _reader("FLOAT", _number, lambda value: isinstance(value, int | float)) if field.type is float else None


@_READERS.primitive_rule
def _option_values(field: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    if field.type != OptionValue:
        return None
    return _reader("VALUE", read_option, lambda value: isinstance(value, str | int | float))


def _reader(metavar: str, read: Any, is_instance: Any) -> PrimitiveConstructorSpec:
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda texts: read(texts[0]),
        is_instance=is_instance,
        str_from_instance=lambda value: [str(value)],
    )


def _with_flags_spelt_out(kind: type, arguments: Sequence[str]) -> list[str]:
    """`--flag=True` as `--flag`, `--flag=False` as `--no-flag`: tyro's flags take no value, and come in such pairs."""
    flags = {name for name, hint in _names(kind) if hint is bool}
    spelt = []
    for argument in arguments:
        typed, _, value = argument.partition("=")
        section, dot, name = typed.removeprefix("--").replace("_", "-").rpartition(".")
        flag = section + dot + name.removeprefix("no-")
        if argument.startswith("--") and "=" in argument and flag in flags:
            if value.lower() not in _TRUTH:
                raise setting_error(flag, value, "must be True or False")
            on = _TRUTH[value.lower()] != name.startswith("no-")
            argument = f"--{section}{dot}{'' if on else 'no-'}{name.removeprefix('no-')}"
        spelt.append(argument)
    return spelt


def _names(kind: type, section: str = "") -> Iterator[tuple[str, Any]]:
    """The names of a dataclass's fields as they are typed, and their types."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        marks: Sequence[Any] = ()
        if get_origin(hint) is Annotated:
            hint, *marks = get_args(hint)
        if isinstance(hint, type) and is_dataclass(hint):
            unnamed = any(getattr(mark, "name", None) == "" for mark in marks)
            yield from _names(hint, section if unnamed else f"{section}{name.replace('_', '-')}.")
        else:
            yield section + name.replace("_", "-"), hint
