"""`tributary train` in a process of its own, seen from outside: its rows, its processes, and what it prints."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from waiting import DEADLINE_SECONDS, Found, wait_for


def rows(run: Path) -> list[dict[str, Any]]:
    file = run / "metrics.jsonl"
    # The last line may be half written.
    whole = file.read_text().rpartition("\n")[0] if file.is_file() else ""
    return [json.loads(line) for line in whole.splitlines()]


def processes_with(variable: str) -> dict[int, str]:
    """The command lines of the processes whose environment has `variable`, written NAME=value."""
    found = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            command = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            if command and f"{variable}\0".encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = command.decode(errors="replace")
    return found


def output_of(*command: object, variables: Mapping[str, str] | None = None, **options: Any) -> str:
    """What a command prints that ends well, without its errors. See `Watched` for the options."""
    options = {"env": os.environ | (variables or {}), "capture_output": True, "text": True, "check": False} | options
    ended = subprocess.run([str(part) for part in command], **options)
    assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
    return ended.stdout


class Watched:
    """A process whose output is in the file `log`. Use as a context: what still runs at its end is killed.

    `options` are those of `subprocess.Popen`, but for `variables`, which are added to the environment.
    """

    seconds = DEADLINE_SECONDS

    def __init__(
        self, command: Sequence[object], log: Path, variables: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        self._log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [str(part) for part in command],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | (variables or {}),
                **options,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def printed(self) -> str:
        return self._log.read_text()

    def wait_for(self, condition: Callable[[], Found], what: str) -> Found:
        return wait_for(condition, what, process=self.process, shown=self.printed, seconds=self.seconds)

    def end(self, code: int) -> None:
        assert self.process.wait(self.seconds) == code, self.printed()


class Training(Watched):
    """`tributary train` by the programs of an environment."""

    def __init__(self, programs: Path, folder: Path, arguments: str, **variables: str) -> None:
        self.folder = folder
        command = [programs / "tributary", "train", *arguments.split()]
        super().__init__(command, folder.with_suffix(".log"), variables, cwd=folder.parent)

    def interrupt(self) -> dict[str, Any]:
        self.process.send_signal(signal.SIGINT)
        return self.summary(130)

    def summary(self, code: int = 0) -> dict[str, Any]:
        """The summary, once it has ended with this code."""
        self.end(code)
        return json.loads((self.folder / "summary.json").read_text())


# Those of our processes name these otherwise.
_OF_RAY = re.compile(r"(\x1b\[\d+m)?(\(raylet\)|\(pid=gcs_server\)|\[\d{4}-\d\d-\d\d )")


def without_ray(output: str) -> list[str]:
    return [line for line in output.splitlines() if not _OF_RAY.match(line)]
