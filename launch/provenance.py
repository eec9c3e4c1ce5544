"""The origin of numbers: command, revision, versions and hardware, part of every file that a command writes."""

import hashlib
import importlib.metadata
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from launch.files import to_json
from launch.machine import machine_bytes, usable_cores
from shared.errors import PACKAGES, counted

_ROOT = Path(__file__).parents[1]
# The command that a user types, by the file that `python -m` runs.
_MODULES = {"cli.py": "tributary", "tributary_rl.py": "tributary"}
_CPU_INFO = Path("/proc/cpuinfo")
_PACKAGES = ("tributary-rl", "tensorflow", "keras", "ray", "gymnasium", "ale-py", "numpy")
# The folders of an absolute PATH or --option=PATH.
_FOLDERS = re.compile(r"^(|-[^/]*=)/.*/(?=[^/])")


def provenance() -> dict[str, Any]:
    """Command, time, revision of the project, versions and hardware: part of every file that a command writes."""
    return {
        "command": shlex.join([_MODULES.get(name := Path(sys.argv[0]).name, name), *sys.argv[1:]]),
        "created": datetime.now(UTC).isoformat(timespec="microseconds"),
        "revision": revision(),
        "versions": versions(),
        "hardware": hardware(),
    }


def provenance_text(runs: Sequence[str] = (), **more: Any) -> str:
    """The provenance and `more` as one line of JSON, for the metadata of pictures and videos.

    Pictures and videos are passed on, and absolute paths have names of users and of machines: only the last part of
    such a path stays, in `runs` and in the command, PATH or --option=PATH.
    """
    origin = provenance()
    origin["command"] = shlex.join(_FOLDERS.sub(r"\1", word) for word in shlex.split(origin["command"]))
    sources = {"runs": [_FOLDERS.sub("", run) for run in runs]} if runs else {}
    return to_json({**sources, **more, **origin})


@cache
def revision() -> str:
    """The project's commit, with -dirty where files differ from it; outside of a git checkout the `source_digest`."""
    if (_ROOT / ".git").exists():
        command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        # A hook of another repository sets GIT_DIR.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        # Without git, or in a checkout of another user, there is no commit to be had.
        with suppress(OSError, subprocess.SubprocessError):
            described = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10, env=environment)
            return described.stdout.strip()
    return source_digest()


@cache
def source_digest() -> str:
    """12 hexadecimal digits of a digest of the source files, the same in a checkout and where it is installed."""
    digest = hashlib.sha256()
    files = (file for package in PACKAGES for file in (_ROOT / package).rglob("*"))
    for file in sorted(file for file in files if file.suffix in (".py", ".toml")):
        digest.update(str(file.relative_to(_ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that affect the numbers; None for one that is not installed."""
    by_package: dict[str, str | None] = {"python": platform.python_version(), **dict.fromkeys(_PACKAGES)}
    for name in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            by_package[name] = importlib.metadata.version(name)
    return by_package


def hardware() -> dict[str, Any]:
    """Processor, cores, memory and system of this machine."""
    return {
        "cpu": _cpu(),
        "cores": usable_cores(),
        "memory_gib": round(machine_bytes() / 2**30, 1),
        "system": sys.platform,
    }


def _cpu() -> str:
    """The processor's name, with family and model: a virtual machine may name a whole line of processors."""
    # The entry of the first core.
    lines, _, _ = _CPU_INFO.read_text(encoding="utf-8").partition("\n\n")
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines.splitlines())}
    # ARM has none of them.
    numbers = f" (family {facts['cpu family']}, model {facts['model']})" if "cpu family" in facts else ""
    return facts.get("model name", platform.machine()) + numbers


def hardware_line(origin: dict[str, Any]) -> str:
    """The hardware of a provenance in one line."""
    machine = origin["hardware"]
    return f"{counted(machine['cores'], 'core')} of {machine['cpu']}, {machine['memory_gib']:g} GiB"
