"""JSON files that commands write."""

import json
from pathlib import Path
from typing import Any

from shared.errors import setting_error


def check_json_file(path: Path | None) -> None:
    """Refuse a `--json` file that could not be written when its time comes.

    Raises:
        ConfigurationError: its folder does not exist, or it is a folder itself.
    """
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise setting_error("json", path, "must be a file in a folder that exists")


def write_json(path: Path, values: Any) -> None:
    """Write a JSON file in one step: a reader sees the old file or the new one."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(json.dumps(values, indent=2) + "\n")
    temporary.replace(path)
