"""`tributary stop RUN`: ask a run to finish and save, as Ctrl-C in its terminal does."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from launch.output.exit_codes import EXIT_DONE, EXIT_FAILED
from launch.output.lines import print_line
from launch.run.job_note import JobNote, note_of
from launch.run.latest import RunPath
from launch.run.lock import holder_of
from launch.run.seeds_note import is_resumable
from shared.errors import ConfigurationError, setting_error

_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class StopArguments:
    """Ask a run to finish its rollouts, save, and end, and wait until it has. Ctrl-C stops the waiting only."""

    run: Annotated[RunPath, tyro.conf.Positional]
    """Folder of the run, of the runs of several seeds, or of a sweep; latest: the newest run."""
    now: bool = False
    """End at once, as a second Ctrl-C does: what was played since the last checkpoint is lost."""


def stop(arguments: StopArguments) -> int:
    """Run `tributary stop`. Returns the exit code: 1 if the run still goes on.

    Raises:
        ConfigurationError: nothing runs there, or not on this machine.
    """
    folder, console = arguments.run, Console()
    holder, note = holder_of(folder), note_of(folder)
    here = holder is not None and holder.here
    if note is not None and not (arguments.now and here):
        try:
            ended = _stop_job(note, folder, console, now=arguments.now)
        except ConfigurationError:
            # Its cluster may be gone, and the run go on by itself.
            if not folder.exists():
                raise
            ended = None
        if ended is not None:
            return ended
    if holder is None:
        raise setting_error("run", folder, "nothing runs there; tributary runs lists what does")
    if not here:
        where = f"on {holder.host}, process {holder.pid}" if holder.pid else "in a process of an older version"
        raise setting_error("run", folder, f"runs {where}: stop it there")
    assert holder.pid is not None
    _interrupt(holder.pid)
    print_line(console, f"asked process {holder.pid} to {'end at once' if arguments.now else 'finish and save'}")
    if arguments.now:
        # Two signals at once may arrive as one.
        time.sleep(_POLL_SECONDS)
        _interrupt(holder.pid)
    return _wait(lambda: holder_of(folder) != holder, folder, console)


def _stop_job(note: JobNote, folder: Path, console: Console, *, now: bool) -> int | None:
    """Have Ray ask a job to end, and wait until it has. Returns the exit code; None if it had ended."""
    from launch.on_ray.jobs import Jobs

    jobs = Jobs(note.server)
    if jobs.status(note.job).ended:
        return None
    if now:
        raise setting_error("now", True, f"type it on the machine where the job's process is: {note.server}")
    jobs.stop(note.job)
    print_line(console, f"asked Ray job {note.job} to finish and save")
    return _wait(lambda: jobs.status(note.job).ended, folder, console)


def _interrupt(pid: int) -> None:
    # It may have ended by itself.
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)


def _wait(ended: Callable[[], bool], folder: Path, console: Console) -> int:
    """Wait until what runs in a folder has ended. Returns the exit code."""
    try:
        while not ended():
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        print_line(console, "it still finishes")
        return EXIT_FAILED
    # Runs elsewhere, whose folder is not here, are of `tributary train` too.
    resumable = not folder.exists() or is_resumable(folder)
    command = f"tributary train --resume {folder}" if resumable else "the command that began it"
    print_line(console, f"ended: {folder}; {command} goes on")
    return EXIT_DONE
