"""Agents that ship: folders that are read like those of runs, and never written to. `make agent` packs one."""

from pathlib import Path

from shared.errors import ConfigurationError

PREFIX = "zoo:"
FOLDER = Path(__file__).resolve().parent


def agents() -> list[str]:
    """What there is, each as it is typed: zoo:NAME."""
    return sorted(PREFIX + file.parent.name for file in FOLDER.glob("*/config.json"))


def agent_folder(name: str) -> Path:
    """The folder of zoo:NAME.

    Raises:
        ConfigurationError: there is no such agent; the error names those that there are.
    """
    if name not in agents():
        raise ConfigurationError(f"{name}: no such agent ships; there are {', '.join(agents())}")
    return FOLDER / name.removeprefix(PREFIX)


def agent_name(folder: Path) -> str | None:
    """A folder's zoo:NAME; None for a folder that does not ship."""
    return PREFIX + folder.name if folder.resolve().parent == FOLDER else None
