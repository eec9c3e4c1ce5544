"""Files that are there whole or not at all: a reader sees the old one or the new one."""

import csv
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from launch.output.provenance import provenance
from shared.errors import setting_error


def check_can_be_written(path: Path, setting: str) -> None:
    """Refuse a file that could not be written when its time comes. `setting` is the option that named it.

    Raises:
        ConfigurationError: its folder takes no file of this user.
    """
    try:
        # It has no name there, which another process could be writing under.
        tempfile.TemporaryFile(dir=path.absolute().parent).close()
    except OSError as error:
        raise setting_error(setting, path, f"cannot be written: {error.strerror}") from error


@contextmanager
def whole_file(path: Path) -> Iterator[TextIO]:
    """A text file to write, which takes its name when the block ends without an error."""
    part = path.with_name(f"{path.name}.part")
    with part.open("w", newline="") as file:
        yield file
    part.replace(path)


@contextmanager
def whole_csv(path: Path) -> Iterator[Any]:
    """A writer of the `csv` module, behind a first line of comment that says how the figures came about."""
    with whole_file(path) as file:
        file.write(f"# {json.dumps(provenance())}\n")
        yield csv.writer(file)
