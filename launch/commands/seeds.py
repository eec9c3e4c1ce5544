"""Several seeds in turn, each in a driver process: `tributary train --seeds 1,2,3`."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from launch.commands.display import Display
from launch.commands.runs import runs_table
from launch.driver import train_in_process
from launch.files import write_json
from launch.interrupts import Interrupts
from launch.output import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, print_line, quoted
from launch.provenance import provenance
from launch.run.folder import RunFolder, read_object
from launch.run.modules import imports_permitted
from launch.run.summary import run_status
from launch.settings.check import check_changes
from launch.settings.resolve import TrainRequest, resolve_request
from launch.train import Result
from shared.errors import ConfigurationError, TrainingFailedError, setting_error

_EXIT_CODES = {"interrupted": EXIT_INTERRUPTED, "failed": EXIT_FAILED}


def result_code(result: Result) -> int:
    """The exit code of a run that has ended."""
    return _EXIT_CODES.get(result.status, EXIT_DONE) if result.trained else EXIT_DONE


def parse_seeds(text: str) -> list[int]:
    """`1,2,3` or `1-10` as a list."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        numbers = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
        if not numbers:
            raise setting_error("seeds", text, "must be seeds like 1,2,3 or 1-10")
        seeds += numbers
    return list(dict.fromkeys(seeds))


def train_seeds(request: TrainRequest, seeds: Sequence[int], folder: Path, json: Path | None) -> int:
    """Train each seed in turn in `folder`/seed-N, and print a table. Returns the exit code: that of the worst run.

    A seed that has a checkpoint goes on from it, unless it is done. After an interrupt no other seed begins.
    """
    console, code = Console(), EXIT_DONE
    paths = {seed: folder / f"seed-{seed}" for seed in seeds}
    with Interrupts() as interrupts, interrupts.training():
        for seed, path in paths.items():
            print_line(console, f"seed {seed}: {path}")
            try:
                code = max(code, _train(request, seed, path, console, interrupts))
            except ConfigurationError as error:
                # At the first seed it is a mistake in the command.
                if seed == seeds[0]:
                    raise
                print_line(console, f"error: {error}")
                code = max(code, EXIT_USAGE)
            if interrupts.requested or code == EXIT_INTERRUPTED:
                code = EXIT_INTERRUPTED
                break
    summaries = {seed: read_object(path / "summary.json") for seed, path in paths.items()}
    write_json(json, {"seeds": {str(seed): summary for seed, summary in summaries.items()}, **provenance()})
    if runs := [run_status(path) for path in paths.values() if RunFolder(path).settings_file.is_file()]:
        console.print(runs_table(runs, folder, console), highlight=False)
    print_line(console, f"curves:  tributary plot {quoted(folder)}")
    if code != EXIT_DONE:
        print_line(console, f"go on:   the same command with --run-dir {quoted(folder)}")
    return code


def _train(request: TrainRequest, seed: int, path: Path, console: Console, interrupts: Interrupts) -> int:
    settings = {**request.settings, "seed": seed}
    run = resolve_request(replace(request, settings=settings, run_dir=path, name=None))
    folder = RunFolder(path)
    if folder.has_checkpoint:
        check_changes(run.config, folder.read_settings(), path)
        # The command names these, in a preset or a file.
        with imports_permitted(*run.config.environment.modules):
            run = resolve_request(TrainRequest(None, settings, resume=str(path)))
    with Display(run.config, console, run.preset) as display:
        try:
            return result_code(train_in_process(run.config, path, display.show, stop=interrupts, **run.options))
        except TrainingFailedError as error:
            display.message(f"training failed: {error}")
            return EXIT_FAILED
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
