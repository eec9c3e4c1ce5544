"""When a run stops, and with which status; when it has the return that it was asked for. No Ray, no TensorFlow.

The mean of the last 100 training episodes crosses a mark by luck, too: they were played by many versions of the
weights, and a lucky stretch is looked for after every rollout. So a crossing is a question, and an evaluation of the
weights of that moment is the answer.
"""

import threading
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from learner.account import RETURN_WINDOW, Account
from shared.config import RunConfig
from shared.types import EvaluationPolicy

# As training plays, whose return is to be confirmed.
CONFIRMING_POLICY: EvaluationPolicy = "sampled"

Status = Literal[
    "running", "interrupted", "return_reached", "frames_reached", "time_reached", "arrivals_replayed", "failed"
]


class Moment(NamedTuple):
    """How far a run had come when certain weights were the newest.

    `seconds` are of training. `mean_return_100` is that of the last training episodes, None before the first has ended;
    `evaluation_mean_return` is None until these weights have been evaluated.
    """

    update: int
    episodes: int
    agent_steps: int
    frames: int
    seconds: float
    mean_return_100: float | None
    evaluation_mean_return: float | None = None

    @classmethod
    def of(cls, update: int, account: Account, seconds: float) -> "Moment":
        """The moment after this update, with the run's account and its seconds of training so far."""
        return cls(update, account.episodes, account.ledger.sampled, account.frames, seconds, account.mean_return)


class ReturnMark:
    """The return that a run is to reach, and what has come of it.

    Measured by `training`, the first crossing asks for an evaluation, and so does the next one after a failed
    evaluation, but not before 100 new training episodes. Measured by `evaluation`, an evaluation that reaches the mark
    is crossing and confirmation in one.
    """

    def __init__(self, mean_return: float, measure: Literal["training", "evaluation"]) -> None:
        self.mean_return = mean_return
        self.measure = measure
        self.first: Moment | None = None
        self.confirmed: Moment | None = None
        self._asked: Moment | None = None
        self._not_before_episode = 0

    def crosses(self, at: Moment, *, counts: bool) -> bool:
        """Take in a moment, and whether its window counts. True: these weights are to be evaluated now."""
        mean = at.mean_return_100
        if self.measure != "training" or self.confirmed is not None or self._asked is not None:
            return False
        if not counts or mean is None or mean < self.mean_return or at.episodes < self._not_before_episode:
            return False
        self._asked = at
        self.first = self.first or at
        return True

    def evaluated(self, mean: float, at: Moment, policy: EvaluationPolicy, *, episodes: int) -> bool:
        """Take in an evaluation of the weights of a moment. True: it confirms that they have reached the mark.

        `episodes` is how many training episodes have ended by now.
        """
        if self.confirmed is not None:
            return False
        evaluated = at._replace(evaluation_mean_return=mean)
        if self.measure == "training":
            if self._asked is None or self._asked.update != at.update or policy != CONFIRMING_POLICY:
                return False
            self._asked, self._not_before_episode = None, episodes + RETURN_WINDOW
            if self.first is not None and self.first.update == at.update:
                self.first = evaluated
        if mean < self.mean_return:
            return False
        self.first = self.first or evaluated
        self.confirmed = evaluated
        return True

    def state(self) -> dict[str, Any]:
        """As plain values. `restore` takes it."""
        return {
            "mean_return": self.mean_return,
            "measure": self.measure,
            "first": self.first,
            "confirmed": self.confirmed,
            "asked": self._asked,
            "not_before_episode": self._not_before_episode,
        }

    def restore(self, state: dict[str, Any], *, asked: bool) -> None:
        """Go on from a saved state, unless it is of another mark. `asked`: an evaluation under way then still is."""
        if (state["mean_return"], state["measure"]) != (self.mean_return, self.measure):
            return
        self.first, self.confirmed = _moment(state["first"]), _moment(state["confirmed"])
        self._asked = _moment(state["asked"]) if asked else None
        self._not_before_episode = state["not_before_episode"]


class StoppingRules:
    """Which status a run has, and when it is to stop. `interrupt` may be called from other threads.

    The first rule that holds decides; of several that hold at once, the one that comes first in `stops`.

    Args:
        config: of the run.
        mark: the return that the run is to reach, if there is one.
    """

    def __init__(self, config: RunConfig, mark: ReturnMark | None) -> None:
        self._total_frames = config.total_frames
        self._replays = config.replay_arrivals is not None
        # One process takes longer than the many that it repeats.
        self._most_seconds = None if self._replays else config.stop_after_seconds
        self._mark = mark
        self._interrupted = threading.Event()
        self.status: Status = "running"

    @property
    def running(self) -> bool:
        """Whether nothing has stopped the run so far."""
        return self.status == "running"

    @property
    def interrupted(self) -> bool:
        """Whether the user has asked the run to finish, be it that it was finishing already."""
        return self._interrupted.is_set()

    def interrupt(self) -> None:
        """The user asks the run to finish."""
        self._interrupted.set()

    def stops(self, frames: int, seconds: float) -> bool:
        """Whether a run that was running is to stop now, after so many frames and seconds of training."""
        if not self.running:
            return False
        if self._interrupted.is_set():
            self.status = "interrupted"
        elif self._mark is not None and self._mark.confirmed is not None:
            self.status = "return_reached"
        elif frames >= self._total_frames:
            self.status = "frames_reached"
        elif self._most_seconds is not None and seconds >= self._most_seconds:
            self.status = "time_reached"
        return not self.running

    def loop_ended(self) -> None:
        """The loop has no more calls: so it is with a run that repeats another one, when that has ended."""
        if self.running and self._replays:
            self.status = "arrivals_replayed"

    def saved_last(self, *, failed: bool, new_agent_steps: int) -> str | None:
        """The run ends: settle its status. Returns what to say of a run that failed without anybody having said so.

        A run that nothing has stopped has `failed` too, and so has one that has played nothing when its time is up.
        """
        if failed or self.running:
            self.status = "failed"
        elif self.status == "time_reached" and not new_agent_steps:
            self.status = "failed"
            return "no actor has made a report before the time was up: nothing was learned"
        return None


def crossings(mark: ReturnMark | None) -> dict[str, dict[str, Any] | None]:
    """For a run's summary: when training first crossed the mark, and when it did so with weights that hold it."""
    first, confirmed = (None, None) if mark is None else (mark.first, mark.confirmed)
    return {
        "first_crossing": None if first is None else first._asdict(),
        "confirmed_crossing": None if confirmed is None else confirmed._asdict(),
    }


def collapsed_episodes(returns: npt.NDArray[np.float64], untrained: float | None) -> int | None:
    """How many episodes have a return nearer to that of untrained play than to the median of `returns`.

    They are those that were lost outright, which a mean hides in a slightly lower number. None where the return of
    untrained play is not known, or the median is not above it.
    """
    median = float(np.median(returns))
    if untrained is None or median <= untrained:
        return None
    return int((returns < (untrained + median) / 2.0).sum())


def _moment(values: Sequence[Any] | None) -> Moment | None:
    return None if values is None else Moment(*values)
