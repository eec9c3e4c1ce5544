"""How a file came about: what every output of the project carries."""

import hashlib
import importlib.metadata
import json
import platform
import shlex
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from launch.output.hardware import hardware

_PACKAGES = ("tributary-rl", "tensorflow", "keras", "ray", "gymnasium", "ale-py", "numpy")
_SOURCES = ("actors", "learner", "shared", "launch")


def provenance() -> dict[str, Any]:
    """The command, the time, the project's revision, versions and hardware."""
    return {
        "command": command_line(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": revision(),
        "versions": versions(),
        "hardware": hardware(),
    }


def provenance_text(**more: Any) -> str:
    """The same, and `more`, as one line of JSON: for the metadata of pictures and videos."""
    return json.dumps({**more, **provenance()})


def command_line() -> str:
    """The command that this process runs, as one would type it."""
    return shlex.join([Path(sys.argv[0]).name.replace("cli.py", "tributary"), *sys.argv[1:]])


@cache
def revision() -> str:
    """12 hexadecimal digits that differ when any of the project's source files differs."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for file in sorted(f for package in _SOURCES for f in (root / package).rglob("*.py")):
        digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def versions() -> dict[str, str | None]:
    """Of Python and of the packages that the numbers depend on."""
    return {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
