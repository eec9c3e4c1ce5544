"""JSON files that commands write."""

import json
from pathlib import Path
from typing import Any

from launch.output.whole_file import check_can_be_written, whole_file
from shared.errors import setting_error


def check_json_file(path: Path | None) -> None:
    """Refuse a `--json` file that could not be written when its time comes.

    Raises:
        ConfigurationError: its folder does not exist or cannot be written to, or it is a folder itself.
    """
    if path is None:
        return
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise setting_error("json", path, "must be a file in a folder that exists")
    check_can_be_written(path, "json")


def drop_half_line(file: Path) -> None:
    """Cut off what a killed process left of the last line of a file, if there is one, with a JSON object per line."""
    if not file.is_file():
        return
    content = file.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with file.open("r+b") as cut:
            cut.truncate(whole)


def write_json(path: Path, values: Any) -> None:
    """Write a JSON file in one step: a reader sees the old file or the new one."""
    with whole_file(path) as file:
        file.write(json.dumps(values, indent=2) + "\n")
