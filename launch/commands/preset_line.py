"""Lines like `train [PRESET] [SETTINGS]`: which preset they start from, and their help."""

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from launch.commands.arguments import option, options
from launch.commands.settings import ALIASES, filled, short_help
from launch.output import nearest
from launch.presets import DEFAULT_PRESET, PRESETS
from launch.presets.choice import preset_for
from launch.presets.written import ConfigFile, read_config_file
from launch.run.folder import check_imports
from shared.config import EnvironmentConfig, RunConfig
from shared.errors import ConfigurationError
from shared.registry import import_modules

# Ids have a version, a module or a namespace.
_ID = re.compile(r"-v\d+$|[:/]")

_HELP = """\
usage: tributary {command} [SETTINGS]

{purpose}

{settings}

{more}
"""


def spelt_out(arguments: Sequence[str]) -> list[str]:
    """A line with the whole names of its settings."""
    typed = [argument.partition("=") for argument in arguments]
    return [ALIASES.get(name, name) + equals + value for name, equals, value in typed]


def take_preset(arguments: list[str]) -> str | None:
    """Take the preset that a line begins with out of it; None if it begins with an option, or is empty.

    An environment's id in its place is put as the option that it is short for: the preset is that which fits it.

    Raises:
        ConfigurationError: it begins with another word.
    """
    if not arguments or arguments[0].startswith("-"):
        return None
    preset, environment_id = preset_or_environment(arguments.pop(0))
    if environment_id is not None:
        arguments[:0] = ["--environment.id", environment_id]
    return preset


def preset_or_environment(word: str) -> tuple[str | None, str | None]:
    """Which preset a word names, or else which environment by its id.

    Raises:
        ConfigurationError: there is no such preset, and it is no id.
    """
    if _ID.search(word):
        return None, word
    if word not in PRESETS:
        raise ConfigurationError(f"unknown preset {word}{nearest(word, PRESETS)}; see tributary presets")
    return word, None


def take_config_file(arguments: Sequence[str]) -> ConfigFile | None:
    """The file that a line names by `--config`, if it does.

    Raises:
        ConfigurationError: it cannot be read.
    """
    file = option(arguments, "--config")
    return None if file is None else read_config_file(Path(file))


def base_settings(named: str | None, file: ConfigFile | None, arguments: Sequence[str]) -> tuple[str, RunConfig]:
    """The preset that a line starts from, and the settings that it changes: the preset's, with those of a file.

    The modules that line and file name are imported: what they register may be what a preset is looked for.

    Raises:
        ConfigurationError: no preset is for the environment, the file has settings that cannot be, or a module cannot
            be imported, or may not be; see `check_imports`.
    """
    modules = named_modules(arguments)
    import_modules(modules)
    if file is not None and file.whole:
        config = file.over(RunConfig())
        if "--trust-imports" not in arguments:
            check_imports(config.environment, modules, "config", str(file.path))
        return named or file.preset or DEFAULT_PRESET, config
    if file is not None:
        import_modules(file.modules)
    preset = named or (file and file.preset) or unnamed_preset(arguments, file and file.environment_id)
    config = PRESETS[preset].config
    return preset, config if file is None else file.over(config)


def unnamed_preset(arguments: Sequence[str], environment_id: str | None = None) -> str:
    """The preset of a line that names none: the one for its environment, or the default.

    `environment_id` is that of a file, for a line that names none either.

    Raises:
        ConfigurationError: none is for its environment.
    """
    environment_id = option(arguments, "--environment.id") or environment_id
    fitting = None if environment_id is None else preset_for(environment_id)
    return fitting or DEFAULT_PRESET


def named_modules(arguments: Sequence[str]) -> tuple[str, ...]:
    """The modules that a line names for its environment."""
    environment_id = option(arguments, "--environment.id") or ""
    return EnvironmentConfig(id=environment_id, imports=options(arguments, "--environment.imports")).modules


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Whether a line asks for the short help."""
    return bool({"-h", "--help"} & set(arguments))


def help_page(command: str, purpose: str, preset: str, base: Any, kind: type, *, without: Collection[str] = ()) -> str:
    """The short help of a command whose arguments are the dataclass `kind`: settings with the values of `base`, but
    for those that are nothing to it, `without`."""
    words = f"{purpose} The settings that most runs change, with the values of the preset {preset}:"
    more = filled(f"tributary {command} --help-all shows every setting; docs/settings.md has them on one page.")
    return _HELP.format(command=command, purpose=filled(words), settings=short_help(base, kind, without), more=more)


def with_full_help(arguments: Sequence[str]) -> list[str]:
    """`--help-all` as `--help`, as the parser knows it."""
    return ["--help" if argument == "--help-all" else argument for argument in arguments]
