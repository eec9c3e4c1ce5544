"""What is added to a file of a run while somebody looks on: lines of log.txt, rows of metrics.jsonl."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any


class NewLines:
    """Each line once, in the order of the file. Those that are there already are not new.

    Args:
        file: which need not be there yet.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read = file.stat().st_size if file.is_file() else 0

    def take(self) -> list[str]:
        """The lines that were written whole since the last call."""
        try:
            with self._file.open("rb") as file:
                file.seek(self._read)
                written = file.read()
        except FileNotFoundError:
            return []
        whole = written[: written.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode(errors="replace").split("\n")[:-1]


class NewRows:
    """The rows of a run's metrics.jsonl as they are written, as `NewLines` has lines."""

    def __init__(self, file: Path) -> None:
        self._lines = NewLines(file)

    def take(self) -> list[dict[str, Any]]:
        """The rows that were written whole since the last call."""
        rows = []
        for line in self._lines.take():
            with suppress(ValueError):
                rows.append(json.loads(line))
        return rows
