"""Files of the user's own that have the names of the project's packages."""

from pathlib import Path


def write_namesakes(folder: Path) -> None:
    for name in ("actors", "launch", "learner", "shared"):
        (folder / f"{name}.py").write_text("raise RuntimeError('this is not the project')\n")
