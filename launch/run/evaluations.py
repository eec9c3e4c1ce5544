"""Asks for a run's evaluations when they are due, takes in their results, and says them. No Ray, no TensorFlow."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from actors.games import standard_error
from launch.run.stopping import CONFIRMING_POLICY, Moment, ReturnMark, collapsed_episodes
from shared.config import EvaluationConfig
from shared.types import EvaluationPolicy, EvaluationResult, WeightSnapshot

_LONGEST_WAIT_SECONDS = 60.0

# As `Coordinator.evaluate`.
Evaluate = Callable[[EvaluationPolicy, WeightSnapshot | None], WeightSnapshot]


class Asked(NamedTuple):
    """An evaluation of the weights of a moment."""

    at: Moment
    policy: EvaluationPolicy


class EvaluationSchedule:
    """Which evaluations are under way, and when the next ones are due.

    There are regular ones, every so many frames, and those that are to confirm a crossing.

    An evaluator that dies takes along what it was asked. A regular evaluation comes again when the next one is due; one
    that is to confirm is asked for again, of the same weights, after a wait that doubles with each death.

    Args:
        config: how often.
        frames: from which on regular ones are counted.
    """

    def __init__(self, config: EvaluationConfig, frames: int) -> None:
        self._every_frames = config.every_frames
        self._since_frames = frames
        self._under_way: list[Asked] = []
        self._confirming: tuple[Asked, WeightSnapshot] | None = None
        self._repeat_at: float | None = None
        self._deaths = 0

    def is_due(self, frames: int) -> bool:
        """Whether a regular one is to be asked for. None is while another one is under way, or is to be repeated."""
        busy = bool(self._under_way) or self._repeat_at is not None
        return bool(self._every_frames) and not busy and frames - self._since_frames >= self._every_frames

    def asked(self, evaluation: Asked) -> None:
        """A regular one is under way."""
        self._since_frames = evaluation.at.frames
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

    def state(self, *, exact: bool) -> dict[str, Any]:
        """As plain values, for a checkpoint. `exact`: it has the calls under way, and in them the weights."""
        return {
            "evaluated_frames": self._since_frames,
            "evaluations": {"under_way": self._under_way} if exact else None,
        }

    def restore(self, state: dict[str, Any], frames: int, *, exact: bool) -> None:
        """The inverse of `state`, from a checkpoint that holds other things too, after so many frames."""
        # Checkpoints of older versions do not have them.
        self._since_frames = state.get("evaluated_frames", frames)
        if exact:
            self._under_way = [_asked(values) for values in state["evaluations"]["under_way"]]


class Taken(NamedTuple):
    """An evaluation that was taken in: its entry for the summary, and when the run had these weights.

    `confirmed` is whether it confirms that the mark is reached.
    """

    entry: dict[str, Any]
    at: Moment
    confirmed: bool

    def point(self) -> dict[str, Any]:
        """The evaluation as a row of metrics.jsonl has it: a point on a curve, at the moment of the weights."""
        moment = {"frames": self.at.frames, "agent_steps": self.at.agent_steps, "elapsed_seconds": self.at.seconds}
        return {**moment, **self.entry}


class Evaluations:
    """Has weights evaluated that cross the mark, and others regularly.

    `last` is the entry of the run's last evaluation, for the summary.

    Args:
        config: how often, and by which policy.
        backoff_seconds: the first wait after an evaluator died.
        mark: the return that the run is to reach, if there is one.
        say: takes a message.
    """

    def __init__(
        self, config: EvaluationConfig, backoff_seconds: float, mark: ReturnMark | None, say: Callable[[str], None]
    ) -> None:
        self._policy = config.policy
        self._backoff_seconds = backoff_seconds
        self._mark = mark
        self._say = say
        self._schedule = EvaluationSchedule(config, 0)
        self.last: dict[str, Any] | None = None

    def ask_if_due(self, at: Moment, evaluate: Evaluate, *, window_counts: bool) -> None:
        """Have the weights of this moment evaluated if they cross the mark, or if a regular evaluation is due.

        Weights that crossed it before come first, if the evaluator died over them. Once the mark is reached the run
        ends, and none is due any more. `window_counts`: the mean return of the last training episodes says how the
        policy plays.
        """
        reached = self._mark is not None and self._mark.confirmed is not None
        repeated = self._schedule.to_repeat(at.seconds)
        if repeated is not None:
            asked, snapshot = repeated
            evaluate(asked.policy, snapshot)
            self._schedule.asked_to_confirm(asked, snapshot)
        elif self._mark is not None and self._mark.crosses(at, counts=window_counts):
            self._say(
                f"the mean return of the last 100 training episodes is {at.mean_return_100:.2f}, at the mark of "
                f"{self._mark.mean_return:g}: an evaluation of update {at.update} is to confirm it"
            )
            snapshot = evaluate(CONFIRMING_POLICY, None)
            self._schedule.asked_to_confirm(Asked(at, CONFIRMING_POLICY), snapshot)
        elif not reached and self._schedule.is_due(at.frames):
            evaluate(self._policy, None)
            self._schedule.asked(Asked(at, self._policy))

    def take(self, result: EvaluationResult, *, episodes: int, untrained: float | None) -> Taken:
        """Take in a result and say it.

        `episodes` is how many training episodes have ended by now, `untrained` the mean return that the run began with.
        """
        self.last = entry = evaluation_entry(result, untrained)
        self._say(f"evaluation of update {result.version}: {evaluation_line(entry)}")
        asked = self._schedule.taken(result)
        confirmed = self._mark is not None and self._mark.evaluated(
            entry["mean_return"], asked.at, asked.policy, episodes=episodes
        )
        return Taken(entry, asked.at, confirmed)

    def evaluator_died(self, seconds: float) -> None:
        """What was under way is lost, after so many seconds of training."""
        self._schedule.lost(seconds, self._backoff_seconds)

    def state(self, *, exact: bool) -> dict[str, Any]:
        """As plain values, for a checkpoint. `exact`: it has the calls under way."""
        return {
            "return_mark": None if self._mark is None else self._mark.state(),
            "last_evaluation": self.last,
            **self._schedule.state(exact=exact),
        }

    def restore(self, state: dict[str, Any], frames: int, *, exact: bool) -> None:
        """The inverse of `state`, from a checkpoint that holds other things too, after so many frames."""
        self._schedule.restore(state, frames, exact=exact)
        self.last = state.get("last_evaluation")
        if self._mark is not None and state.get("return_mark") is not None:
            self._mark.restore(state["return_mark"], asked=exact)


def evaluation_entry(result: EvaluationResult, untrained: float | None) -> dict[str, Any]:
    """An evaluation's numbers for a run's summary; `untrained` is the mean return that the run began with."""
    returns = result.episodes.returns
    return {
        "version": result.version,
        "episodes": len(returns),
        "distinct_games": None if result.games is None else len(np.unique(result.games)),
        "policy": result.policy,
        "mean_return": float(np.mean(returns)),
        "median_return": float(np.median(returns)),
        "collapsed_episodes": collapsed_episodes(returns, untrained),
        "standard_error": standard_error(returns, result.games),
    }


def evaluation_line(entry: dict[str, Any]) -> str:
    """The same in words."""
    episodes, games, collapsed = entry["episodes"], entry["distinct_games"], entry["collapsed_episodes"]
    again = "" if games in (None, episodes) else f", {games} distinct games"
    lost = "" if collapsed is None else f", {collapsed} collapsed"
    return (
        f"mean return {entry['mean_return']:.2f} over {episodes} episodes{again} (median "
        f"{entry['median_return']:.2f}{lost})"
    )


def _asked(values: Sequence[Any]) -> Asked:
    at, policy = values
    return Asked(Moment(*at), policy)
