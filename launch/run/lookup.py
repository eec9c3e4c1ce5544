"""The folders of runs by their names on the command line, and the folder of a new run."""

from contextlib import suppress
from datetime import datetime
from functools import cache
from itertools import count
from pathlib import Path
from typing import Annotated

from launch import zoo
from launch.files import make_folder, typed_path
from launch.output import nearest
from launch.run.storage import fetch
from shared.config import RunConfig
from shared.errors import ConfigurationError, setting_error

LATEST = "latest"
_RUNS = Path("runs")
# Runs; runs of --seeds, and trials; and runs of --seeds in a folder of their own, such as runs/study/cartpole.
_PATTERNS = ("*", "*/*", "*/*/seed-*")


def run_folders(runs: Path) -> list[Path]:
    """The folders of runs and of seeds below a folder, the newest first."""
    # Other programs have a config.json, too. The manifest is written once, at the start of a run.
    times = {}
    for file in {file for pattern in _PATTERNS for file in runs.glob(f"{pattern}/manifest.json")}:
        # A folder may be removed meanwhile.
        with suppress(OSError):
            times[file] = file.stat().st_mtime_ns
    return [file.parent for file in sorted(times, key=lambda file: (times[file], file), reverse=True)]


def new_run_dir(name: str) -> Path:
    """Make a new folder below runs/, named by the time, with a number after others of the same second."""
    first = folder = (_RUNS / f"{name}-{datetime.now():%Y%m%d-%H%M%S}").absolute()
    # Before the loop: below a link to a folder that is gone, `mkdir` says of every number that the folder exists.
    make_folder(folder.parent, "run_dir")
    for number in count(2):
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            folder = first.with_name(f"{first.name}-{number}")
        except OSError as error:
            raise setting_error("run_dir", folder, f"cannot be made: {error.strerror}") from error
    return folder


def discard_if_empty(folder: Path) -> None:
    """Remove a folder of `new_run_dir` that is empty, since its run could not start, and runs/ if it has no other."""
    for path in (folder, folder.parent):
        with suppress(OSError):
            path.rmdir()


def run_path(text: str) -> Path:
    """The folder of a run by its name on the command line. A URL of remote storage is fetched into a new folder.

    Raises:
        ConfigurationError: there is no such folder, agent or copy. The message has the most similar run folder.
    """
    if "://" in text:
        return _fetched(text)
    if text.startswith(zoo.PREFIX):
        return zoo.agent_folder(text)
    path = typed_path(text)
    try:
        if path.exists():
            return path
    except OSError as error:
        raise setting_error("run", text, f"cannot be looked at: {error.strerror}") from error
    if text == LATEST:
        # A seed or a trial, where several runs share a folder.
        newest_first = run_folders(_RUNS)
        if not newest_first:
            raise ConfigurationError(f"latest is the newest run below {_RUNS}/, and there is none: name a folder")
        return newest_first[0]
    if (_RUNS / path).exists():
        # `tributary runs` lists runs by this name.
        return _RUNS / path
    if zoo.PREFIX + text in zoo.agents():
        raise setting_error("run", text, f"there is no such folder; the agent that ships is {zoo.PREFIX}{text}")
    folders = [str(folder) for folder in run_folders(_RUNS)]
    others = f"{nearest(text, folders)} (tributary runs lists all)" if folders else f"; there is no run below {_RUNS}/"
    raise ConfigurationError(f"{text}: there is no such folder{others}")


# Cached: a command may ask for the folder more than once.
@cache
def _fetched(url: str) -> Path:
    folder = new_run_dir(url.rstrip("/").rpartition("/")[2])
    try:
        fetch(url, folder)
    except ConfigurationError:
        discard_if_empty(folder)
        raise
    return folder


def trust_option(config: RunConfig) -> str:
    """The end of a suggested command that plays a run: the option to run the modules of others, if it names any."""
    return " --trust-imports" if config.environment.modules else ""


RunPath = Annotated[Path, run_path]
"""Type of a command's argument: the folder of a run, `latest`, `zoo:NAME`, or a URL of remote storage."""
