"""Ray's error of several lines, in one line for the log."""

import re
from pathlib import Path

import ray

from shared.errors import last_line

_FRAME = re.compile(r'^\s*File "(.+)", line (\d+), in (.+)$', re.MULTILINE)


def failure_reason(error: ray.exceptions.RayError, call: str = "its rollout") -> str:
    """Why a process or a call failed, in one line, and where it raised an error. `call` is what was asked of it."""
    reason = last_line(error)
    if not isinstance(error, ray.exceptions.RayActorError):
        return f"{call} raised: {reason}{_place(str(error))}"
    # Ray appends a paragraph of possible causes, the same each time.
    detail = reason.partition(" Some common causes")[0].partition("Worker exit detail: ")
    return f"its process died: {detail[2] or detail[0]}"


def _place(traceback: str) -> str:
    """The innermost frame of a traceback, in brackets; nothing if there is none."""
    frames = _FRAME.findall(traceback)
    if not frames:
        return ""
    file, line, function = frames[-1]
    return f" ({Path(file).name}:{line}, in {function})"
