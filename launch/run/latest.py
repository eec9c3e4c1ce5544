"""`latest` as the name of a run: the newest one below runs/."""

from pathlib import Path
from typing import Annotated

from tyro.constructors import PrimitiveConstructorSpec

from shared.errors import ConfigurationError

LATEST = "latest"
_RUNS = Path("runs")


def newest_run(runs: Path = _RUNS) -> Path:
    """The run in `runs` that was started last, of several seeds the last one.

    Raises:
        ConfigurationError: there is none.
    """
    found = [file for pattern in ("*/manifest.json", "*/seed-*/manifest.json") for file in runs.glob(pattern)]
    if not found:
        raise ConfigurationError(f"latest is the newest run below {runs}/, and there is none: name a folder")
    return max(found, key=lambda file: file.stat().st_mtime_ns).parent


def run_path(text: str) -> Path:
    """The folder that a command's argument names.

    Raises:
        ConfigurationError: it is `latest`, and there is no run.
    """
    return newest_run() if text == LATEST and not Path(LATEST).exists() else Path(text)


RunPath = Annotated[
    Path,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="RUN",
        instance_from_str=lambda texts: run_path(texts[0]),
        is_instance=lambda value: isinstance(value, Path),
        str_from_instance=lambda path: [str(path)],
    ),
]
"""The folder of a run on the command line, or `latest`."""
