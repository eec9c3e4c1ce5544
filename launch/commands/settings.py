"""Every setting of a run: its name, type, default and help, from the docstrings of `shared.config`.

`python -m launch.commands.settings` prints the page docs/settings.md.
"""

import ast
import inspect
import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from operator import attrgetter
from textwrap import wrap
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin

import msgspec

from launch.presets.settings_files import KINDS, NONE
from shared.config import OptionValue, RunConfig

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
nothing is typed `None`. This page is made by `make settings`.
"""


class Setting(NamedTuple):
    """One setting. `name` is its path in `RunConfig`, `kind` its type in words."""

    name: str
    kind: str
    default: Any
    help: str

    @property
    def option(self) -> str:
        """The option on the command line, like --actor.unroll-length."""
        return "--" + self.name.replace("_", "-")


def settings(part: Any, prefix: str = "") -> Iterator[Setting]:
    """All settings of a RunConfig in the order of their definition, with its values as their defaults."""
    texts = described(part.__class__)
    for field in fields(part):
        value = getattr(part, field.name)
        if is_dataclass(value):
            yield from settings(value, f"{prefix}{field.name}.")
        else:
            name = prefix + field.name
            yield Setting(name, _in_words(KINDS[name]), value, texts[field.name])


@cache
def described(kind: type) -> dict[str, str]:
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
    """docs/settings.md."""
    lines = [_PAGE_HEAD]
    section = None
    for setting in settings(RunConfig()):
        of = setting.name.rpartition(".")[0]
        if of != section:
            section = of
            part = attrgetter(of)(RunConfig()) if of else RunConfig()
            lines += [f"\n## {of or 'The run'}\n", f"{inspect.getdoc(type(part))}\n"]
            lines += ["| option | type | default | what it does |", "|---|---|---|---|"]
        cells = (f"`{setting.option}`", setting.kind, f"`{shown(setting.default)}`", setting.help)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def as_toml(config: RunConfig, preset: str | None) -> str:
    """All settings as a file for `--config`, each with its help as a comment."""
    lines = ['# For tributary train --config. Omitted settings keep the values of the preset; "None" is no value.']
    if preset is not None:
        lines.append(f'preset = "{preset}"')
    section = ""
    for setting in settings(config):
        of, _, name = setting.name.rpartition(".")
        if of != section:
            section = of
            lines += ["", f"[{of}]"]
        lines += [*wrap(setting.help, 120, initial_indent="# ", subsequent_indent="# ")]
        lines.append(f"{name} = {_toml(msgspec.to_builtins(setting.default))}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """A value in TOML, on one line. Its strings have the escapes of JSON."""
    match value:
        case None:
            return f'"{NONE}"'
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case bool():
            return str(value).lower()
        case int():
            return f"{value:_}" if abs(value) >= _LONG else str(value)
        case list() | tuple():
            return f"[{', '.join(map(_toml, value))}]"
        case dict():
            return f"{{{', '.join(f'{_toml(name)} = {_toml(inner)}' for name, inner in value.items())}}}"
    return repr(value)


def shown(value: Any) -> str:
    """A value of a setting in help texts."""
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return f"{value:,}" if type(value) is int and value >= _LONG else str(value)


if __name__ == "__main__":
    print(page(), end="")
