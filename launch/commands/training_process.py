"""Train by resolved settings in a process of its own.

`python -m launch.commands.training_process SETTINGS RUN PRESET START_FROM ARGV…`
"""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from launch.commands.train import TrainArguments, train
from launch.machine.import_path import module_command, module_environment
from launch.output.exit_codes import exit_code
from launch.run.folder import RunFolder
from shared.config import RunConfig


def main(settings: str, run: str, preset: str, start_from: str, *arguments: str) -> int:
    """Train with the settings in one folder, into another. Returns the exit code.

    `start_from` is the folder of a run, or empty. `arguments` are those of the command that asked for it: the run's
    manifest names it.
    """
    sys.argv = ["tributary", *arguments]
    config = RunFolder(Path(settings)).read_config("settings")
    start = Path(start_from) if start_from else None
    return exit_code(lambda: train(TrainArguments(config, run_dir=Path(run), start_from=start), preset))


@contextmanager
def training_process(
    config: RunConfig,
    run: Path,
    preset: str,
    output: IO[str] | int | None = None,
    start_from: Path | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """A process that trains, with its output to `output`, or here. At the end it is waited for, as long as it takes.

    It is no part of this process's group: an interrupt reaches it from here, once, so that it saves and ends.
    """
    with tempfile.TemporaryDirectory(prefix="tributary-settings-") as folder:
        RunFolder(Path(folder)).write_config(config)
        start = str(start_from or "")
        command = module_command("launch.commands.training_process", folder, str(run), preset, start, *sys.argv[1:])
        errors = None if output is None else subprocess.STDOUT
        process = subprocess.Popen(
            command, stdout=output, stderr=errors, text=True, process_group=0, env=module_environment()
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


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
