"""The help of commands, from the docstrings of their arguments."""

from collections.abc import Sequence
from dataclasses import MISSING, fields
from shutil import get_terminal_size
from textwrap import fill
from typing import Any, Literal, get_args, get_origin

from launch.arguments import HELP, fields_of, option_name
from launch.commands.settings import described, settings, shown
from launch.presets import DEFAULT_PRESET, PRESETS
from launch.presets.settings_files import SHORT_NAMES
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


def asks_for_help(words: Sequence[str]) -> bool:
    """Whether a line contains --help or --help-all."""
    return not set(HELP).isdisjoint(words)


def print_help(
    command: type,
    title: str,
    words: Sequence[str] = (),
    config: RunConfig = PRESETS[DEFAULT_PRESET].config,
    preset: str = DEFAULT_PRESET,
) -> None:
    """Print the help of a command with the dataclass `command`.

    Where settings are options, those that most runs change come first, with the values of `config`, which are the
    preset's. `--help-all` among the `words` shows all.
    """
    own, operands, of_run = fields_of(command)
    texts, defaults = described(command), {field.name: field.default for field in fields(command)}
    purpose, full = " ".join(str(command.__doc__).split()), not of_run or "--help-all" in words
    rows = []
    if of_run:
        which = "All settings" if full else "The settings that most runs change"
        purpose += f" {which}, with the values of the preset {preset}:"
        short = {name: f", or {option_name(alias)}" for alias, name in SHORT_NAMES.items()}
        rows = [
            (f"{setting.option} ({shown(setting.default)}){short.get(setting.name, '')}", setting.help)
            for setting in settings(config)
            if (full or setting.name in MOST_USED) and setting.name not in own
        ]
    places = {name: _place(name, kind, required=defaults[name] is MISSING) for name, kind in operands.items()}
    rows += [(place, texts[name]) for name, place in places.items() if texts[name]]
    for name, kind in own.items():
        name = "config_file" if name == "config" else name
        choices = f" {'|'.join(get_args(kind))}" if get_origin(kind) is Literal else ""
        default = defaults[name]
        # Flags are off by default, and None has no text.
        value = f" ({shown(default)})" if isinstance(default, str | int | float) and default is not False else ""
        rows.append((f"{option_name(name).removesuffix('-file')}{choices}{value}", texts[name]))
    print(" ".join(["usage: tributary", title, *places.values(), "[SETTINGS]" if of_run else "[OPTIONS]"]))
    print(f"\n{_filled(purpose)}\n")
    for name, text in rows:
        print(f"  {name}\n{_filled(text if full else text.split('. ')[0].rstrip('.') + '.', indent=6)}")
    if not full:
        more = f"tributary {title} --help-all shows every setting; docs/settings.md has them on one page."
        print(f"\n{_filled(more)}")


def _place(name: str, kind: Any, *, required: bool) -> str:
    """The name of an operand: RUN, RUN… or [PRESET]."""
    several = get_origin(get_args(kind)[0]) is tuple
    text = f"{name.removesuffix('s').upper()}…" if several else name.upper()
    return text if required else f"[{text}]"


def _filled(text: str, indent: int = 0) -> str:
    """A paragraph in lines of 120 columns, or of a narrower terminal's width. Options are not broken."""
    width = min(120, get_terminal_size((120, 24)).columns)
    space = " " * indent
    return fill(
        text, width, initial_indent=space, subsequent_indent=space, break_on_hyphens=False, break_long_words=False
    )
