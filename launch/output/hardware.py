"""The machine that a figure was made on."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

# Linux has it.
_CPU_INFO = Path("/proc/cpuinfo")


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_bytes() -> int:
    """Physical memory of this machine."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        # Not every Python for macOS knows both names.
        return int(subprocess.run(["sysctl", "-n", "hw.memsize"], capture_output=True, check=True).stdout)


def hardware() -> dict[str, Any]:
    """The machine, as a reader of a figure needs to know it."""
    model = platform.processor() or platform.machine()
    if _CPU_INFO.is_file():
        names = [line.split(":", 1)[1].strip() for line in _CPU_INFO.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return {
        "cpu": model,
        "cores": usable_cores(),
        "memory_gib": round(machine_bytes() / 2**30, 1),
        "system": sys.platform,
    }


def hardware_line(made: dict[str, Any]) -> str:
    """The hardware of a provenance in a few words."""
    machine = made["hardware"]
    return f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_gib']:g} GiB"
