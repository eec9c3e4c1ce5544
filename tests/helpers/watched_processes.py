"""`tributary train` in a process of its own, seen from outside: its rows, its processes, and what it prints."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from waiting import DEADLINE_SECONDS, wait_for


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


def actor_processes(driver: int, kind: bytes = b"ray::ActorProcess") -> list[int]:
    """Process ids of the Ray actors of a kind that descend from the driver."""
    parents, names = {}, {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            pid = int(entry.name)
            parents[pid] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            names[pid] = (entry / "cmdline").read_bytes()
    descendants = {driver}
    while grown := {pid for pid, parent in parents.items() if parent in descendants} - descendants:
        descendants |= grown
    return [pid for pid in descendants if names.get(pid, b"").startswith(kind)]


class Training:
    """A training process.

    Args:
        programs: of the environment that has `tributary`.
        folder: of the run.
        arguments: after `tributary train`.
        variables: of its environment.
    """

    def __init__(self, programs: Path, folder: Path, arguments: str, **variables: str) -> None:
        self.folder = folder
        self._log = folder.with_suffix(".log")
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [programs / "tributary", "train", *arguments.split()],
                cwd=folder.parent,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | variables,
            )

    def printed(self) -> str:
        return self._log.read_text()

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        wait_for(condition, what, process=self.process, shown=self.printed)

    def interrupt(self) -> dict[str, Any]:
        self.process.send_signal(signal.SIGINT)
        return self.end(130)

    def end(self, code: int) -> dict[str, Any]:
        assert self.process.wait(DEADLINE_SECONDS) == code, self.printed()
        return json.loads((self.folder / "summary.json").read_text())


# Those of our processes name these otherwise.
_OF_RAY = re.compile(r"(\x1b\[\d+m)?(\(raylet\)|\(pid=gcs_server\)|\[\d{4}-\d\d-\d\d )")


def without_ray(output: str) -> list[str]:
    return [line for line in output.splitlines() if not _OF_RAY.match(line)]
