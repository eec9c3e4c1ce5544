"""The rows and the processes of a run of `tributary train` on Ray, seen from outside."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any


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
