"""`tributary train --detach` and `tributary stop`: start a run that outlives its terminal, and end it from another."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from launch.arguments import Operand
from launch.machine import module_command, module_environment
from launch.output import EXIT_DONE, EXIT_FAILED, make_folder, print_line, quoted
from launch.run.folder import holder_of
from launch.run.status import RunPath, is_resumable
from shared.errors import setting_error

# The lock of another process can only be looked at: nothing announces that it is taken or released.
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class StopArguments:
    """Ask a run to finish its rollouts, save and end, and wait until it has. Ctrl-C ends only the waiting."""

    run: Operand[RunPath]
    """Folder of the run, of the runs of several seeds, or of a sweep; latest: the newest run."""
    now: bool = False
    """End at once, as a second Ctrl-C does; agent steps since the last checkpoint are lost."""


def train_detached(arguments: Sequence[str], folder: Path, *, new: bool, several: bool) -> int:
    """Start `tributary train ARGUMENTS` in a session of its own, and wait until it holds its folder or has ended.

    Args:
        arguments: as typed, without `--detach`. The process checks them as usual.
        folder: run folder, or the folder of several seeds.
        new: whether the run begins, in contrast to a resumed one.
        several: whether it trains several seeds.

    Returns:
        0 when the run has begun, else the exit code of the process, whose output is printed.
    """
    log = folder.with_name(f"{folder.name}.log")
    make_folder(log.parent, "run_dir")
    with log.open("w" if new else "a", encoding="utf-8") as output:
        begins = output.tell()
        process = subprocess.Popen(
            module_command("launch.cli", "train", *arguments),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=module_environment(),
        )
    while (holder := holder_of(folder)) is None or holder.pid != process.pid:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_SECONDS)
            break
    printed = log.read_bytes()[begins:].decode(errors="replace")
    if process.returncode is not None:
        # A mistake, or nothing to do, or done within a poll.
        print(printed, end="")
        if process.returncode != EXIT_DONE and new and not folder.exists():
            log.unlink()
        return process.returncode
    print(f"running:      {folder} (process {process.pid}); its output goes to {log}")
    print(f"look at it:   tributary attach {'latest' if several else quoted(folder)}; tributary runs")
    print(f"end it:       tributary stop {quoted(folder)}")
    return EXIT_DONE


def stop(arguments: StopArguments) -> int:
    """Run `tributary stop`. Returns the exit code: 1 if the run still goes on."""
    folder, console = arguments.run, Console()
    holder = holder_of(folder)
    if holder is None:
        raise setting_error("run", folder, "nothing runs there; tributary runs lists what does")
    if not holder.here:
        where = f"on {holder.host}, process {holder.pid}" if holder.pid else "in a process of an older version"
        raise setting_error("run", folder, f"runs {where}: stop it there")
    assert holder.pid is not None
    _interrupt(holder.pid)
    print_line(console, f"asked process {holder.pid} to {'end at once' if arguments.now else 'finish and save'}")
    if arguments.now:
        # Two signals in immediate succession may arrive as one.
        time.sleep(2 * _POLL_SECONDS)
        _interrupt(holder.pid)
    try:
        while holder_of(folder) == holder:
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        print_line(console, "it still finishes")
        return EXIT_FAILED
    command = f"tributary train --resume {quoted(folder)}" if is_resumable(folder) else "the command that began it"
    print_line(console, f"ended: {folder}; {command} goes on")
    return EXIT_DONE


def _interrupt(pid: int) -> None:
    # The process may have ended by itself.
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)
