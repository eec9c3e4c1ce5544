"""Evaluations of a run, and the conditions under which it stops. No Ray, no TensorFlow.

The mean of the last 100 training episodes can cross a target by luck: many versions of the weights played them, and it
is compared after every rollout. A crossing is therefore confirmed by an evaluation of the weights of that moment.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from launch.output import finite
from learner.account import RETURN_WINDOW, Account
from shared.config import EvaluationConfig, RunConfig
from shared.types import EvaluationPolicy, EvaluationResult, standard_error


class TrainingReturns:
    """The mean return of a run's first 100 training episodes, and whether that of the last 100 is representative.

    The first episodes to end after a start are the shortest. The last 100 therefore count only when every environment
    has ended an episode; a truncated episode has ended, too.

    `last_count` is whether the last 100 episodes counted at the last `update`.
    """

    def __init__(self) -> None:
        self.last_count = False
        self._first: list[float] = []
        # Environments of each actor that have ended no episode, in the order of the actors' last reports.
        self._unfinished: dict[int, int] = {}

    def add(self, actor_id: int, returns: Sequence[float], unfinished_environments: int) -> None:
        """Add the returns in an actor's report, and its number of environments that have ended no episode yet."""
        self._first.extend(returns[: RETURN_WINDOW - len(self._first)])
        self._unfinished.pop(actor_id, None)
        self._unfinished[actor_id] = unfinished_environments

    def update(self, episodes: int, actors: int) -> None:
        """Set `last_count`, for `episodes` in the window and `actors` at work."""
        # Actors that are gone have the oldest reports.
        while len(self._unfinished) > actors:
            del self._unfinished[next(iter(self._unfinished))]
        everybody = 0 < actors == len(self._unfinished)
        self.last_count = episodes >= RETURN_WINDOW and everybody and not any(self._unfinished.values())

    @property
    def untrained(self) -> float | None:
        """The mean return of the first 100 episodes, close to that of untrained play. None until they have ended."""
        if len(self._first) < RETURN_WINDOW:
            return None
        return float(np.mean(self._first))

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint. After a resume all environments are in their first episodes again."""
        return {"first_episodes": self._first}

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`; other keys are ignored."""
        self._first = state["first_episodes"]


# The policy of training, whose return is to be confirmed.
CONFIRMING_POLICY: EvaluationPolicy = "sampled"

Status = Literal[
    "running", "interrupted", "return_reached", "frames_reached", "time_reached", "arrivals_replayed", "failed"
]


class TrainingPoint(NamedTuple):
    """A point of training, with the counts and returns of the run when the weights of `update` were the newest."""

    update: int
    episodes: int
    agent_steps: int
    frames: int
    seconds: float
    mean_return_100: float | None
    evaluation_mean_return: float | None = None

    @classmethod
    def of(cls, update: int, account: Account, seconds: float) -> "TrainingPoint":
        """The point after an update, `seconds` of training after the start of the run."""
        return cls(update, account.episodes, account.ledger.sampled, account.frames, seconds, account.mean_return)


class ReturnTarget:
    """The mean return at which a run stops, and the points at which it was crossed and confirmed.

    With the measure `training` a crossing requests an evaluation. With the measure `evaluation` a regular evaluation
    that reaches the target is crossing and confirmation in one.
    """

    def __init__(self, mean_return: float, measure: Literal["training", "evaluation"]) -> None:
        self.mean_return = mean_return
        self.measure = measure
        self.first: TrainingPoint | None = None
        self.confirmed: TrainingPoint | None = None
        self._requested: TrainingPoint | None = None
        self._not_before_episode = 0

    def crosses(self, at: TrainingPoint, *, counts: bool) -> bool:
        """Whether the run crosses the target here, and needs an evaluation. `counts`: the mean is representative."""
        mean = at.mean_return_100
        if self.measure != "training" or self.confirmed is not None or self._requested is not None:
            return False
        if not counts or not self._is_reached_by(mean) or at.episodes < self._not_before_episode:
            return False
        self._requested = at
        self.first = self.first or at
        return True

    def evaluated(self, mean: float | None, at: TrainingPoint, policy: EvaluationPolicy, *, episodes: int) -> bool:
        """Whether an evaluation of the weights of a point confirms the target, after `episodes` training episodes."""
        if self.confirmed is not None:
            return False
        evaluated = at._replace(evaluation_mean_return=mean)
        if self.measure == "training":
            if self._requested is None or self._requested.update != at.update or policy != CONFIRMING_POLICY:
                return False
            self.reject(episodes)
            if self.first is not None and self.first.update == at.update:
                self.first = evaluated
        if not self._is_reached_by(mean):
            return False
        self.first = self.first or evaluated
        self.confirmed = evaluated
        return True

    def reject(self, episodes: int) -> None:
        """Forget the requested evaluation. A new window counts for the next: the present one would cross at once."""
        if self._requested is not None:
            self._requested, self._not_before_episode = None, episodes + RETURN_WINDOW

    def _is_reached_by(self, mean: float | None) -> bool:
        # Without the test a NaN would not be below the target, and an infinity above it.
        return mean is not None and math.isfinite(mean) and mean >= self.mean_return

    def state(self) -> dict[str, Any]:
        return {
            "mean_return": self.mean_return,
            "measure": self.measure,
            "first": self.first,
            "confirmed": self.confirmed,
            "not_before_episode": self._not_before_episode,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`, unless the target has changed.

        An evaluation that was requested is lost with its process: the next crossing requests another one.
        """
        if (state["mean_return"], state["measure"]) != (self.mean_return, self.measure):
            return
        self.first, self.confirmed = _point(state["first"]), _point(state["confirmed"])
        self._not_before_episode = state["not_before_episode"]


class StoppingRules:
    """The rules by which a run stops, and its status.

    The first rule that holds decides. When several hold at once, their order in `stops` decides. Any thread may set
    `interrupted`, which the user's interrupt of a run that stops already does, too.
    """

    def __init__(self, config: RunConfig, target: ReturnTarget | None) -> None:
        self._total_frames = config.total_frames
        self._replays = config.replay_arrivals is not None
        # A replay in one process takes longer than the recorded run.
        self._most_seconds = None if self._replays else config.stop_after_seconds
        self._target = target
        self.interrupted = False
        self.status: Status = "running"

    @property
    def running(self) -> bool:
        return self.status == "running"

    def stops(self, frames: int, seconds: float) -> bool:
        """Whether a running run stops after `frames` and `seconds` of training."""
        if not self.running:
            return False
        # A user's interrupt comes first, and a confirmed target before the limits that it made unnecessary.
        if self.interrupted:
            self.status = "interrupted"
        elif self._target is not None and self._target.confirmed is not None:
            self.status = "return_reached"
        elif frames >= self._total_frames:
            self.status = "frames_reached"
        elif self._most_seconds is not None and seconds >= self._most_seconds:
            self.status = "time_reached"
        return not self.running

    def loop_ended(self) -> None:
        """Set the status of a run whose loop has ended: without a rule only a replay ends, with its trace."""
        if self.running:
            self.status = "arrivals_replayed" if self._replays else "failed"


def collapsed_episodes(returns: npt.NDArray[np.float64], untrained: float | None) -> int | None:
    """The number of episodes with a return closer to that of untrained play than to the median of `returns`.

    None if the return of untrained play is unknown, or not below the median.
    """
    median = float(np.median(returns))
    # A NaN is above nothing.
    if untrained is None or not median > untrained:
        return None
    # Midway between the two.
    return int((returns < (untrained + median) / 2.0).sum())


def _point(values: Sequence[Any] | None) -> TrainingPoint | None:
    return None if values is None else TrainingPoint(*values)


# ---- Evaluations


class EvaluationRequest(NamedTuple):
    at: TrainingPoint
    policy: EvaluationPolicy


class Evaluations:
    """Requests regular evaluations and confirmations of the target, and compares the results with it.

    When the evaluator dies, the next regular evaluation comes at its usual time, and a confirmation counts as a failed
    one. `last` is the entry of the last evaluation, for the summary.
    """

    def __init__(self, config: EvaluationConfig, target: ReturnTarget | None, log: Callable[[str], None]) -> None:
        self._config, self._target, self._log = config, target, log
        self._since_frames = 0
        self._under_way: list[EvaluationRequest] = []
        self.last: dict[str, Any] | None = None

    def request_if_due(
        self, at: TrainingPoint, evaluate: Callable[[EvaluationPolicy], None], *, window_counts: bool
    ) -> None:
        """Request an evaluation of the newest weights if they cross the target, or if a regular one is due.

        None is due after the target is confirmed. `window_counts`: the mean return of the last training episodes is
        representative.
        """
        target, policy = self._target, self._config.policy
        # One regular evaluation at a time: a slow evaluator must not collect a queue of old weights.
        every = 0 if self._under_way else self._config.every_frames
        if target is not None and target.crosses(at, counts=window_counts):
            self._log(
                f"the mean return of the last 100 training episodes is {at.mean_return_100:.2f}, and the target "
                f"is {target.mean_return:g}: an evaluation of update {at.update} checks it"
            )
            policy = CONFIRMING_POLICY
        elif (target is None or target.confirmed is None) and every and at.frames - self._since_frames >= every:
            self._since_frames = at.frames
        else:
            return
        evaluate(policy)
        self._under_way.append(EvaluationRequest(at, policy))

    def receive(self, result: EvaluationResult, *, episodes: int, untrained: float | None) -> tuple[dict, bool]:
        """Log a result and compare it with the target, after `episodes` training episodes.

        Returns the evaluation in a row of metrics.jsonl, which is its entry and the frames, agent steps and seconds of
        its weights; and whether it confirms the target. `untrained`: see `TrainingReturns`.
        """
        self.last = entry = evaluation_entry(result, untrained)
        self._log(f"evaluation of update {result.version}: {evaluation_line(entry)}")
        request = next(a for a in self._under_way if (a.at.update, a.policy) == (result.version, result.policy))
        self._under_way.remove(request)
        at = request.at
        confirmed = self._target is not None and self._target.evaluated(
            entry["mean_return"], at, request.policy, episodes=episodes
        )
        return {"frames": at.frames, "agent_steps": at.agent_steps, "elapsed_seconds": at.seconds} | entry, confirmed

    def evaluator_died(self, episodes: int) -> None:
        """Forget the evaluations under way, all of which its process had, after `episodes` training episodes."""
        self._under_way = []
        if self._target is not None:
            self._target.reject(episodes)

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint. Evaluations under way are not in it: their process is lost."""
        return {
            "return_mark": None if self._target is None else self._target.state(),
            "last_evaluation": self.last,
            "evaluated_frames": self._since_frames,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`; other keys are ignored."""
        self._since_frames, self.last = state["evaluated_frames"], state["last_evaluation"]
        if self._target is not None and state["return_mark"] is not None:
            self._target.restore(state["return_mark"])


def evaluation_entry(result: EvaluationResult, untrained: float | None) -> dict[str, Any]:
    """The entry of an evaluation in summary.json and metrics.jsonl; `untrained` see `TrainingReturns`.

    A figure is None where the returns are not finite: one NaN among them makes the mean None.
    """
    returns = result.episodes.returns
    if not np.isfinite(returns).all():
        # No difference of infinities.
        returns = np.where(np.isfinite(returns), returns, np.nan)
    entry = {
        "version": result.version,
        "episodes": len(returns),
        "distinct_games": None if result.games is None else len(np.unique(result.games)),
        "policy": result.policy,
        "mean_return": float(np.mean(returns)),
        "median_return": float(np.median(returns)),
        "collapsed_episodes": collapsed_episodes(returns, untrained),
        # Games that were the same from start to end count as one sample.
        "standard_error": standard_error(returns, result.games),
    }
    return finite(entry)


def evaluation_line(entry: dict[str, Any]) -> str:
    episodes, games, collapsed = entry["episodes"], entry["distinct_games"], entry["collapsed_episodes"]
    again = "" if games in (None, episodes) else f", {games} distinct games"
    if entry["mean_return"] is None:
        return f"no mean return over {episodes} episodes{again}: not all returns are finite"
    lost = "" if collapsed is None else f", {collapsed} collapsed"
    return (
        f"mean return {entry['mean_return']:.2f} over {episodes} episodes{again} (median "
        f"{entry['median_return']:.2f}{lost})"
    )
