"""`tributary runs`: what is there, running or done."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from launch.output.exit_codes import EXIT_DONE
from launch.output.json_file import check_json_file, write_json
from launch.output.lines import print_line
from launch.output.words import duration
from launch.run.job_note import folders_elsewhere, note_of
from launch.run.standing import RUNNING, Standing, run_folders, standing
from shared.errors import ConfigurationError, setting_error


@dataclass(frozen=True)
class RunsArguments:
    """List runs, the newest first: which are running, how far they are, and what they have reached."""

    folder: Annotated[Path, tyro.conf.Positional] = Path("runs")
    """Folder that they are in."""
    all: bool = False
    """All of them, and not only the newest 20 and those that are running."""
    json: Path | None = None
    """File to write all of them to."""


_MOST_SHOWN = 20


def list_runs(arguments: RunsArguments) -> int:
    """Run `tributary runs`. Returns the exit code.

    Raises:
        ConfigurationError: there is no such folder.
    """
    check_json_file(arguments.json)
    folder = arguments.folder
    if not folder.is_dir():
        raise setting_error("folder", folder, "there is no such folder; tributary train begins a run below runs/")
    console = Console()
    if not console.is_terminal:
        # Nobody looks at the width of a file.
        console = Console(width=200)
    found = []
    for path in run_folders(folder):
        try:
            found.append(standing(path))
        except ConfigurationError as error:
            print_line(console, f"left out: {error}")
    elsewhere = [_job_values(path) for path in folders_elsewhere(folder)]
    shown = [run for i, run in enumerate(found) if arguments.all or i < _MOST_SHOWN or run.running]
    if shown or elsewhere:
        console.print(_table(shown, elsewhere, folder), highlight=False)
    left = len(found) - len(shown)
    if left or not (found or elsewhere):
        print_line(console, f"{left} older ones: --all" if left else f"no runs in {folder}")
    if arguments.json is not None:
        write_json(arguments.json, {"runs": [*elsewhere, *map(run_values, found)]})
    return EXIT_DONE


def _job_values(folder: Path) -> dict[str, Any]:
    """A Ray job whose folder is not here, or not yet, as `--json` has it."""
    note = note_of(folder)
    assert note is not None
    from launch.on_ray.jobs import Jobs

    try:
        status = Jobs(note.server).status(note.job).status.lower()
    except ConfigurationError:
        status = "no answer"
    return {
        "run": str(folder.absolute()),
        "environment": note.environment,
        "status": status,
        "job": note.job,
        "server": note.server,
        "total_frames": note.total_frames,
    }


def _table(runs: list[Standing], elsewhere: list[dict[str, Any]], folder: Path) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("run", overflow="fold", min_width=12)
    table.add_column("environment", overflow="fold", min_width=8)
    table.add_column("status", no_wrap=True)
    for heading in ("frames", "return", "evaluation", "h:mm:ss"):
        table.add_column(heading, justify="right", no_wrap=True)
    for job in elsewhere:
        name = str(Path(job["run"]).relative_to(folder.absolute()))
        table.add_row(name, job["environment"], f"job {job['status']}", "-", "-", "-", "-")
    for run in runs:
        row, most = run.row, run.config.total_frames
        frames = row.get("frames", 0)
        table.add_row(
            str(run.folder.path.relative_to(folder.absolute())),
            run.config.environment.id,
            run.status.replace("_", " "),
            f"{frames / 1e6:.2f} M, {100 * frames / most:.0f} %",
            _number(row.get("mean_return_100")),
            _number(row.get("evaluation_return")),
            duration(row.get("elapsed_seconds")),
            style="bold" if run.status == RUNNING else None,
        )
    return table


def run_values(run: Standing) -> dict[str, Any]:
    """A run as `--json` has it."""
    row, note = run.row, note_of(run.folder.path)
    return {
        "run": str(run.folder.path),
        "environment": run.config.environment.id,
        "seed": run.config.seed,
        "status": run.status,
        "pid": None if run.holder is None else run.holder.pid,
        "host": None if run.holder is None else run.holder.host,
        "job": None if note is None else note.job,
        "total_frames": run.config.total_frames,
        **{
            name: row.get(name)
            for name in ("frames", "agent_steps", "elapsed_seconds", "mean_return_100", "evaluation_return")
        },
    }


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
