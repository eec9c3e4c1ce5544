"""Files that are replaced as a whole, JSON, and checks of paths before hours of work for them."""

import json
import math
import os
import secrets
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from shared.errors import setting_error

# As many as Linux follows.
_MAX_LINKS = 40


def typed_path(text: str) -> Path:
    """A path as it was typed. A leading ~ is the home folder: a shell does not replace that of --run-dir=~/runs."""
    return Path(os.path.expanduser(text))


def unfinished(path: Path) -> Path:
    """A name for a file until `finish`, each time another: several processes may write the same file at once.

    Processes of two containers may have the same id.
    """
    folder = Path(tempfile.gettempdir()) if _is_stream(path) else Path(os.path.realpath(path)).parent
    return folder / f"{path.stem}.part-{secrets.randbelow(10**12)}{path.suffix}"


def finish(part: Path, path: Path) -> None:
    """Let a complete file replace `path`, or the target of a link. A pipe or a device receives its content."""
    descriptor = _descriptor(path)
    if descriptor is not None:
        sys.stdout.flush()
        # A reader that has gone, as `head`, wants no more.
        with suppress(BrokenPipeError), open(descriptor, "wb", closefd=False) as stream:
            stream.write(part.read_bytes())
    elif _is_stream(path):
        path.write_bytes(part.read_bytes())
    else:
        # After a power loss some file systems have the new name without the content.
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(os.path.realpath(path))


def _is_stream(path: Path) -> bool:
    """True for pipes, devices and open files, and for links to them, like /dev/stdout."""
    return _descriptor(path) is not None or (path.exists() and not (path.is_file() or path.is_dir()))


def _descriptor(path: Path) -> int | None:
    """The file descriptor that a path like /dev/stdout names; None for any other path."""
    # Links may lead to one another.
    for _ in range(_MAX_LINKS):
        if not path.is_symlink():
            break
        folder = os.path.realpath(path.parent)
        if folder == f"/proc/{os.getpid()}/fd":
            return int(path.name)
        path = Path(folder, os.readlink(path))
    return None


@contextmanager
def replacement(path: Path) -> Iterator[Path]:
    """The name of a file that replaces `path` as a whole when the block ends without an error."""
    part = unfinished(path)
    try:
        yield part
        finish(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def whole_file(path: Path) -> Iterator[TextIO]:
    """A text file that replaces `path` as a whole when the block ends without an error."""
    with replacement(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        yield file


def write_json(path: Path | None, values: Any) -> None:
    """Replace a JSON file as a whole; see `to_json`. None: the user gave no `--json`."""
    if path is not None:
        with whole_file(path) as file:
            file.write(to_json(values, indent=2) + "\n")


def to_json(values: Any, indent: int | None = None) -> str:
    """Plain values as JSON, which has no NaN and no infinities: they are null."""
    return json.dumps(finite(values), indent=indent, allow_nan=False)


def finite(values: Any) -> Any:
    """Plain values with None in place of each NaN and infinity, in new dicts and lists."""
    if isinstance(values, Mapping):
        return {name: finite(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [finite(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


def make_folder(folder: Path, setting: str) -> None:
    """Make a folder and its parents, or raise a ConfigurationError about the option `setting` that named it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise setting_error(setting, folder, f"cannot be made: {error.strerror}") from error


def check_can_be_written(path: Path | None, setting: str, suffixes: Sequence[str] = ()) -> None:
    """Refuse a file that cannot be written, or has none of these suffixes, like `.png`, before hours of work for it.

    `setting` is the option that named it; None: it did not.
    """
    if path is None:
        return
    try:
        if path.is_dir() or not path.absolute().parent.is_dir() or (suffixes and path.suffix not in suffixes):
            kind = f"must end in {' or '.join(suffixes)}," if suffixes else "must be a file"
            raise setting_error(setting, path, f"{kind} in a folder that exists")
        target = Path(os.path.realpath(path))
        if _descriptor(path) is None and target.is_file():
            folder, owner = target.parent.stat(), target.stat().st_uid
            # In a folder like /tmp a file is replaced by its owner only.
            if folder.st_mode & stat.S_ISVTX and os.geteuid() not in (0, owner, folder.st_uid):
                raise setting_error(setting, path, "cannot be written: it is another user's")
        # A file without a name, which no other process can be writing.
        tempfile.TemporaryFile(dir=unfinished(path).parent).close()
    except OSError as error:
        raise setting_error(setting, path, f"cannot be written: {error.strerror}") from error
