"""Every setting of a run: its name, type, default and help, from the docstrings of `shared.config`.

They are printed by `--help`, as the page docs/settings.md (`python -m launch.settings.help`), and as a file for
`--config`.
"""

import ast
import inspect
import json
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from itertools import groupby
from operator import attrgetter
from shutil import get_terminal_size
from textwrap import fill, wrap
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin

import msgspec

from launch.presets import DEFAULT_PRESET, PRESETS
from launch.settings.files import KINDS, NONE, SHORT_NAMES, option_name
from launch.settings.parse import fields_of
from shared.config import OptionValue, RunConfig

# The settings that most runs change, in `--help`. `--help-all` and docs/settings.md have all.
MOST_USED = (
    "actors",
    "total_frames",
    "stop_at_return",
    "stop_measure",
    "stop_after_seconds",
    "seed",
    "address",
    "environment.id",
    "network.name",
    "method.name",
    "optimizer.learning_rate",
    "learner.agent_steps_per_update",
    "actor.total_environments",
    "actor.unroll_length",
    "evaluation.every_frames",
)
# Larger numbers are printed with separators.
_LONG = 10_000

_PAGE_HEAD = """\
# Settings

Each setting of `tributary train`, by its name on the command line. The defaults are those of `RunConfig`; a preset
changes some of them (`tributary config PRESET` prints what it has, as [a file](runs.md#settings-in-a-file) for
`--config`). Counts can be written as 40000000, 40,000,000, 40M or 4e7. `--env`, `--lr` and `--frames` are short for
`--environment.id`, `--optimizer.learning-rate` and `--total-frames`. A bool is switched on by its name and off by `no-`
before its last part: `--environment.no-clip-rewards`, or `--environment.clip-rewards=False`. Several values stand one
after another (`--network.hidden-sizes 64 64`), options as names and values (`--environment.options length 5`), and
`None` stands for no value. This page is made by `make settings`.
"""


class Setting(NamedTuple):
    """One setting. `name` is its path in `RunConfig`, `kind` its type in words."""

    name: str
    kind: str
    default: Any
    help: str


def settings(config: RunConfig) -> Iterator[Setting]:
    """All settings in the order of their definition, with the values of `config` as their defaults."""
    for name, kind in KINDS.items():
        section, _, field = name.rpartition(".")
        part: Any = attrgetter(section)(config) if section else config
        yield Setting(name, _in_words(kind), getattr(part, field), docstrings_of(part.__class__)[field])


def _sections(config: RunConfig) -> Iterator[tuple[str, Iterator[Setting]]]:
    """The settings by section, first those without one."""
    return groupby(settings(config), lambda setting: setting.name.rpartition(".")[0])


@cache
def docstrings_of(kind: type) -> dict[str, str]:
    """The docstring of each field of a dataclass, from the sources of its classes: Python discards them."""
    texts: dict[str, str] = {}
    for each in filter(is_dataclass, reversed(kind.__mro__)):
        body = ast.parse(inspect.getsource(each)).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, following in zip(body.body, [*body.body[1:], None], strict=True):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                text = ""
                if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                    text = " ".join(str(following.value.value).split())
                texts[statement.target.id] = text
    return texts


def _in_words(kind: Any) -> str:
    """A type in words: `Literal['a', 'b'] | None` as `a, b or None`, `tuple[int, ...]` as `several int`."""
    if kind == dict[str, OptionValue]:
        return "names and values"
    match get_origin(kind), get_args(kind):
        case (origin, kinds) if origin is Literal:
            return ", ".join(kinds)
        case (origin, (first, *_)) if origin is tuple:
            return f"several {_in_words(first)}"
        case (_, kinds) if kinds:
            return " or ".join(map(_in_words, kinds))
    return "None" if kind is NoneType else kind.__name__


def page() -> str:
    lines = [_PAGE_HEAD]
    for section, group in _sections(RunConfig()):
        part = attrgetter(section)(RunConfig()) if section else RunConfig()
        lines += [f"\n## {section or 'The run'}\n", f"{inspect.getdoc(type(part))}\n"]
        lines += ["| option | type | default | what it does |", "|---|---|---|---|"]
        for setting in group:
            cells = (f"`{option_name(setting.name)}`", setting.kind, f"`{value_text(setting.default)}`", setting.help)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def as_toml(config: RunConfig, preset: str | None) -> str:
    """All settings as a file for `--config`, each with its help as a comment."""
    lines = ['# For tributary train --config. Omitted settings keep the values of the preset; "None" is no value.']
    if preset is not None:
        lines.append(f'preset = "{preset}"')
    for section, group in _sections(config):
        lines += ["", f"[{section}]"] if section else []
        for setting in group:
            lines += wrap(setting.help, 120, initial_indent="# ", subsequent_indent="# ")
            name = setting.name.rpartition(".")[2]
            lines.append(f"{name} = {_toml(msgspec.to_builtins(setting.default))}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """A value in TOML, on one line. Its strings have the escapes of JSON."""
    match value:
        case None:
            return f'"{NONE}"'
        case int() if abs(value) >= _LONG:
            return f"{value:_}"
        case list() | tuple():
            return f"[{', '.join(map(_toml, value))}]"
        case dict():
            return f"{{{', '.join(f'{_toml(name)} = {_toml(inner)}' for name, inner in value.items())}}}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def value_text(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return f"{value:,}" if type(value) is int and value >= _LONG else str(value)


def print_help(command: type, title: str, words: Sequence[str]) -> None:
    """Print the help of a command with the dataclass `command`.

    Where settings are options, those that most runs change come first, with the values of the preset among the `words`.
    `--help-all` shows all.
    """
    own_options, operands, of_run = fields_of(command)
    texts, defaults = docstrings_of(command), {field.name: field.default for field in fields(command)}
    purpose, full = " ".join(str(command.__doc__).split()), not of_run or "--help-all" in words
    rows = []
    if of_run:
        preset = next(filter(PRESETS.__contains__, words), DEFAULT_PRESET)
        which = "All settings" if full else "The settings that most runs change"
        purpose += f" {which}, with the values of the preset {preset}:"
        short = {name: f", or {option_name(alias)}" for alias, name in SHORT_NAMES.items()}
        rows = [
            (f"{option_name(setting.name)} ({value_text(setting.default)}){short.get(setting.name, '')}", setting.help)
            for setting in settings(PRESETS[preset].config)
            if (full or setting.name in MOST_USED) and setting.name not in own_options
        ]
    # The names of operands: RUN, RUN… or [PRESET].
    places = {}
    for name, kind in operands.items():
        several = get_origin(get_args(kind)[0]) is tuple
        place = f"{name.removesuffix('s').upper()}…" if several else name.upper()
        places[name] = place if defaults[name] is MISSING else f"[{place}]"
    rows += [(place, texts[name]) for name, place in places.items() if texts[name]]
    for name, kind in own_options.items():
        words = [word for part in (kind, *get_args(kind)) if get_origin(part) is Literal for word in get_args(part)]
        choices = f" {'|'.join([*words, *['N'] * (int in get_args(kind))])}" if words else ""
        default = defaults[name]
        # Flags are off by default, and None has no text.
        value = f" ({value_text(default)})" if isinstance(default, str | int | float) and default is not False else ""
        rows.append((f"{option_name(name)}{choices}{value}", texts[name]))
    print(" ".join(["usage: tributary", title, *places.values(), "[SETTINGS]" if of_run else "[OPTIONS]"]))
    print(f"\n{_filled(purpose)}\n")
    for name, text in rows:
        print(f"  {name}\n{_filled(text if full else text.split('. ')[0].rstrip('.') + '.', indent=6)}")
    if not full:
        more = f"tributary {title} --help-all shows every setting; docs/settings.md has them on one page."
        print(f"\n{_filled(more)}")


def _filled(text: str, indent: int = 0) -> str:
    """A paragraph in lines of 120 columns, or of a narrower terminal's width. Options are not broken."""
    width = min(120, get_terminal_size((120, 24)).columns)
    space = " " * indent
    return fill(
        text, width, initial_indent=space, subsequent_indent=space, break_on_hyphens=False, break_long_words=False
    )


if __name__ == "__main__":
    print(page(), end="")
