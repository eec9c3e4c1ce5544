"""The line `tributary train …`: which preset or run it starts from, and what it changes there."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from launch.commands.arguments import option, parse
from launch.commands.detach import train_detached
from launch.commands.preset_line import (
    asks_for_help,
    base_settings,
    help_page,
    named_modules,
    spelt_out,
    take_config_file,
    take_preset,
    with_full_help,
)
from launch.commands.seeds import parse_seeds, train_seeds
from launch.commands.train import TrainArguments, train
from launch.output import EXIT_DONE
from launch.presets import DEFAULT_PRESET, PRESETS
from launch.presets.choice import advice_on_preset, preset_for
from launch.presets.written import for_another_run
from launch.run.folder import RunFolder
from launch.run.saving import fetch
from launch.run.seeds_note import SeveralSeeds, read_seeds
from launch.run.status import default_run_dir, run_path
from shared.config import RunConfig
from shared.errors import ConfigurationError, setting_error

_SUBMIT = "ray job submit -- tributary train ... --address auto"
_PURPOSE = "Train an agent. Ctrl-C once finishes cleanly and saves, twice leaves at once."


def train_line(arguments: Sequence[str]) -> int:
    """Run `tributary train` with what is typed after it. Returns the exit code.

    Raises:
        ConfigurationError: it names no preset, no run, or settings that cannot be.
    """
    rest = spelt_out(arguments)
    trust = "--trust-imports" in rest
    named = take_preset(rest)
    run, start = option(rest, "--resume"), option(rest, "--start-from")
    file = take_config_file(rest)
    if run is not None and start is not None:
        raise setting_error("start_from", start, f"starts a new run, and --resume {run} goes on with one: use one")
    if run is not None and file is not None:
        raise setting_error("config", file.path, f"--resume {run} has its settings: type those that it is to change")
    if run is not None and named is not None:
        raise ConfigurationError(f"preset {named} with --resume {run}: a resumed run has its settings; name no preset")
    from_preset = named is not None or (file is not None and file.preset is not None)
    several: SeveralSeeds | None = None
    if run is not None:
        if "://" in run:
            url, run = run, str(default_run_dir(run.rstrip("/").rpartition("/")[2]))
            fetch(url, Path(run))
            rest = [run if argument == url else argument.replace(url, run) for argument in rest]
        folder = RunFolder(run_path(run))
        folder.check_goes_on()
        several = read_seeds(folder.path, trust_imports=trust, named_modules=named_modules(rest))
        preset = DEFAULT_PRESET if several is None else several.preset
        if several is None:
            base = folder.read_config(trust_imports=trust, named_modules=named_modules(rest))
        else:
            base = several.config
    elif start is not None and not from_preset:
        other = RunFolder(run_path(start))
        preset, base = (
            other.outputs.name,
            settings_to_start_from(other, trust_imports=trust, named_modules=named_modules(rest)),
        )
        base = base if file is None else file.over(base)
    else:
        preset, base = base_settings(named, file, rest)
    if asks_for_help(rest):
        print(help_page("train [PRESET]", _PURPOSE, preset, base, TrainArguments), end="")
        return EXIT_DONE
    parsed = parse(TrainArguments, "train [PRESET]", with_full_help(rest), TrainArguments(config=base))
    named_id = option(rest, "--environment.id")
    # Nothing fits an id that is not known: what is wrong with it is said below.
    chosen = preset != DEFAULT_PRESET or (named_id is not None and preset_for(named_id) is not None)
    if chosen and not (from_preset or run or start):
        print(f"preset:       {preset}: {PRESETS[preset].description}")
    if run is not None and parsed.seeds is not None:
        raise ConfigurationError(f"--seeds {parsed.seeds} with --resume {run}: it goes on with the seeds that it has")
    if parsed.side_by_side != 1 and parsed.seeds is None and several is None:
        raise setting_error("side_by_side", parsed.side_by_side, "is for --seeds, and there is one run")
    if parsed.detach:
        seeds_there = parsed.seeds is not None or several is not None
        return _detach(arguments if run is None else rest, parsed, preset, several=seeds_there)
    if several is not None:
        assert parsed.resume is not None
        start_from = None if several.start_from is None else Path(several.start_from)
        all_of_them = replace(parsed, start_from=start_from)
        return train_seeds(all_of_them, several.seeds, parsed.resume, preset)
    if parsed.seeds is None:
        try:
            return train(parsed, preset)
        except ConfigurationError as error:
            if preset not in PRESETS or run is not None:
                raise
            raise ConfigurationError(f"{error}{advice_on_preset(preset, parsed.config.environment.id)}") from error
    return train_seeds(parsed, parse_seeds(parsed.seeds), parsed.run_dir or default_run_dir(preset), preset)


def _detach(arguments: Sequence[str], parsed: TrainArguments, preset: str, *, several: bool) -> int:
    """Run the same command line in another process. Only the name of a new run folder is decided here."""
    if parsed.config.address != "local" and parsed.config.executor == "ray":
        raise setting_error("detach", True, f"starts a process of this machine; on a cluster: {_SUBMIT}")
    typed = [argument for argument in arguments if argument.partition("=")[0] != "--detach"]
    folder = parsed.resume or parsed.run_dir or default_run_dir(preset)
    if parsed.resume is None:
        # Before the log of an existing run is overwritten.
        RunFolder(folder).check_free()
        if parsed.run_dir is None:
            typed += ["--run-dir", str(folder)]
    return train_detached(typed, folder, new=parsed.resume is None, several=several)


def settings_to_start_from(folder: RunFolder, *, trust_imports: bool, named_modules: Collection[str] = ()) -> RunConfig:
    """The settings of a run for a new one that starts from its weights. What belongs to the one run stays its own.

    Raises:
        ConfigurationError: the folder is not a run's, or its settings cannot be read.
    """
    config = folder.read_config("start_from", trust_imports=trust_imports, named_modules=named_modules)
    return for_another_run(config)
