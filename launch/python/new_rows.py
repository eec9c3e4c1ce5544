"""The rows of a run's metrics.jsonl as they are written."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any


class NewRows:
    """Each row once, in the order of the file. After a resume of the run, rows that are there already are not new.

    Args:
        file: metrics.jsonl, which need not be there yet.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read = file.stat().st_size if file.is_file() else 0

    def take(self) -> list[dict[str, Any]]:
        """The rows that were written whole since the last call."""
        try:
            with self._file.open("rb") as file:
                file.seek(self._read)
                written = file.read()
        except FileNotFoundError:
            return []
        whole = written[: written.rfind(b"\n") + 1]
        self._read += len(whole)
        rows = []
        for line in whole.splitlines():
            with suppress(ValueError):
                rows.append(json.loads(line))
        return rows
