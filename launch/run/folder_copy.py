"""Keep a copy of a run folder on another machine, or in remote storage, up to date."""

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

# Only this machine needs the lock, and a file that is still being written appears under its name later.
_NOT_COPIED = (".lock", ".driver")
# Of this program, of TensorFlow's checkpoints, and of the `checkpoint` file beside these.
_UNFINISHED = re.compile(r".*(\.part|\.part\.npz|\.tempstate\d+|\.tmp[0-9a-f]*)")


# What a run only adds to, and for days: metrics, messages, TensorBoard's events.
_ADDED_TO = re.compile(r".*\.jsonl|log\.txt|events\.out\.tfevents\..*")


class Stamp(NamedTuple):
    """What changes when a file does. A file that was written anew, and not added to, has another `inode`."""

    modified: int
    size: int
    inode: int


class Tail(NamedTuple):
    """What was added to a file of `size` bytes."""

    size: int
    added: bytes


class Changes(NamedTuple):
    """What changed, by path in the folder: whole files, what was added to others; and the stamps of all there are."""

    files: dict[str, bytes]
    tails: dict[str, Tail]
    stamps: dict[str, Stamp]


def changes_since(folder: Path, known: dict[str, Stamp], *, tails: bool = False) -> Changes:
    """What is new in a folder since it had the stamps `known`; of files that only grow the new end, with `tails`."""
    changes = Changes({}, {}, {})
    for path in _files(folder):
        name = path.relative_to(folder).as_posix()
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                stamp, before = Stamp(status.st_mtime_ns, status.st_size, status.st_ino), known.get(name)
                if before is not None and tails and _only_grew(path.name, before, stamp):
                    file.seek(before.size)
                    changes.tails[name] = Tail(before.size, file.read(stamp.size - before.size))
                elif before != stamp:
                    changes.files[name] = file.read(stamp.size)
        except FileNotFoundError:
            # An old checkpoint, deleted just now.
            continue
        changes.stamps[name] = stamp
    return changes


def path_within(folder: Path, name: str) -> Path:
    """The path of a file in a folder, by its name relative to it.

    Raises:
        ValueError: the path is outside of the folder.
    """
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts:
        raise ValueError(f"the file {name!r} is outside of the run's folder")
    return folder / parts


def apply_changes(folder: Path, changes: Changes) -> None:
    """Make a folder what the other one is. Old checkpoints go; other files that only this folder has stay.

    Raises:
        ValueError: a name is outside of the folder. Nothing was written.
    """
    paths = {name: path_within(folder, name) for name in (*changes.tails, *changes.files)}
    for name, tail in changes.tails.items():
        with paths[name].open("r+b") as file:
            # An attempt before this one may have written some of it.
            file.seek(tail.size)
            file.write(tail.added)
    for name, content in changes.files.items():
        path = paths[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        part.write_bytes(content)
        part.replace(path)
    for path in _files(folder):
        name = path.relative_to(folder).as_posix()
        if name.startswith("checkpoints/") and name not in changes.stamps:
            path.unlink()


def _only_grew(name: str, before: Stamp, now: Stamp) -> bool:
    return _ADDED_TO.fullmatch(name) is not None and before.inode == now.inode and before.size < now.size


def _files(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        for name in names:
            if name not in _NOT_COPIED and not _UNFINISHED.fullmatch(name):
                yield Path(parent, name)
