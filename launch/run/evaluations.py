"""Which evaluations are under way, and when the next ones are due. No Ray in it, and no TensorFlow."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from launch.run.stopping import Moment, collapsed_episodes
from shared.config import EvaluationConfig
from shared.types import EvaluationPolicy, EvaluationResult, WeightSnapshot

_LONGEST_WAIT_SECONDS = 60.0


class Asked(NamedTuple):
    """An evaluation of the weights of a moment."""

    at: Moment
    policy: EvaluationPolicy


class Evaluations:
    """Regular ones, every so many frames, and those that are to confirm a crossing.

    An evaluator that dies takes along what it was asked. A regular evaluation comes again when the next one is due; one
    that is to confirm is asked for again, of the same weights, after a wait that doubles with each death.

    Args:
        config: how often.
        frames: from which on regular ones are counted.
    """

    def __init__(self, config: EvaluationConfig, frames: int) -> None:
        self._every_frames = config.every_frames
        self.since_frames = frames
        self._under_way: list[Asked] = []
        self._confirming: tuple[Asked, WeightSnapshot] | None = None
        self._repeat_at: float | None = None
        self._deaths = 0

    def is_due(self, frames: int) -> bool:
        """Whether a regular one is to be asked for."""
        return bool(self._every_frames) and not self._under_way and frames - self.since_frames >= self._every_frames

    def asked(self, evaluation: Asked) -> None:
        """A regular one is under way."""
        self.since_frames = evaluation.at.frames
        self._under_way.append(evaluation)

    def asked_to_confirm(self, evaluation: Asked, snapshot: WeightSnapshot) -> None:
        """One of the weights that crossed the mark is under way."""
        self._under_way.append(evaluation)
        self._confirming = evaluation, snapshot

    def taken(self, result: EvaluationResult) -> Asked:
        """What a result is the answer to."""
        asked = next(a for a in self._under_way if (a.at.update, a.policy) == (result.version, result.policy))
        self._under_way.remove(asked)
        if self._confirming is not None and self._confirming[0] == asked:
            self._confirming, self._deaths = None, 0
        return asked

    def lost(self, now: float, backoff_seconds: float) -> None:
        """The evaluator died."""
        self._under_way = []
        if self._confirming is not None:
            self._repeat_at = now + min(_LONGEST_WAIT_SECONDS, backoff_seconds * 2**self._deaths)
            self._deaths += 1

    def to_repeat(self, now: float) -> tuple[Asked, WeightSnapshot] | None:
        """What is to be asked for again, if its time has come."""
        if self._repeat_at is None or now < self._repeat_at:
            return None
        self._repeat_at = None
        return self._confirming

    def state(self) -> dict[str, Any]:
        """As plain values, for a checkpoint whose calls under way go on: their weights are with those."""
        return {"since_frames": self.since_frames, "under_way": self._under_way}

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self.since_frames = state["since_frames"]
        self._under_way = [_asked(values) for values in state["under_way"]]


def evaluation_entry(result: EvaluationResult, untrained: float | None) -> dict[str, Any]:
    """An evaluation's numbers for a run's summary; `untrained` is the mean return that the run began with."""
    returns = result.episodes.returns
    return {
        "version": result.version,
        "episodes": len(returns),
        "policy": result.policy,
        "mean_return": float(np.mean(returns)),
        "median_return": float(np.median(returns)),
        "collapsed_episodes": collapsed_episodes(returns, untrained),
        "standard_error": float(np.std(returns, ddof=1) / np.sqrt(len(returns))) if len(returns) > 1 else None,
    }


def evaluation_line(entry: dict[str, Any]) -> str:
    """The same in words."""
    collapsed = entry["collapsed_episodes"]
    lost = "" if collapsed is None else f", {collapsed} collapsed"
    return (
        f"mean return {entry['mean_return']:.2f} over {entry['episodes']} episodes (median "
        f"{entry['median_return']:.2f}{lost})"
    )


def _asked(values: Sequence[Any]) -> Asked:
    at, policy = values
    return Asked(Moment(*at), policy)
