"""`tributary train --seeds 1,2,3`: the same settings with several seeds, and one summary of them all."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from launch.commands.in_turn import PlannedRun, check_side_by_side, left_to_do, train_in_turn
from launch.commands.interrupts import Interrupts
from launch.commands.train import TrainArguments
from launch.machine.budget import automatic_actors
from launch.output import EXIT_DONE, EXIT_INTERRUPTED, make_folder, print_line, provenance, usable_cores, write_json
from launch.presets.written import set_of_one_run
from launch.run.folder import LOCK_FILE, FolderLock
from launch.run.seeds_note import FILES, SeveralSeeds, write_seeds
from shared.config import RunConfig
from shared.errors import setting_error


def parse_seeds(text: str) -> list[int]:
    """`1,2,3` or `1-10` as a list.

    Raises:
        ConfigurationError: it is neither, or names a seed twice.
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        backwards = first.isdecimal() and last.isdecimal() and int(last) < int(first)
        if not first.isdecimal() or (dash and not last.isdecimal()) or backwards:
            raise setting_error("seeds", text, "must be seeds like 1,2,3 or 1-10")
        seeds += range(int(first), int(last if dash else first) + 1)
    if len(set(seeds)) != len(seeds):
        raise setting_error("seeds", text, "must name each seed once")
    return seeds


def train_seeds(arguments: TrainArguments, seeds: Sequence[int], folder: Path, preset: str) -> int:
    """Train once for each seed, `side_by_side` at a time. Returns the exit code: that of the worst run.

    Each run is in `folder`/seed-N. Alone a run shows its own progress; side by side its output goes to seed-N.log.
    With `arguments.resume` those that are not done go on.

    Raises:
        ConfigurationError: the folder is in use, or no run could start.
    """
    check_side_by_side(arguments.side_by_side)
    config, start_from, resume = _for_each(arguments), arguments.start_from, arguments.resume is not None
    if not resume and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise setting_error("run_dir", folder, f"exists; name another folder, or go on with it: --resume {folder}")
    make_folder(folder, "run_dir")
    console = Console()
    with Interrupts() as interrupts:
        runs = [
            PlannedRun(f"seed {s}", replace(config, seed=s), folder / f"seed-{s}", preset, start_from=start_from)
            for s in seeds
        ]
        lock = FolderLock(folder)
        try:
            left = [run for run in map(left_to_do, runs) if run is not None]
            if resume:
                print_line(console, f"{len(runs) - len(left)} of {len(runs)} seeds are done")
            shown_from = None if start_from is None else str(start_from)
            write_seeds(folder, SeveralSeeds(config, tuple(seeds), preset, shown_from))
            codes = train_in_turn(left, min(arguments.side_by_side, len(left)), console, interrupts)
        except BaseException:
            _discard_if_no_run_started(folder)
            raise
        finally:
            lock.release()
        result = summarise_seeds(folder, seeds) | {"preset": preset, **provenance()}
        write_json(folder / "summary.json", result)
        if arguments.json is not None:
            write_json(arguments.json, result)
        _show(console, result, folder)
        code = EXIT_INTERRUPTED if interrupts.asked else max(codes, default=EXIT_DONE)
        if code != EXIT_DONE:
            print_line(console, f"go on:   tributary train --resume {folder}")
        return code


def _for_each(arguments: TrainArguments) -> RunConfig:
    """The settings of each run but for its seed."""
    config = arguments.config
    for name in set_of_one_run(config):
        raise setting_error(name, getattr(config, name), "is of one run, and --seeds trains several")
    if config.executor == "ray" and config.address != "local" and arguments.side_by_side > 1:
        raise setting_error(
            "side_by_side", arguments.side_by_side, "divides this machine; on a cluster submit a job for each seed: "
            "ray job submit -- tributary train ... --address auto --seed N",
        )  # fmt: skip
    here = config.executor == "ray" and config.address == "local"
    if here and config.actors == "auto" and arguments.side_by_side > 1:
        return replace(config, actors=automatic_actors(max(1, usable_cores() // arguments.side_by_side)))
    return config


def _discard_if_no_run_started(folder: Path) -> None:
    if not any(entry.is_dir() for entry in folder.iterdir()):
        made = (*folder.glob("seed-*.log"), *map(folder.joinpath, (*FILES, LOCK_FILE)))
        for file in made:
            file.unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()


def summarise_seeds(folder: Path, seeds: Sequence[int]) -> dict[str, Any]:
    """What each run's summary says, and the median and quartiles over those that have ended."""
    runs: dict[str, dict[str, Any]] = {}
    for seed in seeds:
        file = folder / f"seed-{seed}" / "summary.json"
        runs[str(seed)] = json.loads(file.read_text()) if file.is_file() else {"status": "not run"}
    done = [run for run in runs.values() if run["status"] != "not run"]
    figures = {
        "mean_return_100": [run["mean_return_100"] for run in done],
        "evaluation_mean_return": [run["evaluation"]["mean_return"] for run in done if run["evaluation"]],
        "frames": [run["frames"] for run in done],
        "wall_seconds": [run["wall_seconds"] for run in done],
        "agent_steps_per_second": [run["agent_steps_per_second"] for run in done],
    }
    spread = {}
    for name, values in figures.items():
        known = [value for value in values if value is not None]
        if known:
            low, median, high = np.percentile(known, (25, 50, 75))
            spread[name] = {"median": median, "lower_quartile": low, "upper_quartile": high, "seeds": len(known)}
    return {"seeds": runs, "over_seeds": spread}


def _show(console: Console, result: dict[str, Any], folder: Path) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("seed", "status", "return, last 100", "evaluation", "frames", "minutes", "agent steps/s"):
        table.add_column(heading, justify="left" if heading in ("seed", "status") else "right")
    for seed, run in result["seeds"].items():
        if run["status"] == "not run":
            table.add_row(seed, "not run")
            continue
        mean, evaluation = run["mean_return_100"], run["evaluation"]
        table.add_row(
            seed,
            run["status"].replace("_", " "),
            "-" if mean is None else f"{mean:.2f}",
            f"{evaluation['mean_return']:.2f}" if evaluation else "-",
            f"{run['frames']:,}",
            f"{run['wall_seconds'] / 60:.1f}",
            f"{run['agent_steps_per_second']:,.0f}",
        )
    console.print(table, highlight=False)
    for line in (f"summary: {folder / 'summary.json'}", f"curves:  tributary plot {folder}"):
        print_line(console, line)
