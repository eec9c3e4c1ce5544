"""Names of runs: `latest` is the newest one below runs/, `zoo:NAME` an agent that ships, a URL a copy of one."""

from collections.abc import Iterator
from datetime import datetime
from functools import cache
from itertools import count
from pathlib import Path
from typing import Annotated

from tyro.constructors import PrimitiveConstructorSpec

from launch import zoo
from launch.run.standing import run_folders
from launch.run.storage import fetch
from shared.errors import ConfigurationError, setting_error

LATEST = "latest"
_RUNS = Path("runs")


def newest_run(runs: Path = _RUNS) -> Path:
    """The run below `runs` that started last: a seed or a trial, where several runs share a folder.

    Raises:
        ConfigurationError: there is none.
    """
    newest = next(run_folders(runs), None)
    if newest is None:
        raise ConfigurationError(f"latest is the newest run below {runs}/, and there is none: name a folder")
    return newest


def default_run_dir(name: str) -> Path:
    """A new folder below runs/."""
    return _RUNS / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


def numbered(folder: Path) -> Iterator[Path]:
    """A folder, and further ones for runs that want one of its name in the same second."""
    yield folder
    yield from (folder.with_name(f"{folder.name}-{number}") for number in count(2))


def run_path(text: str) -> Path:
    """The folder that a command's argument names; for the URL of a copy of a run, what is fetched from there.

    Raises:
        ConfigurationError: it is `latest`, and there is no run, or an agent that does not ship, or a URL without a run.
    """
    if "://" in text:
        return _fetched(text)
    if text.startswith(zoo.PREFIX):
        return zoo.agent_folder(text)
    path = Path(text)
    if path.exists():
        return path
    if text == LATEST:
        return newest_run()
    if (_RUNS / path).exists():
        # As `tributary runs` lists it.
        return _RUNS / path
    if zoo.PREFIX + text in zoo.agents():
        raise setting_error("run", text, f"there is no such folder; the agent that ships is {zoo.PREFIX}{text}")
    return path


@cache
def _fetched(url: str) -> Path:
    wanted = default_run_dir(url.rstrip("/").rpartition("/")[2]).absolute()
    folder = next(folder for folder in numbered(wanted) if not folder.exists())
    fetch(url, folder, setting="run")
    return folder


def run_name(path: Path) -> str:
    """What to type for a folder."""
    return zoo.agent_name(path) or str(path)


RunPath = Annotated[
    Path,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="RUN",
        instance_from_str=lambda texts: run_path(texts[0]),
        is_instance=lambda value: isinstance(value, Path),
        str_from_instance=lambda path: [run_name(path)],
    ),
]
"""The folder of a run on the command line, `latest`, or `zoo:NAME`."""
