"""The line `tributary train …`: which preset or run it starts from, and what it changes there."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from launch.commands.arguments import option, parse
from launch.commands.preset_line import asks_for_help, help_page, take_preset, unnamed_preset, with_full_help
from launch.commands.seeds import parse_seeds, train_seeds
from launch.commands.train import TrainArguments, default_run_dir, train
from launch.output.exit_codes import EXIT_DONE
from launch.presets import DEFAULT_PRESET, PRESETS
from launch.presets.choice import advice_on_preset
from launch.run.folder import RunFolder
from launch.run.latest import run_path
from launch.run.storage import fetch
from shared.config import RunConfig
from shared.errors import ConfigurationError, setting_error

_PURPOSE = "Train an agent. Ctrl-C once finishes cleanly and saves, twice leaves at once."


def train_line(arguments: Sequence[str]) -> int:
    """Run `tributary train` with what is typed after it. Returns the exit code.

    Raises:
        ConfigurationError: it names no preset, no run, or settings that cannot be.
    """
    rest = list(arguments)
    named = take_preset(rest)
    run, start = option(rest, "--resume"), option(rest, "--start-from")
    if run is not None and start is not None:
        raise setting_error("start_from", start, f"starts a new run, and --resume {run} goes on with one: use one")
    unnamed = named is None and run is None and start is None
    preset = named or (unnamed_preset(rest) if unnamed else DEFAULT_PRESET)
    base = PRESETS[preset].config
    if start is not None and named is None:
        other = RunFolder(run_path(start))
        preset, base = other.outputs.name, _settings_of(other)
    if run is not None and "://" in run:
        url, run = run, str(default_run_dir(run.rstrip("/").rpartition("/")[2]))
        fetch(url, Path(run))
        rest = [run if argument == url else argument.replace(url, run) for argument in rest]
    if run is not None:
        if named is not None:
            raise ConfigurationError(
                f"preset {preset} with --resume {run}: a resumed run has its settings; name no preset"
            )
        folder = RunFolder(run_path(run))
        folder.check_goes_on()
        base = folder.read_config()
    if asks_for_help(rest):
        print(help_page("train [PRESET]", _PURPOSE, preset, base, TrainArguments), end="")
        return EXIT_DONE
    parsed = parse(TrainArguments, "train [PRESET]", with_full_help(rest), TrainArguments(config=base))
    if unnamed and preset != DEFAULT_PRESET:
        print(f"preset:       {preset}: {PRESETS[preset].description}")
    if parsed.seeds is None:
        try:
            return train(parsed, preset)
        except ConfigurationError as error:
            if preset not in PRESETS or run is not None:
                raise
            raise ConfigurationError(f"{error}{advice_on_preset(preset, parsed.config.environment.id)}") from error
    if run is not None:
        raise ConfigurationError(f"--seeds {parsed.seeds} with --resume {run}: resume each seed's run by itself")
    return train_seeds(parsed, parse_seeds(parsed.seeds), parsed.run_dir or default_run_dir(preset), preset)


def _settings_of(folder: RunFolder) -> RunConfig:
    """The settings of a run for a new one that starts from its weights. What belongs to the one run stays its own.

    Raises:
        ConfigurationError: the folder is not a run's, or its settings cannot be read.
    """
    config = folder.read_config("start_from")
    return replace(config, storage=None, record_arrivals=None, replay_arrivals=None)
