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
from shutil import get_terminal_size
from textwrap import fill, wrap
from typing import Any, Literal, NamedTuple, get_origin

import msgspec

from launch.presets.settings_files import NONE, SHORT_NAMES
from shared.config import RunConfig

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
    "learner.gradients_per_update",
    "actor.environments",
    "actor.unroll_length",
    "evaluation.every_frames",
)

ALIASES = {f"--{short}": f"--{name.replace('_', '-')}" for short, name in SHORT_NAMES.items()}
"""Short option names, and the options that they stand for."""

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
    """One setting. `name` is its path in `RunConfig`, `kind` its annotation as text."""

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
    described = _described(part.__class__)
    for field in fields(part):
        value = getattr(part, field.name)
        if is_dataclass(value):
            yield from settings(value, f"{prefix}{field.name}.")
        else:
            kind, text = described[field.name]
            yield Setting(prefix + field.name, kind, value, text)


@cache
def _described(kind: type) -> dict[str, tuple[str, str]]:
    """The annotation and the docstring of each field of a dataclass, from its source: Python discards the latter."""
    described = {}
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    for statement, following in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = ""
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                text = " ".join(str(following.value.value).split())
            annotation: ast.expr = statement.annotation
            alias = getattr(inspect.getmodule(kind), annotation.id, None) if isinstance(annotation, ast.Name) else None
            if get_origin(alias) is Literal:
                annotation = ast.parse(str(alias).removeprefix("typing."), mode="eval").body
            described[statement.target.id] = (_in_words(annotation), text)
    return described


def _in_words(annotation: ast.expr) -> str:
    """A type in words: `Literal['a', 'b'] | None` as `a, b or None`, `tuple[int, ...]` as `several int`."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated":
        assert isinstance(annotation.slice, ast.Tuple)
        return _in_words(annotation.slice.elts[0])
    if isinstance(annotation, ast.BinOp):
        return f"{_in_words(annotation.left)} or {_in_words(annotation.right)}"
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        names = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        return ", ".join(str(ast.literal_eval(name)) for name in names)
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "tuple":
        assert isinstance(annotation.slice, ast.Tuple)
        kinds = [_in_words(kind) for kind in annotation.slice.elts]
        return f"several {kinds[0]}" if kinds[1] == "..." else " ".join(kinds)
    return ast.unparse(annotation)


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
        cells = (f"`{setting.option}`", setting.kind, f"`{_shown(setting.default)}`", setting.help)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def short_help(config: RunConfig, command: type) -> str:
    """The settings in `MOST_USED` with the values of `config`, and the options of the command itself, which are the
    fields of the dataclass `command`."""
    known = {setting.name: setting for setting in settings(config)}
    short = {option: f", or {alias}" for alias, option in ALIASES.items()}
    shown = [known[name] for name in MOST_USED]
    rows = [(f"{s.option} ({_shown(s.default)}){short.get(s.option, '')}", s.help) for s in shown]
    # The option --config is the field config_file: config is the settings themselves.
    defaults = {field.name: field.default for field in fields(command)}
    for name, (_, text) in _described(command).items():
        if name != "config":
            default = defaults[name]
            # Flags are off by default, and None has no text.
            value = f" ({_shown(default)})" if isinstance(default, str | int | float) and default is not False else ""
            rows.append((f"--{name.removesuffix('_file').replace('_', '-')}{value}", text))
    return "\n".join(f"  {name}\n{filled(_first_sentence(text), indent=6)}" for name, text in rows)


def filled(text: str, indent: int = 0) -> str:
    """A paragraph in lines of 120 columns, or of a narrower terminal's width. Options are not broken."""
    width = min(120, get_terminal_size((120, 24)).columns)
    space = " " * indent
    return fill(
        text, width, initial_indent=space, subsequent_indent=space, break_on_hyphens=False, break_long_words=False
    )


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


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return f"{value:,}" if type(value) is int and value >= _LONG else str(value)


def _first_sentence(text: str) -> str:
    return text.split(". ")[0].rstrip(".") + "."


if __name__ == "__main__":
    print(page(), end="")
