"""`tributary train`, or its resume, in a process of its own, watched from outside."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from waiting import DEADLINE_SECONDS, wait_for


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

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        wait_for(condition, what, process=self.process, shown=self._log.read_text)

    def interrupt(self) -> dict[str, Any]:
        self.process.send_signal(signal.SIGINT)
        return self.end(130)

    def end(self, code: int) -> dict[str, Any]:
        assert self.process.wait(DEADLINE_SECONDS) == code, self._log.read_text()
        return json.loads((self.folder / "summary.json").read_text())
