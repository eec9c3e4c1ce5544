"""The line `tributary train …`: which preset or run it starts from, and what it changes there."""

from collections.abc import Sequence
from pathlib import Path

from launch.commands.arguments import nearest, option, parse
from launch.commands.seeds import parse_seeds, train_seeds
from launch.commands.settings import short_help
from launch.commands.train import TrainArguments, default_run_dir, train
from launch.output.exit_codes import EXIT_DONE
from launch.presets import DEFAULT_PRESET, PRESETS
from launch.presets.choice import advice_on_preset, preset_for
from launch.run.folder import RunFolder
from launch.run.latest import run_path
from launch.run.storage import fetch
from shared.errors import ConfigurationError

_HELP = """\
usage: tributary train [PRESET] [SETTINGS]

Train an agent. Ctrl-C once finishes cleanly and saves, twice leaves at once. The settings that most runs change, with
the values of the preset {preset}:

{settings}

tributary train [PRESET] --help-all shows every setting; docs/settings.md has them on one page.
"""


def train_line(arguments: Sequence[str]) -> int:
    """Run `tributary train` with what is typed after it. Returns the exit code.

    Raises:
        ConfigurationError: it names no preset, no run, or settings that cannot be.
    """
    rest = list(arguments)
    named = rest.pop(0) if rest and not rest[0].startswith("-") else None
    if named is not None and named not in PRESETS:
        raise ConfigurationError(f"unknown preset {named}{nearest(named, PRESETS)}; see tributary presets")
    run, environment_id = option(rest, "--resume"), option(rest, "--environment.id")
    fitting = preset_for(environment_id) if environment_id is not None and named is None and run is None else None
    preset = named or fitting or DEFAULT_PRESET
    base = PRESETS[preset].config
    if run is not None and "://" in run:
        url, run = run, str(default_run_dir(run.rstrip("/").rpartition("/")[2]))
        fetch(url, Path(run))
        rest = [run if argument == url else argument.replace(url, run) for argument in rest]
    if run is not None:
        if named is not None:
            raise ConfigurationError(
                f"preset {preset} with --resume {run}: a resumed run has its settings; name no preset"
            )
        base = RunFolder(run_path(run)).read_config()
    if {"-h", "--help"} & set(rest):
        print(_HELP.format(preset=preset, settings=short_help(base, TrainArguments)), end="")
        return EXIT_DONE
    rest = ["--help" if argument == "--help-all" else argument for argument in rest]
    parsed = parse(TrainArguments, "train [PRESET]", rest, TrainArguments(config=base))
    if fitting is not None and fitting != DEFAULT_PRESET:
        print(f"preset:       {fitting}: {PRESETS[fitting].description}")
    if parsed.seeds is None:
        try:
            return train(parsed, preset)
        except ConfigurationError as error:
            if run is not None:
                raise
            raise ConfigurationError(f"{error}{advice_on_preset(preset, parsed.config.environment.id)}") from error
    if run is not None:
        raise ConfigurationError(f"--seeds {parsed.seeds} with --resume {run}: resume each seed's run by itself")
    folder = parsed.run_dir or default_run_dir(preset)
    return train_seeds(parsed.config, parse_seeds(parsed.seeds), parsed.side_by_side, folder, preset, parsed.json)
