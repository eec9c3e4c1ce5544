"""`tributary attach RUN`: show the progress of a run that goes on elsewhere."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from launch.commands.display import Display, summary_lines
from launch.output.exit_codes import EXIT_DONE, EXIT_FAILED
from launch.output.lines import print_line
from launch.run.finished import read_summary
from launch.run.job_note import note_of
from launch.run.latest import RunPath
from launch.run.new_lines import NewLines
from launch.run.rows import progress_of
from launch.run.standing import DIED, standing

_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class AttachArguments:
    """Show the progress of a run until it ends, as its own terminal would. Ctrl-C leaves, and the run goes on."""

    run: Annotated[RunPath, tyro.conf.Positional]
    """Folder of the run; latest: the newest one."""


def attach(arguments: AttachArguments) -> int:
    """Run `tributary attach`. Returns the exit code: 0 when the run has ended or is left, 1 if it failed or died.

    Raises:
        ConfigurationError: the folder is not a run's.
    """
    console, path = Console(), arguments.run
    note = note_of(path)
    if note is not None and not path.exists():
        from launch.commands.job import attach_to_job

        return attach_to_job(note, path, console)
    run = standing(path)
    if run.running:
        print_line(console, f"run folder:   {run.folder.path}; Ctrl-C leaves it running")
        try:
            _follow(path, console)
        except KeyboardInterrupt:
            print_line(console, f"left; it goes on: tributary stop {path} ends it")
            return EXIT_DONE
        run = standing(path)
    if run.status == DIED:
        print_line(console, f"its process ended without a summary: tributary train --resume {path} goes on")
        return EXIT_FAILED
    for line in summary_lines(read_summary(run.folder), str(path)):
        print_line(console, line)
    return EXIT_FAILED if run.status == "failed" else EXIT_DONE


def _follow(path: Path, console: Console) -> None:
    """Show rows and messages as they come, until no process works on the run any more."""
    run = standing(path)
    log = NewLines(run.folder.log)
    reached = f"at {run.row['frames']:,} frames" if run.row else "before its first row"
    with Display(run.config, console, f"{reached}; a row comes every {run.config.log_every_seconds:g} s") as display:
        while run.running:
            for line in log.take():
                display.message(line)
            if run.row:
                display.update(progress_of(run.row))
            time.sleep(_POLL_SECONDS)
            run = standing(path)
        for line in log.take():
            display.message(line)
