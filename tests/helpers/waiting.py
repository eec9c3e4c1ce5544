"""Polling with a deadline. `UNTIL_FRAMES` are settings of runs that nothing but their frames ends."""

import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeVar

Found = TypeVar("Found")

DEADLINE_SECONDS = 240.0
UNTIL_FRAMES = "--evaluation.every-frames 0 --stop-at-return None --stop-measure training"


def wait_for(
    condition: Callable[[], Found],
    what: str,
    *,
    process: subprocess.Popen[Any] | None = None,
    shown: Callable[[], object] = lambda: "",
    seconds: float = DEADLINE_SECONDS,
) -> Found:
    """Poll until `condition` returns a true value, which is returned.

    Fails after `seconds`, or when `process` ends before, with the output of `process` and what `shown` returns.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if process is not None and process.poll() is not None:
            output = "" if process.stdout is None else process.communicate()[0]
            raise AssertionError(f"{what}: the process ended\n{shown()}\n{output}")
        assert time.monotonic() < deadline, f"{what}: not seen in {seconds:g} seconds\n{shown()}"
        time.sleep(0.1)
    return found
