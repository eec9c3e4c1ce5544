"""Agents that ship: read-only folders with the files of a run. `make agent` adds one."""

from pathlib import Path

from launch.output import nearest
from shared.errors import ConfigurationError

PREFIX = "zoo:"
FOLDER = Path(__file__).resolve().parent


def agents() -> list[str]:
    return sorted(PREFIX + file.parent.name for file in FOLDER.glob("*/config.json"))


def agent_folder(name: str) -> Path:
    if name not in agents():
        raise ConfigurationError(f"{name}: no such agent ships{nearest(name, agents())}")
    return FOLDER / name.removeprefix(PREFIX)


def agent_name(folder: Path) -> str | None:
    """The zoo:NAME of a folder; None for any other folder."""
    return PREFIX + folder.name if folder.resolve().parent == FOLDER else None
