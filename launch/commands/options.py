"""Command lines: options by the types of dataclass fields (tyro parses them), a preset before them, and help."""

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass, replace
from decimal import Decimal
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from launch.commands.settings import ALIASES, filled, settings, short_help
from launch.output import typed_path
from launch.presets.settings_files import KINDS
from launch.request import (
    TrainRequest,
    base_settings,
    complete,
    preset_of_environment,
    preset_or_environment,
)
from shared.config import OptionValue, RunConfig
from shared.config.task import read_option
from shared.errors import setting_error

_Arguments = TypeVar("_Arguments")
_PresetArguments = TypeVar("_PresetArguments", bound="PresetArguments")

# 40M, 2.5k, 1e6, 1,000,000: counts are long, and zeros are easily miscounted.
_COUNT = re.compile(r"([+-]?(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d+)?)(?:([km])|e\+?(\d{1,2}))?", re.IGNORECASE)
_POWERS = {"k": 3, "m": 6}
_FLAG = re.compile(r"--((?:[\w-]+\.)*)(no-)?([\w-]+)=(.*)")
_READERS = ConstructorRegistry()
_OPTIONS, _OPTIONS_TYPE = "--environment.options", dict[str, OptionValue]

_HELP = """\
usage: tributary {command} [SETTINGS]

{purpose}

{settings}

{more}
"""


def parse(kind: type[_Arguments], command: str, arguments: Sequence[str], default: Any = None) -> _Arguments:
    """The arguments of `tributary COMMAND`, as an instance of the dataclass `kind`.

    Raises:
        SystemExit: with code 2 after tyro has printed what is wrong, or with code 0 after `--help`.
    """
    options = {} if default is None else {"default": default}
    spelt = [_flag_spelt_out(argument) for argument in _with_one_list_of_options(arguments)]
    parsed = tyro.cli(kind, prog=f"tributary {command}", args=spelt, registry=_READERS, **options)
    # Before an environment of the user changes to another folder.
    files = {
        name: getattr(parsed, name) for name in ("json", "output") if isinstance(getattr(parsed, name, None), Path)
    }
    parsed = replace(parsed, **{name: file.absolute() for name, file in files.items()}) if files else parsed
    return parsed if default is None else _with_options_added(parsed, default)


def option(arguments: Sequence[str], name: str) -> str | None:
    """The value of an option before the line is parsed: the defaults of other options may depend on it."""
    for i, argument in enumerate(arguments):
        if argument.startswith(f"{name}="):
            return argument.partition("=")[2]
        if argument == name and i + 1 < len(arguments):
            return arguments[i + 1]
    return None


def options(arguments: Sequence[str], name: str) -> tuple[str, ...]:
    """All values of an option that takes several, before the line is parsed."""
    found: list[str] = []
    for i, argument in enumerate(arguments):
        if argument.startswith(f"{name}="):
            found.append(argument.partition("=")[2])
        elif argument == name:
            found += takewhile(lambda word: not word.startswith("--"), arguments[i + 1 :])
    return tuple(found)


def spelt_out(arguments: Sequence[str]) -> list[str]:
    """The arguments with short option names replaced by the full ones."""
    typed = [argument.partition("=") for argument in arguments]
    return [ALIASES.get(name, name) + equals + value for name, equals, value in typed]


def take_preset(arguments: list[str]) -> str | None:
    """Remove the preset from the head of the arguments. Returns None where they begin with an option, or are empty.

    The id of an environment at the head becomes the option --environment.id.

    Raises:
        ConfigurationError: the head is neither a preset nor an id.
    """
    if not arguments or arguments[0].startswith("-"):
        return None
    preset, environment_id = preset_or_environment(arguments.pop(0))
    if environment_id is not None:
        arguments[:0] = ["--environment.id", environment_id]
    return preset


def unnamed_preset(arguments: Sequence[str]) -> str:
    """The preset for the environment that the arguments name, or the default."""
    return preset_of_environment(option(arguments, "--environment.id"))


def request_of(preset: str | None, arguments: Sequence[str], **more: Any) -> TrainRequest:
    """The request that the arguments make. `preset` was removed from them; `more` are further fields."""
    file = option(arguments, "--config")
    return TrainRequest(
        preset,
        environment_id=option(arguments, "--environment.id"),
        imports=options(arguments, "--environment.imports"),
        config=None if file is None else typed_path(file),
        trust_imports="--trust-imports" in arguments,
        changed=_typed_settings(arguments),
        **more,
    )


def _typed_settings(arguments: Sequence[str]) -> list[str]:
    """The names of the settings among the options: --environment.no-greyscale is environment.greyscale."""
    typed = [argument.partition("=")[0][2:].replace("-", "_") for argument in arguments if argument.startswith("--")]
    switched_off = [re.sub(r"(^|\.)no_(?=[^.]+$)", r"\1", name) for name in typed]
    return [name for name in dict.fromkeys([*typed, *switched_off]) if name in KINDS]


@dataclass(frozen=True)
class PresetArguments:
    """The first fields of a command that takes `[PRESET] [SETTINGS]` as `tributary train` does."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    config_file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    """File of settings, as in tributary train."""
    trust_imports: bool = False
    """With --config: import the modules that the file names, as in tributary train."""


def parse_with_preset(
    kind: type[_PresetArguments], command: str, arguments: Sequence[str]
) -> tuple[_PresetArguments, str] | None:
    """The arguments of `tributary COMMAND [PRESET] [SETTINGS]` and the name of the preset. None: help was printed.

    The settings are completed as those of `tributary train`.

    Raises:
        ConfigurationError: a preset, a file or a setting is wrong.
    """
    rest, title = spelt_out(arguments), f"{command} [PRESET]"
    parsed: list[_PresetArguments] = []

    def change(base: RunConfig) -> RunConfig:
        parsed.append(parse(kind, title, with_full_help(rest), kind(base)))
        return parsed[0].config

    request = request_of(take_preset(rest), rest, change=change)
    if asks_for_help(rest):
        base = base_settings(request)
        print(help_page(title, " ".join(str(kind.__doc__).split()), base.preset, base.config, kind), end="")
        return None
    run = complete(request)
    return replace(parsed[0], config=run.config), run.preset


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Whether the arguments contain --help."""
    return bool({"-h", "--help"} & set(arguments))


def help_page(command: str, purpose: str, preset: str, base: Any, kind: type) -> str:
    """The short help of a command with the options of the dataclass `kind`, and `base` as the values of settings."""
    words = f"{purpose} The settings that most runs change, with the values of the preset {preset}:"
    more = filled(f"tributary {command} --help-all shows every setting; docs/settings.md has them on one page.")
    return _HELP.format(command=command, purpose=filled(words), settings=short_help(base, kind), more=more)


def with_full_help(arguments: Sequence[str]) -> list[str]:
    """`--help-all` replaced by `--help`, which is the parser's name for it."""
    return ["--help" if argument == "--help-all" else argument for argument in arguments]


def _count(text: str) -> int:
    match = _COUNT.fullmatch(text)
    if match is not None:
        number, suffix, exponent = match.groups()
        power = _POWERS[suffix.lower()] if suffix else int(exponent or 0)
        value = Decimal(number.replace(",", "").replace("_", "")).scaleb(power)
        # 1.5 is no count, and 1.0 is more likely a mistake than a 1.
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
def _typed(field: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    readers: dict[Any, tuple[str, Callable[[str], Any], Any]] = {
        int: ("INT", _count, int),
        float: ("FLOAT", _number, int | float),
        # A shell leaves the ~ of --run-dir=~/runs to the command.
        Path: ("PATH", typed_path, Path),
    }
    if field.type not in readers:
        return None
    metavar, read, kinds = readers[field.type]
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda texts: read(texts[0]),
        is_instance=lambda value: isinstance(value, kinds),
        str_from_instance=lambda value: [str(value)],
    )


@_READERS.primitive_rule
def _option_values(field: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    if field.type != _OPTIONS_TYPE:
        return None
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME VALUE …",
        instance_from_str=_read_options,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda value: [str(part) for pair in value.items() for part in pair],
    )


def _read_options(texts: list[str]) -> dict[str, OptionValue]:
    if len(texts) % 2:
        raise ValueError(f"{' '.join(texts)}: must be names and values, like length 5 goal far")
    return {name: read_option(value) for name, value in zip(texts[::2], texts[1::2], strict=True)}


def _with_one_list_of_options(arguments: Sequence[str]) -> list[str]:
    """All `--environment.options NAME VALUE …` and `--environment.options.NAME VALUE` as one."""
    kept, pairs = list[str](), list[str]()
    words = list(arguments)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name != _OPTIONS and not name.startswith(f"{_OPTIONS}."):
            kept.append(word)
            continue
        pairs += [name.removeprefix(f"{_OPTIONS}.")] if name != _OPTIONS else []
        pairs += [value] if equals else []
        while words and not words[0].startswith("--"):
            pairs.append(words.pop(0))
    return [*kept, _OPTIONS, *pairs] if pairs else kept


def _with_options_added(parsed: Any, default: Any) -> Any:
    """The arguments with the options of the default beside those that were typed."""
    changes = {}
    for name, hint in get_type_hints(type(parsed)).items():
        mine, others = getattr(parsed, name), getattr(default, name)
        if hint == _OPTIONS_TYPE:
            changes[name] = {**others, **mine}
        elif is_dataclass(mine) and type(mine) is type(others):
            changes[name] = _with_options_added(mine, others)
    return replace(parsed, **{name: value for name, value in changes.items() if value != getattr(parsed, name)})


def _flag_spelt_out(argument: str) -> str:
    """`--flag=True` as `--flag`, `--flag=False` as `--no-flag`: tyro's flags take no value, and come in such pairs."""
    match = _FLAG.fullmatch(argument)
    if match is None:
        return argument
    section, no, name, value = match.groups()
    if value.lower() not in ("true", "false"):
        flags = {setting.name for setting in settings(RunConfig()) if isinstance(setting.default, bool)}
        if (flag := (section + name).replace("-", "_")) in flags:
            raise setting_error(flag, value, "must be True or False")
        return argument
    return f"--{section}{'' if (value.lower() == 'true') != bool(no) else 'no-'}{name}"
