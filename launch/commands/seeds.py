"""Several runs in turn or side by side, each in a driver process: `tributary train --seeds 1,2,3`."""

import math
import re
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from launch.commands.display import Display
from launch.driver import train_in_process
from launch.interrupts import Interrupts
from launch.machine import automatic_actors, usable_cores
from launch.output import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    finite,
    number,
    plain_table,
    print_line,
    provenance,
    quoted,
    write_json,
)
from launch.results.evaluate import mean_and_error
from launch.run.folder import (
    SEEDS_FILE,
    RunFolder,
    SeveralSeeds,
    imports_permitted,
    lock_folder,
    read_object,
)
from launch.run.summary import reached_limit
from launch.settings.files import set_of_one_run
from launch.settings.resolve import ResolvedRun, changed_by_hand
from launch.train import Result
from shared.config import RunConfig
from shared.errors import ConfigurationError, TrainingFailedError, setting_error

_POLL_SECONDS = 0.5
# The width of a log, which no terminal shows.
_LOG_COLUMNS = 200
_EXIT_CODES = {"interrupted": EXIT_INTERRUPTED, "failed": EXIT_FAILED}


def left_to_do(run: ResolvedRun, folder: RunFolder, settings: Mapping[str, Any]) -> ResolvedRun | None:
    """The run as it has to be trained, from its beginning or from its last checkpoint; None if it has ended.

    A run that has begun goes on with the settings of its own folder, changed by `settings`.
    """
    if not folder.settings_file.is_file():
        return run
    with lock_folder(folder.path):
        with imports_permitted(*run.config.environment.modules):
            own = changed_by_hand(folder.read_config(), settings)
        if reached_limit(own, read_object(folder.summary)) is not None:
            return None
        if folder.has_checkpoint:
            return run._replace(config=own, resume=folder.path)
        # It was killed before its first checkpoint.
        shutil.rmtree(folder.path)
    return run


def train_in_turn(
    runs: Mapping[Path, ResolvedRun], side_by_side: int, console: Console, interrupts: Interrupts
) -> list[int]:
    """Train `runs`, by their folders, in this order, `side_by_side` at a time.

    Each is trained in a driver process. A run alone is shown on the console; side by side each has a log. Returns the
    exit codes of the runs that were started: all of them unless an interrupt came.
    """
    if not runs:
        return []
    codes, refused = list[int](), list[ConfigurationError]()

    def train(folder: Path, run: ResolvedRun) -> None:
        if interrupts.requested or refused:
            return
        name, output, shown = folder.name.replace("-", " "), None, console
        print_line(console, f"{name}: {folder}{', goes on' if run.resume else ''}")
        with ExitStack() as stack:
            if side_by_side > 1:
                log = folder.with_name(f"{folder.name}.log")
                output = stack.enter_context(log.open("a" if run.resume else "w", encoding="utf-8"))
                shown = Console(file=output, width=_LOG_COLUMNS)
            display = stack.enter_context(Display(run.config, shown, run.preset))
            try:
                result = train_in_process(
                    run.config, folder, display.show, stop=interrupts, output=output, **run.options
                )
                code = result_code(result)
            except ConfigurationError as error:
                # The others have the same settings.
                refused.append(ConfigurationError(f"{name} could not start: {error}"))
                return
            except TrainingFailedError as error:
                display.message(f"training failed: {error}")
                code = EXIT_FAILED
            except KeyboardInterrupt:
                code = EXIT_INTERRUPTED
        codes.append(code)
        if side_by_side > 1:
            print_line(console, f"{name}: ended with exit code {code}")

    with interrupts.training(), ThreadPoolExecutor(side_by_side) as threads:
        trained = [threads.submit(train, folder, run) for folder, run in runs.items()]
        while True:
            try:
                if not wait(trained, _POLL_SECONDS).not_done:
                    break
            except KeyboardInterrupt:
                interrupts.at_once = True
    for each in trained:
        each.result()
    if refused:
        raise refused[0]
    return codes


def result_code(result: Result) -> int:
    """The exit code of a run that has ended."""
    return _EXIT_CODES.get(result.status, EXIT_DONE) if result.trained else EXIT_DONE


def parse_seeds(text: str) -> list[int]:
    """`1,2,3` or `1-10` as a list."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        found = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
        if not found:
            raise setting_error("seeds", text, "must be seeds like 1,2,3 or 1-10")
        seeds += found
    if len(set(seeds)) != len(seeds):
        raise setting_error("seeds", text, "must name each seed once")
    return seeds


def train_seeds(
    run: ResolvedRun,
    seeds: Sequence[int],
    folder: Path,
    *,
    settings: Mapping[str, Any],
    side_by_side: int,
    json: Path | None,
) -> int:
    """Train `run` once for each seed, `side_by_side` at a time. Returns the exit code: that of the worst run.

    Each is trained in `folder`/seed-N. With `run.several` unfinished runs go on, with their own settings changed by
    `settings`. `json` is a further file for the summary.
    """
    if side_by_side < 1:
        raise setting_error("side_by_side", side_by_side, "must be at least 1")
    config, resume, start_from = _for_each(run.config, side_by_side), run.several is not None, run.start_from
    home, file, console = RunFolder(folder), folder / SEEDS_FILE, Console()
    with Interrupts() as interrupts:
        with lock_folder(folder) if resume else home.make():
            before = file.read_bytes() if resume else b""
            try:
                left = {}
                for path, seed in ((folder / f"seed-{seed}", seed) for seed in seeds):
                    new = run._replace(config=replace(config, seed=seed), resume=None)
                    if (one := left_to_do(new, RunFolder(path), settings)) is not None:
                        left[path] = one
                if resume:
                    print_line(console, f"{len(seeds) - len(left)} of {len(seeds)} seeds are done")
                # A resume may come from another working folder.
                shown_from = None if start_from is None else str(start_from.absolute())
                several = SeveralSeeds(config, tuple(seeds), run.preset, shown_from)
                write_json(file, msgspec.to_builtins(several))
                codes = train_in_turn(left, min(side_by_side, len(left)), console, interrupts)
            except BaseException:
                if resume and file.read_bytes() != before:
                    file.write_bytes(before)
                elif not resume and not any(entry.is_dir() for entry in folder.iterdir()):
                    # No run has started.
                    home.discard()
                raise
        result = summarise_seeds(folder, seeds) | {"preset": run.preset, **provenance()}
        write_json(folder / "summary.json", result)
        write_json(json, result)
        _show(console, result, folder)
        code = EXIT_INTERRUPTED if interrupts.requested else max(codes, default=EXIT_DONE)
        if code != EXIT_DONE:
            print_line(console, f"go on:   tributary train --resume {quoted(folder)}")
        return code


def _for_each(config: RunConfig, side_by_side: int) -> RunConfig:
    """The settings that all runs share."""
    for name in set_of_one_run(config):
        raise setting_error(name, getattr(config, name), "is of one run, and --seeds trains several")
    if config.executor == "ray" and config.address != "local" and side_by_side > 1:
        raise setting_error(
            "side_by_side", side_by_side, "divides this machine; on a cluster submit a job for each seed: "
            "ray job submit -- tributary train ... --address auto --seed N",
        )  # fmt: skip
    here = config.executor == "ray" and config.address == "local"
    if here and config.actors == "auto" and side_by_side > 1:
        config = replace(config, actors=automatic_actors(max(1, usable_cores() // side_by_side)))
    return config


def summarise_seeds(folder: Path, seeds: Sequence[int]) -> dict[str, Any]:
    """The summary of each run, and median and quartiles over the ended ones."""
    summaries = {str(seed): read_object(folder / f"seed-{seed}" / "summary.json") for seed in seeds}
    runs = {seed: summary or {"status": "not run"} for seed, summary in summaries.items()}
    done = [run for run in runs.values() if run["status"] != "not run"]
    names = ("mean_return_100", "frames", "wall_seconds", "agent_steps_per_second")
    figures = {name: [run[name] for run in done] for name in names}
    figures["evaluation_mean_return"] = [run["evaluation"]["mean_return"] for run in done if run["evaluation"]]
    figures = {name: [value for value in values if value is not None] for name, values in figures.items()}
    reached = [run["confirmed_crossing"] for run in done if run.get("confirmed_crossing")]
    if reached:
        # A seed that missed the target takes longer than any other: without it the median would be too short.
        missed = [math.inf] * (len(done) - len(reached))
        for unit in ("seconds", "frames", "agent_steps"):
            figures[f"{unit}_to_target"] = [*(crossing[unit] for crossing in reached), *missed]
    return {"seeds": runs, "over_seeds": {name: _spread(values) for name, values in figures.items() if values}}


def _spread(values: Sequence[float]) -> dict[str, Any]:
    """Median and quartiles, linear between neighbours, each None where it is not finite."""
    ordered, found = sorted(values), dict[str, float]()
    for name, share in (("median", 0.5), ("lower_quartile", 0.25), ("upper_quartile", 0.75)):
        # NumPy's would be NaN beside an infinity.
        index, weight = divmod(share * (len(ordered) - 1), 1.0)
        low = ordered[int(index)]
        found[name] = low if weight == 0.0 else (1.0 - weight) * low + weight * ordered[int(index) + 1]
    return finite(found | {"seeds": sum(map(math.isfinite, values))})


def _show(console: Console, result: dict[str, Any], folder: Path) -> None:
    console.print(seeds_table(result, console.width), highlight=False)
    for line in (f"summary: {folder / 'summary.json'}", f"curves:  tributary plot {quoted(folder)}"):
        print_line(console, line)


def seeds_table(result: dict[str, Any], width: int) -> Table:
    """A table of the seeds of `summarise_seeds`, with fewer columns where `width` characters are too few."""
    numbers = ("return", "evaluation", "frames", "minutes", "minutes to target", "agent steps/s")
    rows = []
    for seed, run in result["seeds"].items():
        rows.append(row := {"seed": seed, "status": run["status"].replace("_", " "), **dict.fromkeys(numbers, "")})
        if run["status"] != "not run":
            evaluation, reached = run["evaluation"], run.get("confirmed_crossing")
            row["return"] = number(run["mean_return_100"], ".2f")
            row["evaluation"] = mean_and_error(evaluation) if evaluation else "-"
            row["frames"] = f"{run['frames']:,}"
            row["minutes"] = f"{run['wall_seconds'] / 60:.1f}"
            row["minutes to target"] = number(reached["seconds"] / 60 if reached else None, ".1f")
            row["agent steps/s"] = f"{run['agent_steps_per_second']:,.0f}"
    # The summary has all of them.
    return plain_table(rows, width, left=("seed", "status"), spare=("agent steps/s", "minutes"))
