"""The arguments of a command, read by the types of the fields of a dataclass, such as `run_dir: Path | None = None`.

Not by argparse, which takes -1e-3 for an option, nor by tyro, whose message about a mistake is a box of ten lines and
whose import takes a third of the time of `--help`.
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from launch.files import check_can_be_written
from launch.settings.files import KINDS, SHORT_NAMES, option_name, read_value, similar
from shared.config.task import read_option
from shared.errors import ConfigurationError, setting_error

_Value = TypeVar("_Value")
_Command = TypeVar("_Command")

_OPERAND = "operand"
Operand = Annotated[_Value, _OPERAND]
"""Type of a field that is given by its place on the line, without a name."""
_OF_RUN = "settings of a run"
Settings = Annotated[dict[str, Any], _OF_RUN]
"""Type of a field that takes all settings of a run, by their full names."""

HELP = ("-h", "--help", "--help-all")
OPTIONS = [name for name, kind in KINDS.items() if get_origin(kind) is dict]
"""The settings that are names and values."""

_OPTION = re.compile(r"--([a-zA-Z][^=\s]*)(?:=(.*))?", re.DOTALL)
_SHORT_OPTION = re.compile(r"-([a-zA-Z][\w.-]*)")


def fields_of(command: type) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The types of a command's own options, of its operands and of the settings of a run, by name.

    With a field of the type `Settings` every setting is an option.
    """
    options, operands, settings = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    for name, kind in get_type_hints(command, include_extras=True).items():
        marks = getattr(kind, "__metadata__", ())
        if _OF_RUN in marks:
            settings = KINDS
        elif _OPERAND in marks:
            operands[name] = kind
        else:
            options[name] = kind
    return options, operands, settings


def parse(command: type[_Command], title: str, words: Sequence[str]) -> _Command:
    """An instance of the dataclass `command`.

    Args:
        command: the arguments; a field `settings` of the type `Settings` gets the typed settings of the run.
        title: name of the command, for messages that refer to `tributary TITLE --help`.
        words: the line after the command. Requests for help are passed over.

    Raises:
        ConfigurationError: unknown options, invalid values, or missing or superfluous operands.
    """
    title = f"tributary {title}"
    own_options, operands, of_run = fields_of(command)
    options = {**of_run, **own_options}
    values, loose = _read_options(options, title, words)
    for word in loose:
        if dashed := _SHORT_OPTION.fullmatch(word):
            raise _unknown(word, dashed[1].replace("-", "_"), options, title)
    defaults = {field.name: field.default for field in fields(command)}  # type: ignore[arg-type]
    for name, kind in operands.items():
        several = get_origin(get_args(kind)[0]) is tuple
        if loose:
            values[name] = read_value(name, kind, loose if several else loose[0])
            loose = [] if several else loose[1:]
        elif defaults[name] is MISSING:
            raise ConfigurationError(f"{name.upper()} is missing; see {title} --help")
    if loose:
        raise ConfigurationError(f"{loose[0]}: unexpected argument; see {title} --help")
    if of_run:
        values["settings"] = {name: values.pop(name) for name in of_run if name in values and name not in own_options}
    # Before an environment of the user changes to another folder.
    files = {name: values[name].absolute() for name in ("json", "output") if values.get(name) is not None}
    check_can_be_written(files.get("json"), "json")
    return command(**values | files)


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
        if options.get(name) is bool:
            values[name] = _switch(name, attached, left)
        elif name not in options and options.get(switched_off) is bool:
            values[switched_off] = not _switch(switched_off, attached, left)
        elif name not in options:
            raise _unknown(word, name, options, title)
        else:
            values[name] = _value(name, options[name], following(attached), values.get(name))
    return values, loose


def _value(name: str, kind: Any, texts: Iterator[str], before: Any) -> Any:
    """The value of an option; `before` is that of the same option, typed earlier in the line."""
    if name in OPTIONS:
        words = [*texts]
        if len(words) % 2:
            raise setting_error(name, " ".join(words), "must be names and values, like length 5 goal far")
        named = zip(words[::2], words[1::2], strict=True)
        return {**(before or {}), **{option: read_option(value) for option, value in named}}
    if get_origin(kind) is tuple:
        more = read_value(name, kind, [*texts])
        # An option that is typed again replaces numbers, and adds names, such as wrappers; None removes them.
        adds = more and get_args(kind)[0] not in (int, float)
        return (*(before or ()), *more) if adds else more
    text = next(texts, None)
    if text is None:
        raise ConfigurationError(f"{option_name(name)}: the value is missing")
    return read_value(name, kind, text)


def _switch(name: str, attached: str | None, left: deque[str]) -> bool:
    """The value of a switch: attached to it, or the next word where that is True or False; else True."""
    if attached is None:
        attached = left.popleft() if left and left[0].lower() in ("true", "false") else "True"
    return bool(read_value(name, bool, attached))


def _unknown(word: str, name: str, options: Mapping[str, Any], title: str) -> ConfigurationError:
    near = similar(name, options)
    advice = f"did you mean {' or '.join(map(option_name, near))}?" if near else f"see {title} --help-all"
    return ConfigurationError(f"{word.partition('=')[0]}: there is no such option; {advice}")
