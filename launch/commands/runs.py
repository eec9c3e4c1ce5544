"""Runs of other processes: `tributary runs` lists them, and `tributary stop` ends one."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from launch.files import write_json
from launch.output import duration, mean_return, number, plain_table, print_line, quoted, wide_console
from launch.run.folder import RunFolder
from launch.run.lock import holder_of
from launch.run.lookup import RunPath, run_folders, trust_option
from launch.run.summary import RunStatus, run_status
from launch.settings.parse import Operand
from shared.errors import ConfigurationError, counted, setting_error

# The lock of another process can only be looked at: nothing announces a change.
_LOCK_POLL_SECONDS = 0.1
_MAX_SHOWN = 20
_ROW_VALUES = ("frames", "agent_steps", "elapsed_seconds", "mean_return_100", "evaluation_return")


@dataclass(frozen=True)
class RunsArguments:
    """List runs, the newest first: their status, progress and return."""

    folder: Operand[Path] = Path("runs")
    """Folder of the run folders."""
    all: bool = False
    """List all runs, not only the newest 20 and the running ones."""
    json: Path | None = None
    """File to write all of them to."""


@dataclass(frozen=True)
class StopArguments:
    """Ask a run to finish its rollouts, save and end, and wait until it has. Ctrl-C ends only the waiting."""

    run: Operand[RunPath]
    """Folder of the run; latest: the newest run."""


def list_runs(arguments: RunsArguments) -> None:
    folder = arguments.folder
    if not folder.is_dir() and folder != RunsArguments.folder:
        raise ConfigurationError(f"{folder}: there is no such folder")
    console = wide_console(200)
    runs, left_out = [], []
    for path in run_folders(folder):
        try:
            runs.append(run_status(path))
        except ConfigurationError as error:
            print_line(console, f"left out: {error}")
            left_out.append({"run": str(path.absolute()), "reason": str(error)})
    recent = [run for i, run in enumerate(runs) if arguments.all or i < _MAX_SHOWN or run.holder]
    if recent:
        console.print(runs_table(recent, folder, console), highlight=False)
    if len(runs) > len(recent):
        print_line(console, f"{counted(len(runs) - len(recent), 'more run')}: list them with --all")
    elif not runs:
        print_line(console, f"no runs below {folder}/; tributary train begins one")
    write_json(arguments.json, {"runs": [*map(run_values, runs)], "left_out": left_out})


def stop(arguments: StopArguments) -> None:
    folder, console = arguments.run, Console()
    holder = holder_of(folder)
    if holder is None:
        raise setting_error("run", folder, "no process trains this run; tributary runs lists the runs that train")
    if not holder.here:
        where = f"on {holder.host}, process {holder.pid}" if holder.pid else "in a process that has just started"
        raise setting_error("run", folder, f"runs {where}: stop it there")
    assert holder.pid is not None
    try:
        os.kill(holder.pid, signal.SIGINT)
    except PermissionError as error:
        raise setting_error("run", folder, f"process {holder.pid} is of another user, who can stop it") from error
    except ProcessLookupError:
        # It has just ended.
        pass
    print_line(console, f"requested process {holder.pid} to finish and save; a second tributary stop ends it at once")
    while holder_of(folder) == holder:
        time.sleep(_LOCK_POLL_SECONDS)
    line = f"ended before it trained: {folder} has nothing to continue from"
    if (run := RunFolder(folder)).settings_file.is_file():
        trust = trust_option(run.read_settings("run"))
        line = f"ended: {folder}; to continue it: tributary train --resume {quoted(folder)}{trust}"
    print_line(console, line)


def runs_table(runs: list[RunStatus], folder: Path, console: Console) -> Table:
    """A table of runs, with fewer columns on a narrow console."""
    rows = [_row(run, folder) for run in runs]
    if all(row["evaluation"] == "-" for row in rows):
        for row in rows:
            del row["evaluation"]
    # The name of a run stays whole, so that it can be copied.
    left, spare = ("run", "environment", "status"), ("environment", "h:mm:ss", "evaluation")
    table = plain_table(rows, console.width, left=left, spare=spare)
    for run, shown in zip(runs, table.rows, strict=True):
        shown.style = "bold" if run.holder else None
    return table


def run_values(run: RunStatus) -> dict[str, Any]:
    """The entry of a run in the file of `--json`."""
    return {
        "run": str(run.folder.path),
        "environment": run.config.environment.id,
        "seed": run.config.seed,
        "status": run.status,
        "pid": None if run.holder is None else run.holder.pid,
        "host": None if run.holder is None else run.holder.host,
        "total_frames": run.config.total_frames,
        **{name: run.row.get(name) for name in _ROW_VALUES},
    }


def _row(run: RunStatus, folder: Path) -> dict[str, str]:
    row = run.row
    frames = row.get("frames", 0)
    short = f"{frames:,}" if frames < 100_000 else f"{frames / 1e6:.2f} M"
    return {
        "run": str(run.folder.path.relative_to(folder.absolute())),
        "environment": run.config.environment.id,
        "status": run.status.replace("_", " "),
        "frames": f"{short}, {100 * frames / run.config.total_frames:.0f} %",
        # With the whole words a name of the default form would be broken in 80 columns.
        "return": mean_return(row.get("mean_return_100"), row.get("episodes", 100)).removesuffix(" episodes"),
        "evaluation": number(row.get("evaluation_return"), ".2f"),
        "h:mm:ss": duration(row.get("elapsed_seconds")),
    }
