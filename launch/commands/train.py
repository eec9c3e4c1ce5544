"""`tributary train [PRESET] [SETTINGS]`: options to a request, the library's `train`, and its events on the screen."""

import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from launch.commands.display import Display
from launch.commands.seeds import parse_seeds, result_code, train_seeds
from launch.files import write_json
from launch.interrupts import Interrupts, StoppedBeforeTrainingError
from launch.output import EXIT_FAILED, EXIT_INTERRUPTED, print_line, quoted
from launch.presets import PRESETS
from launch.run.folder import RunFolder, read_object
from launch.run.lookup import discard_if_empty, new_run_dir, trust_option
from launch.settings.resolve import ResolvedRun, TrainRequest, resolve_request
from launch.train import train
from shared.errors import TrainingFailedError, setting_error


@dataclass(frozen=True)
class TrainArguments(TrainRequest):
    """Train an agent. Ctrl-C once finishes cleanly and saves, twice leaves at once."""

    seeds: str | None = None
    """Seeds like 1,2,3 or 1-10: train them in turn, into seed-N folders of --run-dir. The same command goes on with
    those that are not done."""
    json: Path | None = None
    """File to write the summary to, besides the run folder's summary.json."""


def train_line(arguments: TrainArguments) -> int:
    resolved = resolve_request(arguments)
    if resolved.preset_chosen:
        print(f"preset:       {resolved.preset}: {PRESETS[resolved.preset].description}")
    seeds = None if arguments.seeds is None else parse_seeds(arguments.seeds)
    for name, value in (
        ("resume", arguments.resume),
        ("seed", arguments.settings.get("seed")),
        ("storage", resolved.config.storage),
    ):
        if seeds is not None and value is not None:
            raise setting_error(name, value, "is of one run, and --seeds trains several")
    folder = resolved.resume or arguments.run_dir
    with ExitStack() as stack:
        if folder is None:
            folder = new_run_dir(resolved.name)
            stack.callback(discard_if_empty, folder)
        if seeds is None:
            return _train(arguments, resolved, folder)
        # Resolved once for all seeds: after the first one, latest would name its run.
        start_from = None if resolved.start_from is None else str(resolved.start_from)
        return train_seeds(replace(arguments, start_from=start_from), seeds, folder, arguments.json)


def _train(arguments: TrainArguments, resolved: ResolvedRun, folder: Path) -> int:
    """Train in this process, which a second Ctrl-C ends, with the events on the console. Returns the exit code."""
    console = Console()
    with Interrupts() as interrupts:
        try:
            with Display(resolved.config, console, resolved.preset) as display:
                result = train(resolved.config, folder, display.show, stop=interrupts, **resolved.options)
        except KeyboardInterrupt as error:
            line = "stopped before training began: there is nothing to save"
            if interrupts.interrupted and not isinstance(error, StoppedBeforeTrainingError):
                resume = f"tributary train --resume {quoted(folder)}{trust_option(resolved.config)}"
                line = f"left at once; to continue from the last checkpoint: {resume}"
            print_line(console, line)
            if interrupts.interrupted:
                discard_if_empty(folder)
                # The interpreter would wait for a thread that trains, or that starts actors.
                os._exit(EXIT_INTERRUPTED)
            return EXIT_INTERRUPTED
        except TrainingFailedError as error:
            print_line(console, f"training failed: {error}")
            print_line(console, f"run folder:   {folder.absolute()}")
            summary = read_object(RunFolder(folder).summary)
            # One of another status is of an earlier session: nothing was left to write this one's.
            if summary.get("status") == "failed":
                write_json(arguments.json, summary)
            return EXIT_FAILED
    write_json(arguments.json, result.summary)
    return result_code(result)
