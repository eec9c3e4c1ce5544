"""How one row of a run's numbers is written: as a line of metrics.jsonl, and as named numbers for trackers."""

import errno
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import msgspec

from launch.output import drop_half_line
from launch.run.progress import Progress

# Groups are in the order in which a reader asks: does it learn, is it fast, is it sound.
_GROUPS = {
    "mean_return_100": "return/training_mean_100",
    "episodes": "return/episodes",
    "frames_per_second": "speed/frames_per_second",
    "agent_steps_per_second": "speed/agent_steps_per_second",
    "updates_per_second": "speed/updates_per_second",
    "gradients_per_second": "speed/gradients_per_second",
    "learner_milliseconds": "speed/learner_milliseconds_per_gradient",
    "policy_lag_mean": "asynchrony/policy_lag_mean",
    "policy_lag_max": "asynchrony/policy_lag_max",
    "gradients_per_update": "asynchrony/gradients_per_update",
    "staleness_weight": "asynchrony/staleness_weight",
    "actors_alive": "asynchrony/actors_alive",
    "actor_restarts": "asynchrony/actor_restarts",
    "learning_rate": "learning/learning_rate",
    "gradient_norm": "learning/gradient_norm",
    "passes": "learning/passes",
}
_EVALUATION_GROUPS = {
    "mean_return": "return/evaluation_mean",
    "median_return": "return/evaluation_median",
    "standard_error": "return/evaluation_standard_error",
    "collapsed_episodes": "return/evaluation_collapsed_episodes",
}
_INFO = "info/"


class JsonLines:
    """metrics.jsonl: one JSON object per row. Rows are appended, so that a resumed run continues its file."""

    def __init__(self, folder: Path) -> None:
        file = folder / "metrics.jsonl"
        # A process that was killed, or a power cut, may have left half a line: the next row would be joined to it.
        drop_half_line(file)
        self._file = file.open("ab", buffering=0)

    def write(self, row: Progress) -> None:
        """Append one row.

        Raises:
            OSError: it could not be written, on a full disk for example; then no half of it is left.
        """
        line = msgspec.json.encode(row_values(row)) + b"\n"
        end = self._file.seek(0, os.SEEK_END)
        if self._file.write(line) != len(line):
            self._file.truncate(end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def row_values(row: Progress) -> dict[str, Any]:
    """A row as metrics.jsonl has it: the method's statistics stand beside the other numbers, by their names, and the
    environment's as info/NAME."""
    values = asdict(row)
    info = {_INFO + name: value for name, value in values.pop("info").items()}
    return values | values.pop("statistics") | info


def progress_of(values: Mapping[str, Any]) -> Progress:
    """The inverse of `row_values`, from a row of metrics.jsonl."""
    names = {field.name for field in fields(Progress)}
    known = {name: value for name, value in values.items() if name in names}
    known["policy_lag_counts"] = {int(lag): count for lag, count in values.get("policy_lag_counts", {}).items()}
    others = {n: v for n, v in values.items() if n not in names and isinstance(v, int | float)}
    info = {n.removeprefix(_INFO): others.pop(n) for n in list(others) if n.startswith(_INFO)}
    return Progress(**known | {"statistics": others, "info": info})


def scalars(row: Progress) -> list[tuple[str, float]]:
    """The numbers of a row for a tracker, as pairs of `group/name` and value. What is not known yet is left out."""
    values = asdict(row)
    found = [(tag, values[name]) for name, tag in _GROUPS.items() if values[name] is not None]
    found += [(f"learning/{name}", value) for name, value in row.statistics.items()]
    found += [(_INFO + name, value) for name, value in row.info.items()]
    found += [(f"stage_microseconds/{name}", value) for name, value in values["stage_microseconds"].items()]
    found += [(f"agent_steps_dropped/{name}", value) for name, value in values["agent_steps_dropped"].items()]
    return found


def evaluation_scalars(point: dict[str, Any]) -> list[tuple[str, float]]:
    """The numbers of an evaluation for a tracker, as pairs of `group/name` and value, as of `point["frames"]`."""
    return [(tag, point[name]) for name, tag in _EVALUATION_GROUPS.items() if point[name] is not None]
