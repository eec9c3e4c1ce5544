"""CPU seconds of the processes that a bench has started, by what they are. Linux only; elsewhere there are none."""

import os
import re
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def cpu_seconds(root: int, proc: Path = _PROC) -> dict[str, float]:
    """CPU seconds so far of the processes below `root`, by kind.

    The kind of one of Ray's actors is the name of its class; Ray's own processes are raylet and other.
    """
    kinds, seconds, children = dict[int, str](), dict[int, float](), defaultdict[int, list[int]](list)
    tick = os.sysconf("SC_CLK_TCK")
    for entry in proc.glob("[0-9]*"):
        # A process may end at any moment.
        with suppress(OSError, IndexError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            pid = int(entry.name)
            children[int(fields[1])].append(pid)
            seconds[pid] = (int(fields[11]) + int(fields[12])) / tick
            kinds[pid] = _kind((entry / "cmdline").read_bytes().decode(errors="replace"))
    found = defaultdict[str, float](float)
    below = list(children[root])
    while below:
        pid = below.pop()
        found[kinds.get(pid, "other")] += seconds[pid]
        below += children[pid]
    return dict(found)


def _kind(command: str) -> str:
    actor = re.match(r"ray::(\w+)", command)
    if actor:
        return actor[1]
    return "raylet" if Path(command.partition("\0")[0]).name == "raylet" else "other"
