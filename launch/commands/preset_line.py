"""Lines like `train [PRESET] [SETTINGS]`: which preset they start from, and their help."""

from collections.abc import Sequence
from textwrap import fill
from typing import Any

from launch.commands.arguments import nearest, option
from launch.commands.settings import short_help
from launch.presets import DEFAULT_PRESET, PRESETS
from launch.presets.choice import preset_for
from shared.errors import ConfigurationError

_HELP = """\
usage: tributary {command} [SETTINGS]

{purpose}

{settings}

tributary {command} --help-all shows every setting; docs/settings.md has them on one page.
"""


def take_preset(arguments: list[str]) -> str | None:
    """Take the preset that a line begins with out of it; None if it begins with an option, or is empty.

    Raises:
        ConfigurationError: it begins with another word.
    """
    if not arguments or arguments[0].startswith("-"):
        return None
    named = arguments.pop(0)
    if named not in PRESETS:
        raise ConfigurationError(f"unknown preset {named}{nearest(named, PRESETS)}; see tributary presets")
    return named


def unnamed_preset(arguments: Sequence[str]) -> str:
    """The preset of a line that names none: the one for its environment, or the default.

    Raises:
        ConfigurationError: none is for its environment.
    """
    environment_id = option(arguments, "--environment.id")
    fitting = None if environment_id is None else preset_for(environment_id)
    return fitting or DEFAULT_PRESET


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Whether a line asks for the short help."""
    return bool({"-h", "--help"} & set(arguments))


def help_page(command: str, purpose: str, preset: str, base: Any, kind: type) -> str:
    """The short help of a command whose arguments are the dataclass `kind`: settings with the values of `base`."""
    words = f"{purpose} The settings that most runs change, with the values of the preset {preset}:"
    return _HELP.format(command=command, purpose=fill(words, 120), settings=short_help(base, kind))


def with_full_help(arguments: Sequence[str]) -> list[str]:
    """`--help-all` as `--help`, as the parser knows it."""
    return ["--help" if argument == "--help-all" else argument for argument in arguments]
