"""Files that are there whole or not at all: a reader sees the old one or the new one."""

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from launch.output.provenance import provenance


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
