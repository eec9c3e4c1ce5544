"""The status of a run, its name on the command line, and the conditions under which it goes on."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from tyro.constructors import PrimitiveConstructorSpec

from launch import zoo
from launch.run.folder import Holder, RunFolder, holder_of, last_row, read_summary
from launch.run.saving import fetch
from shared.config import RunConfig
from shared.errors import ConfigurationError, setting_error

RUNNING, DIED = "running", "died"
_PATTERNS = ("*", "*/seed-*", "*/trial-*", "*/*/seed-*")


class Standing(NamedTuple):
    """How a run stands. `status` is that of its summary, `running`, or `died`: its process ended without a summary.

    `row` is the last one of metrics.jsonl, and empty before the first.
    """

    folder: RunFolder
    config: RunConfig
    status: str
    holder: Holder | None
    row: dict[str, Any]

    @property
    def running(self) -> bool:
        """Whether a process works on it."""
        return self.holder is not None


def standing(path: Path) -> Standing:
    """How the run in a folder stands.

    Raises:
        ConfigurationError: the folder is not a run's.
    """
    folder = RunFolder(path)
    config = folder.read_settings("run")
    # The holder first: a run that ends in between has its summary by then.
    holder = holder_of(path)
    row, summary = last_row(folder), read_summary(folder)
    if holder is not None:
        status = RUNNING
    elif summary and summary.get("frames", 0) >= row.get("frames", 0):
        status = str(summary.get("status", DIED))
    else:
        status = DIED
    return Standing(folder, config, status, holder, row)


def run_folders(runs: Path) -> Iterator[Path]:
    """The folders of runs below a folder, those of several seeds or of a sweep too, the newest first."""
    found = {file for pattern in _PATTERNS for file in runs.glob(f"{pattern}/config.json")}
    dated = [(_started(file), file.parent) for file in found]
    yield from (folder for _, folder in sorted(dated, reverse=True))


def _started(file: Path) -> int:
    manifest = file.with_name("manifest.json")
    return (manifest if manifest.is_file() else file).stat().st_mtime_ns


_ENDED = {
    "frames_reached": "it had reached its total frames",
    "return_reached": "it had reached its return",
    "time_reached": "its time was over",
}


def reached_limit(config: RunConfig, summary: dict[str, Any]) -> str | None:
    """Which limit of `config` the run has reached already, in one line; None if it can go on.

    A summary may be older than the run's last checkpoint. It then says less than is true, never more.
    """
    frames, seconds = summary.get("frames", 0), summary.get("wall_seconds", 0.0)
    if frames >= config.total_frames:
        return _nothing(f"{frames:,} of {config.total_frames:,} total frames", "--total-frames N")
    if config.stop_after_seconds is not None and seconds >= config.stop_after_seconds:
        return _nothing(f"{seconds:,.0f} of {config.stop_after_seconds:,g} seconds", "--stop-after-seconds N")
    best = _best_return(summary)
    goal = config.stop_at_return
    if summary.get("status") == "return_reached" and goal is not None and best is not None and best >= goal:
        return _nothing(f"a mean return of {best:.1f}, and was to reach {goal:g}", "--stop-at-return N, or None")
    return None


def why_it_goes_on(config: RunConfig, summary: dict[str, Any]) -> str | None:
    """For a run that a limit had ended: which one, and what ends it next; None for any other."""
    ended = _ENDED.get(summary.get("status", ""))
    if ended is None:
        return None
    limits = [f"{config.total_frames:,} total frames"]
    if config.stop_at_return is not None:
        limits.append(f"a mean return of {config.stop_at_return:g}")
    if config.stop_after_seconds is not None:
        limits.append(f"{config.stop_after_seconds:,g} seconds")
    return f"the run ended at {summary.get('frames', 0):,} frames, as {ended}; it goes on to {' or '.join(limits)}"


def _nothing(has: str, option: str) -> str:
    return f"nothing to do: the run has {has}; it goes further with {option}"


def _best_return(summary: dict[str, Any]) -> float | None:
    """The highest of the means that may have ended the run: which one did is its settings' matter, and these change."""
    evaluation = summary.get("evaluation") or {}
    return max(
        (mean for mean in (summary.get("mean_return_100"), evaluation.get("mean_return")) if mean is not None),
        default=None,
    )


# The shapes of the weights follow from them, and what the weights have learned.
_GROUPS = ("network.", "environment.")
_FIXED = ("method.name", "method.target_network", "optimizer.name", "optimizer.centred", "learner.staleness")


def may_change(setting: str) -> bool:
    """Whether a setting, like `optimizer.learning_rate`, may be another one for weights that are there already."""
    return setting not in _FIXED and not setting.startswith(_GROUPS)


def check_unchanged(before: RunConfig, config: RunConfig, place: str) -> None:
    """Refuse to go on with another method, optimizer or staleness; whether the network is another one, its layout says.

    Args:
        before: the settings that the checkpoint was made with.
        config: those that it is to go on with.
        place: where the checkpoint is.

    Raises:
        ConfigurationError: one differs.
    """
    for setting in _FIXED:
        was, now = attrgetter(setting)(before), attrgetter(setting)(config)
        if was != now:
            raise setting_error(setting, now, f"the checkpoint in {place} was made with {was}; start a new run")


_OF_ROLLOUTS = ("actor.environments", "actor.unroll_length", "actor.epochs", "actor.minibatches")


def check_exact_resume(before: RunConfig, config: RunConfig, actors: int, state: Mapping[str, Any]) -> None:
    """Refuse actors that the saved ones cannot go on in. More of them may join.

    Args:
        before: the settings that the checkpoint was made with.
        config: those of the resume.
        actors: how many it makes.
        state: the plain values of the checkpoint.

    Raises:
        ConfigurationError: the resume is to be exact, and there are fewer actors, or their rollouts are others.
    """
    saved = state.get("executor")
    if not config.checkpoint.exact or saved is None:
        return
    advice = "leave it as it was, or give --checkpoint.no-exact"
    for setting in _OF_ROLLOUTS:
        was, now = attrgetter(setting)(before), attrgetter(setting)(config)
        if was != now:
            raise setting_error(setting, now, f"an exact resume goes on with {was}; {advice}")
    if actors < len(saved["actors"]):
        raise setting_error("actors", actors, f"an exact resume goes on with {len(saved['actors'])}; {advice}")


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
