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
from shared.errors import ConfigurationError


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
    console = Console()
    if not folder.is_dir():
        if folder != RunsArguments.folder:
            raise ConfigurationError(f"{folder}: there is no such folder")
        print_line(console, "no runs below runs/ yet; tributary train begins one")
        if arguments.json is not None:
            write_json(arguments.json, {"runs": [], "left_out": []})
        return EXIT_DONE
    if not console.is_terminal:
        # Nobody looks at the width of a file.
        console = Console(width=200)
    found, left_out = [], []
    for path in run_folders(folder):
        try:
            found.append(standing(path))
        except ConfigurationError as error:
            print_line(console, f"left out: {error}")
            left_out.append({"run": str(path.absolute()), "reason": str(error)})
    elsewhere = [_job_values(path, console) for path in folders_elsewhere(folder)]
    shown = [run for i, run in enumerate(found) if arguments.all or i < _MOST_SHOWN or run.running]
    if shown or elsewhere:
        console.print(_table(shown, elsewhere, folder, console), highlight=False)
    left = len(found) - len(shown)
    if left or not (found or elsewhere):
        print_line(console, f"{left} older ones: --all" if left else f"no runs in {folder}")
    if arguments.json is not None:
        write_json(arguments.json, {"runs": [*elsewhere, *map(run_values, found)], "left_out": left_out})
    return EXIT_DONE


def _job_values(folder: Path, console: Console) -> dict[str, Any]:
    """A Ray job whose folder is not here, or not yet, as `--json` has it."""
    note = note_of(folder)
    assert note is not None
    from launch.on_ray.jobs import Jobs

    try:
        status = Jobs(note.server).status(note.job).status.lower()
    except ConfigurationError as error:
        print_line(console, f"{folder.name}: {error}")
        status = "unknown"
    return {
        "run": str(folder.absolute()),
        "environment": note.environment,
        "status": status,
        "job": note.job,
        "server": note.server,
        "total_frames": note.total_frames,
    }


# As its columns are named; those that a narrow terminal goes without, the first one first.
_HEADINGS = ("run", "environment", "status", "frames", "return", "evaluation", "h:mm:ss")
_LEFT_OUT_FIRST = ("environment", "h:mm:ss", "evaluation")
_ANY_WIDTH, _LEAST_NAME = 1000, 12


def _table(runs: list[Standing], elsewhere: list[dict[str, Any]], folder: Path, console: Console) -> Table:
    """As many columns as the terminal has room for."""
    rows = [
        (str(Path(job["run"]).relative_to(folder.absolute())), job["environment"], f"job {job['status']}", *"----")
        for job in elsewhere
    ]
    rows += [_row(run, folder) for run in runs]
    bold = [False] * len(elsewhere) + [run.status == RUNNING for run in runs]
    # Where nobody evaluates there is nothing to see.
    nobody = all(row[_HEADINGS.index("evaluation")] == "-" for row in rows)
    shown = [name for name in _HEADINGS if not (nobody and name == "evaluation")]
    for name in (None, *_LEFT_OUT_FIRST):
        shown = [other for other in shown if other != name]
        table = Table(box=None, pad_edge=False)
        for heading in shown:
            if heading == "run":
                table.add_column(heading, overflow="fold", min_width=_LEAST_NAME)
            else:
                text = heading in ("environment", "status")
                table.add_column(heading, justify="left" if text else "right", no_wrap=True)
        for row, strong in zip(rows, bold, strict=True):
            cells = [cell for heading, cell in zip(_HEADINGS, row, strict=True) if heading in shown]
            table.add_row(*cells, style="bold" if strong else None)
        # Asked about a wider one, or it would say what it could be folded to.
        if console.measure(table, options=console.options.update(max_width=_ANY_WIDTH)).maximum <= console.width:
            break
    return table


def _row(run: Standing, folder: Path) -> tuple[str, ...]:
    row, most = run.row, run.config.total_frames
    frames = row.get("frames", 0)
    return (
        str(run.folder.path.relative_to(folder.absolute())),
        run.config.environment.id,
        run.status.replace("_", " "),
        f"{_in_short(frames)}, {100 * frames / most:.0f} %",
        _number(row.get("mean_return_100")),
        _number(row.get("evaluation_return")),
        duration(row.get("elapsed_seconds")),
    )


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


def _in_short(frames: int) -> str:
    return f"{frames:,}" if frames < 100_000 else f"{frames / 1e6:.2f} M"
