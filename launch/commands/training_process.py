"""Train by resolved settings in a process of its own.

`python -m launch.commands.training_process SETTINGS RUN PRESET new|resume START_FROM ARGV…`
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from launch.commands.train import TrainArguments, train
from launch.machine.import_path import module_command, module_environment
from launch.output import exit_code
from launch.run.folder import RunFolder
from shared.config import RunConfig


def main(settings: str, run: str, preset: str, how: str, start_from: str, *arguments: str) -> int:
    """Train with the settings in one folder, into another, or go on there. Returns the exit code.

    `start_from` is the folder of a run, or empty. `arguments` are the command that asked for it: the run's manifest
    names it.
    """
    sys.argv = list(arguments)
    # A worker of Ray has it blocked, and what a worker starts inherits that.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    config, folder = RunFolder(Path(settings)).read_settings("settings"), Path(run)
    trust = "--trust-imports" in arguments
    wanted = TrainArguments(
        config, run_dir=folder, start_from=Path(start_from) if start_from else None, trust_imports=trust
    )
    if how == "resume":
        wanted = TrainArguments(config, resume=folder)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    return exit_code(lambda: train(wanted, preset))


def _end_with_parent() -> None:
    """Ask this process to end when the one that asked for it has gone, however it ended: nobody would stop it.

    It may have interrupted this one before, and a second Ctrl-C leaves at once, without saving: SIGTERM only asks.

    Standard input is a pipe that the other one holds open. It is read without `sys.stdin`, whose lock a thread that
    waits would hold when the interpreter ends.
    """
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def training_process(
    config: RunConfig,
    run: Path,
    preset: str,
    output: IO[str] | int | None = None,
    *,
    resume: bool = False,
    start_from: Path | None = None,
    asked_by: Sequence[str] | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """A process that trains, with its output to `output`, or here. At the end it is waited for, as long as it takes.

    `asked_by` is the command that the run's manifest names: by default the one of `tributary` that this process runs.

    It is no part of this process's group: an interrupt reaches it from here, once, so that it saves and ends. So it
    does when this process is killed.
    """
    with tempfile.TemporaryDirectory(prefix="tributary-settings-") as folder, _held_pipe() as held:
        RunFolder(Path(folder)).write_config(config)
        asked_by = ["tributary", *sys.argv[1:]] if asked_by is None else asked_by
        how, start = "resume" if resume else "new", str(start_from or "")
        module = "launch.commands.training_process"
        command = module_command(module, folder, str(run), preset, how, start, *asked_by)
        errors = None if output is None else subprocess.STDOUT
        process = subprocess.Popen(
            command, stdin=held, stdout=output, stderr=errors, text=True, process_group=0, env=module_environment()
        )
        try:
            yield process
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            raise
        finally:
            while process.poll() is None:
                try:
                    process.wait()
                except KeyboardInterrupt:
                    process.send_signal(signal.SIGINT)


def last_line(log: Path) -> str:
    """The last line of what such a process has printed; empty if it has printed none."""
    return (log.read_text(errors="replace").splitlines() or [""])[-1]


@contextmanager
def _held_pipe() -> Iterator[int]:
    """A pipe to read from that ends with this context, or with this process."""
    read, write = os.pipe()
    try:
        yield read
    finally:
        os.close(read)
        os.close(write)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
