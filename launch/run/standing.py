"""How a run stands, as its folder says it: running or ended, how far, how well."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from launch.run.finished import read_summary
from launch.run.folder import RunFolder
from launch.run.lock import Holder, holder_of
from shared.config import RunConfig

RUNNING, DIED = "running", "died"
_PATTERNS = ("*", "*/seed-*", "*/trial-*", "*/*/seed-*")
# From the end of metrics.jsonl: more than any row is long.
_TAIL_BYTES = 65_536


class Standing(NamedTuple):
    """How a run stands. `status` is that of its summary, `running`, or `died`: its process ended without a summary.

    `row` is the last one of metrics.jsonl, and empty before the first.
    """

    folder: RunFolder
    config: RunConfig
    status: str
    holder: Holder | None
    row: dict[str, Any]

    @property
    def running(self) -> bool:
        """Whether a process works on it."""
        return self.holder is not None


def standing(path: Path) -> Standing:
    """How the run in a folder stands.

    Raises:
        ConfigurationError: the folder is not a run's.
    """
    folder = RunFolder(path)
    config = folder.read_settings("run")
    # The holder first: a run that ends in between has its summary by then.
    holder = holder_of(path)
    row, summary = last_row(folder), read_summary(folder)
    if holder is not None:
        status = RUNNING
    elif summary and summary.get("frames", 0) >= row.get("frames", 0):
        status = str(summary.get("status", DIED))
    else:
        status = DIED
    return Standing(folder, config, status, holder, row)


def last_row(folder: RunFolder) -> dict[str, Any]:
    """The last whole row of a run's metrics; empty if there is none."""
    try:
        with folder.metrics.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return {}
    for line in reversed(lines):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            return row
    return {}


def run_folders(runs: Path) -> Iterator[Path]:
    """The folders of runs below a folder, those of several seeds or of a sweep too, the newest first."""
    found = {file for pattern in _PATTERNS for file in runs.glob(f"{pattern}/config.json")}
    dated = [(_started(file), file.parent) for file in found]
    yield from (folder for _, folder in sorted(dated, reverse=True))


def _started(file: Path) -> int:
    manifest = file.with_name("manifest.json")
    return (manifest if manifest.is_file() else file).stat().st_mtime_ns
