"""`tributary train [PRESET] [SETTINGS]`: options to a request, the library's `train`, and its events on the screen.

With `--seeds 1,2,3` several runs in turn, each in a driver process.
"""

import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from launch.commands.display import Display
from launch.commands.runs import runs_table
from launch.driver import train_in_process
from launch.files import write_json
from launch.interrupts import Interrupts, StoppedBeforeTrainingError, StoppedWithoutLearnerError
from launch.output import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, print_line, quoted
from launch.presets import PRESETS
from launch.provenance import provenance, revision
from launch.run.folder import RunFolder, read_object
from launch.run.lookup import discard_if_empty, new_run_dir, trust_option
from launch.run.modules import imports_permitted
from launch.run.summary import run_status
from launch.settings.check import changes_of_resume, check_changes, may_change
from launch.settings.files import by_full_name, option_name
from launch.settings.resolve import ResolvedRun, TrainRequest, resolve_request
from launch.train import Result, train
from shared.errors import ConfigurationError, EnvironmentFailedError, TrainingFailedError, last_line, setting_error

_MAX_SEEDS = 1_000
_EXIT_CODES = {"interrupted": EXIT_INTERRUPTED, "failed": EXIT_FAILED}


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
    seeds: list[int] = []
    if arguments.seeds is not None:
        seeds = parse_seeds(arguments.seeds)
        seed, storage = arguments.settings.get("seed"), resolved.config.storage
        for name, value in (("resume", arguments.resume), ("seed", seed), ("storage", storage)):
            if value is not None:
                raise setting_error(name, value, "is of one run, and --seeds trains several; leave one of the two out")
        first, parent = resolved.start_from, arguments.run_dir
        if first and parent and first.absolute() in [(parent / f"seed-{number}").absolute() for number in seeds]:
            raise setting_error(
                "start_from", arguments.start_from, "is a folder that --seeds would write; name another --run-dir"
            )
        # Resolved once for all seeds: after the first one, latest would name its run.
        arguments = replace(arguments, start_from=str(resolved.start_from) if resolved.start_from else None)
    folder = resolved.resume or arguments.run_dir
    with ExitStack() as stack:
        if folder is None:
            folder = new_run_dir(resolved.name)
            stack.callback(discard_if_empty, folder)
        return _train_seeds(arguments, seeds, folder) if seeds else _train_here(arguments, resolved, folder)


def _train_here(arguments: TrainArguments, resolved: ResolvedRun, folder: Path) -> int:
    """Train in this process, which a second Ctrl-C ends, with the events on the console. Returns the exit code."""
    console = Console()
    with Interrupts() as interrupts:
        try:
            with Display(resolved.config, console, resolved.preset) as display:
                result = train(resolved.config, folder, display.show, stop=interrupts, **resolved.options)
        except KeyboardInterrupt as error:
            line, code = "stopped before training began: there is nothing to save", EXIT_INTERRUPTED
            began = not isinstance(error, StoppedBeforeTrainingError)
            if began and (interrupts.interrupted or isinstance(error, StoppedWithoutLearnerError)):
                resume = f"tributary train --resume {quoted(folder)}{trust_option(resolved.config)}"
                line = f"left at once; to continue from the last checkpoint: {resume}"
            elif began and (failure := _failure_before(error)) is not None:
                # The processes of a failed run were being ended.
                line, code = f"training failed: {last_line(failure)}", EXIT_FAILED
            elif began and interrupts.concluding:
                line = f"interrupted after training: all is saved in {folder.absolute()}"
            print_line(console, line)
            if interrupts.interrupted:
                discard_if_empty(folder)
                # The interpreter would wait for a thread that trains, or that starts actors.
                os._exit(code)
            return code
        except TrainingFailedError as error:
            print_line(console, f"training failed: {error}")
            print_line(console, f"run folder:   {folder.absolute()}")
            summary = read_object(RunFolder(folder).summary)
            # One of another status is of an earlier session: nothing was left to write this one's.
            if summary.get("status") == "failed":
                write_json(arguments.json, {**summary, "run": str(folder.absolute()), **provenance()})
            return EXIT_FAILED
    write_json(arguments.json, {**result.summary, "run": str(folder.absolute()), **provenance()})
    return _exit_code(result)


def _failure_before(interrupt: BaseException) -> BaseException | None:
    """The error of the run that an interrupt came after, which says why it ends; None without one."""
    kinds, error = (TrainingFailedError, EnvironmentFailedError), interrupt.__context__
    # Importing ray for its class takes half a second.
    while error is not None and not (isinstance(error, kinds) or type(error).__module__ == "ray.exceptions"):
        error = error.__context__
    return error


def _exit_code(result: Result) -> int:
    return _EXIT_CODES.get(result.status, EXIT_DONE) if result.trained else EXIT_DONE


# ---- Several seeds


def parse_seeds(text: str) -> list[int]:
    """`1,2,3` or `1-10` as a list."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        numbers = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
        if not numbers or numbers[-1] >= 2**31 or len(seeds) + len(numbers) > _MAX_SEEDS:
            problem = f"must be seeds like 1,2,3 or 1-10, at most {_MAX_SEEDS:,} and below {2**31:,}"
            raise setting_error("seeds", text, problem)
        seeds += numbers
    return list(dict.fromkeys(seeds))


def _train_seeds(arguments: TrainArguments, seeds: Sequence[int], folder: Path) -> int:
    """Train each seed in turn in `folder`/seed-N, and print a table. Returns the exit code: that of the worst run.

    A seed that has a checkpoint goes on from it, unless it is done. After an interrupt no other seed begins.
    """
    console, code = Console(), EXIT_DONE
    paths = {seed: folder / f"seed-{seed}" for seed in seeds}
    # A refused one is known before the first one trains. New ones differ in their seed, and environments take seconds.
    begun = [seed for seed, path in paths.items() if path.exists()]
    for seed in dict.fromkeys([seeds[0], *begun]):
        _resolve_seed(arguments, seed, paths[seed], Console(quiet=True))
    refused: ConfigurationError | None = None
    with Interrupts() as interrupts, interrupts.training():
        for seed, path in paths.items():
            print_line(console, f"seed {seed}: {path}")
            try:
                # Again: another command may have begun it meanwhile.
                run = _resolve_seed(arguments, seed, path, console)
                code = max(code, _train_seed(run, path, console, interrupts))
            except ConfigurationError as error:
                refused = error
                break
            if interrupts.requested or code == EXIT_INTERRUPTED:
                code = EXIT_INTERRUPTED
                break
    runs = [run_status(path) for path in paths.values() if RunFolder(path).settings_file.is_file()]
    # A summary may be of an earlier session.
    status = {run.folder.path: {"status": run.status} for run in runs}
    summaries = {
        str(seed): read_object(path / "summary.json") | status.get(path.absolute(), {}) | {"run": str(path.absolute())}
        for seed, path in paths.items()
    }
    write_json(arguments.json, {"seeds": summaries, **provenance()})
    if runs:
        console.print(runs_table(runs, folder, console), highlight=False)
        print_line(console, f"curves:  tributary plot {quoted(folder)}")
    if refused is not None:
        raise refused
    if code != EXIT_DONE:
        named = " in place of --name" if arguments.name else ""
        start = f" and --start-from {quoted(arguments.start_from)}" if arguments.start_from else ""
        print_line(console, f"go on:   the same command with --run-dir {quoted(folder)}{named}{start}")
    return code


def _resolve_seed(request: TrainRequest, seed: int, path: Path, console: Console) -> ResolvedRun:
    settings = {**request.settings, "seed": seed}
    run = resolve_request(replace(request, settings=settings, run_dir=path, name=None))
    folder = RunFolder(path)
    folder.discard_without_checkpoint()
    if folder.has_checkpoint:
        before = folder.read_settings()
        others = [name for name in changes_of_resume(run.config, before) if not may_change(name)]
        # At one revision a preset is what it was: an option was forgotten, or given.
        made = read_object(folder.manifest)
        by_preset = request.config is None and made.get("preset") == run.preset and made.get("revision") != revision()
        if others and by_preset and not by_full_name(settings).keys() & others:
            line = f"preset {run.preset} has changed since seed {seed} began: this seed keeps its own"
            print_line(
                console, f"{line} {', '.join(map(option_name, others))}, and seeds that begin now get the new ones"
            )
        else:
            check_changes(run.config, before, path)
        # The command names these, in a preset or a file.
        with imports_permitted(*run.config.environment.modules):
            run = resolve_request(TrainRequest(None, settings, resume=str(path)))
    return run


def _train_seed(run: ResolvedRun, path: Path, console: Console, interrupts: Interrupts) -> int:
    with Display(run.config, console, run.preset) as display:
        try:
            return _exit_code(train_in_process(run.config, path, display.show, stop=interrupts, **run.options))
        except TrainingFailedError as error:
            display.message(f"training failed: {error}")
            return EXIT_FAILED
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
