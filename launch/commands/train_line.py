"""The line `tributary train …`: which preset or run it starts from, and what it changes there."""

from collections.abc import Sequence
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
from shared.errors import ConfigurationError

_PURPOSE = "Train an agent. Ctrl-C once finishes cleanly and saves, twice leaves at once."


def train_line(arguments: Sequence[str]) -> int:
    """Run `tributary train` with what is typed after it. Returns the exit code.

    Raises:
        ConfigurationError: it names no preset, no run, or settings that cannot be.
    """
    rest = list(arguments)
    named, run = take_preset(rest), option(rest, "--resume")
    preset = named or (DEFAULT_PRESET if run is not None else unnamed_preset(rest))
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
    if asks_for_help(rest):
        print(help_page("train [PRESET]", _PURPOSE, preset, base, TrainArguments), end="")
        return EXIT_DONE
    parsed = parse(TrainArguments, "train [PRESET]", with_full_help(rest), TrainArguments(config=base))
    if named is None and preset != DEFAULT_PRESET:
        print(f"preset:       {preset}: {PRESETS[preset].description}")
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
