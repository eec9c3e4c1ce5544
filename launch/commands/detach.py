"""`tributary train --detach`: the run goes on in a process of its own, whatever becomes of the terminal."""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from launch.machine.import_path import module_command, module_environment
from launch.output.exit_codes import EXIT_DONE
from launch.output.output_file import make_folder
from launch.run.lock import holder_of

_POLL_SECONDS = 0.1


def train_detached(arguments: Sequence[str], folder: Path, *, new: bool, several: bool) -> int:
    """Start `tributary train ARGUMENTS` in a session of its own, and wait until it has its folder or has failed.

    Args:
        arguments: as typed, without `--detach`; the process reads and checks them as any other does.
        folder: of the run, or of the runs of `several` seeds.
        new: the folder is of a run that begins.

    Returns:
        The exit code: 0 when the run has begun, else that of the process, whose last line is shown.
    """
    log = folder.with_name(f"{folder.name}.log")
    make_folder(log.parent, "run_dir")
    with log.open("w" if new else "a") as output:
        begins = output.tell()
        process = subprocess.Popen(
            module_command("launch.cli", "train", *arguments),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=module_environment(),
        )
    while process.poll() is None and not _has(folder, process.pid):
        time.sleep(_POLL_SECONDS)
    said = log.read_bytes()[begins:].decode(errors="replace")
    if process.returncode:
        print(said, end="")
        if new and not folder.exists():
            log.unlink()
        return process.returncode
    if process.returncode == EXIT_DONE:
        # It had nothing to do, or was faster than this.
        print(said, end="")
        return EXIT_DONE
    print(f"running:      {folder} (process {process.pid}); its output goes to {log}")
    print(f"look at it:   tributary attach {'latest' if several else folder}; tributary runs")
    print(f"end it:       tributary stop {folder}")
    return EXIT_DONE


def _has(folder: Path, pid: int) -> bool:
    holder = holder_of(folder)
    return holder is not None and holder.pid == pid
