"""What an ended run says of itself, and whether it has anything left to do when it is to be resumed."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from launch.run.folder import RunFolder
from shared.config import RunConfig

_ENDED = {
    "frames_reached": "it had reached its total frames",
    "return_reached": "it had reached its return",
    "time_reached": "its time was over",
}


def read_summary(folder: RunFolder) -> dict[str, Any]:
    """What the run's summary says; empty where there is none that can be read."""
    return read_object(folder.summary)


def read_manifest(folder: RunFolder) -> dict[str, Any]:
    """What the run's manifest says; empty where there is none that can be read."""
    return read_object(folder.manifest)


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


def read_object(file: Path) -> dict[str, Any]:
    """What a file of JSON says; empty where it cannot be read, or is no object."""
    with suppress(OSError, ValueError):
        found = json.loads(file.read_text())
        if isinstance(found, dict):
            return found
    return {}


def _nothing(has: str, option: str) -> str:
    return f"nothing to do: the run has {has}; it goes further with {option}"


def _best_return(summary: dict[str, Any]) -> float | None:
    """The highest of the means that may have ended the run: which one did is its settings' matter, and these change."""
    evaluation = summary.get("evaluation") or {}
    return max(
        (mean for mean in (summary.get("mean_return_100"), evaluation.get("mean_return")) if mean is not None),
        default=None,
    )
