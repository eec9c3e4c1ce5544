"""The note beside a run's folder that it was submitted as a Ray job: by it others find the job."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from launch.output.json_file import write_json

_END = ".job.json"


class JobNote(NamedTuple):
    """A run, or the runs of several seeds, as a Ray job: its id, and the URL of the server that knows it.

    `environment` and `total_frames` are for a list of runs, where the folder is on another machine.
    """

    job: str
    server: str
    environment: str
    total_frames: int


def write_note(folder: Path, note: JobNote) -> None:
    """Leave the note of a folder, which need not be there."""
    write_json(_file(folder), note._asdict())


def remove_note(folder: Path) -> None:
    """Take it away again."""
    _file(folder).unlink(missing_ok=True)


def note_of(folder: Path) -> JobNote | None:
    """The note of a folder; None if there is none that can be read."""
    try:
        values = json.loads(_file(folder).read_text())
        return JobNote(**{name: values[name] for name in JobNote._fields})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def folders_elsewhere(runs: Path) -> Iterator[Path]:
    """The folders below `runs` that have a note, and are not here: their jobs wait, or are on another machine."""
    for file in sorted(runs.glob(f"*{_END}"), key=lambda file: file.stat().st_mtime_ns, reverse=True):
        folder = file.with_name(file.name.removesuffix(_END))
        if not folder.exists():
            yield folder


def _file(folder: Path) -> Path:
    folder = folder.absolute()
    return folder.with_name(folder.name + _END)
