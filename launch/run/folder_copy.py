"""Keep a copy of a run folder on another machine, or in remote storage, up to date."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# Only this machine needs the lock, and a file that is still being written appears under its name later.
_NOT_COPIED = (".lock", ".driver")
_UNFINISHED = (".part", ".tempstate", ".tmp")


class Stamp(NamedTuple):
    """What changes when a file does."""

    modified: int
    size: int


class Changes(NamedTuple):
    """Files whose content changed, by their path in the folder, and the stamps of all files that there are."""

    files: dict[str, bytes]
    stamps: dict[str, Stamp]


def changes_since(folder: Path, known: dict[str, Stamp]) -> Changes:
    """What is new in a folder since it had the stamps `known`."""
    files, stamps = {}, {}
    for path in _files(folder):
        name = path.relative_to(folder).as_posix()
        try:
            status = path.stat()
            stamp = Stamp(status.st_mtime_ns, status.st_size)
            if known.get(name) != stamp:
                files[name] = path.read_bytes()
        except FileNotFoundError:
            # An old checkpoint, deleted just now.
            continue
        stamps[name] = stamp
    return Changes(files, stamps)


def apply_changes(folder: Path, changes: Changes) -> None:
    """Make a folder what the other one is. Old checkpoints go; other files that only this folder has stay."""
    for name, content in changes.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        part.write_bytes(content)
        part.replace(path)
    for path in _files(folder):
        name = path.relative_to(folder).as_posix()
        if name.startswith("checkpoints/") and name not in changes.stamps:
            path.unlink()


def _files(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        for name in names:
            if name not in _NOT_COPIED and not any(mark in name for mark in _UNFINISHED):
                yield Path(parent, name)
