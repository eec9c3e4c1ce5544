"""Evaluations of a run, and the conditions under which it stops. No Ray, no TensorFlow."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from learner.account import RETURN_WINDOW, Account
from shared.config import EvaluationConfig, RunConfig
from shared.types import EvaluationPolicy, EvaluationResult, WeightSnapshot, standard_error


class TrainingReturns:
    """The returns of a run's first 100 training episodes, and whether the last 100 say how the policy plays.

    The first to end after a start are the shortest there are. So the last 100 count once every environment has ended an
    episode. One that plays as many agent steps as an episode may have is truncated, and has ended one too.

    `last_count` is whether they counted when they were last looked at.
    """

    def __init__(self) -> None:
        self.last_count = False
        self._first: list[float] | None = []
        # How many environments of each actor have ended no episode; the actor heard of for longest is the first one.
        self._unfinished: dict[int, int] = {}
        self._unfinished_actors = 0

    def add(self, actor_id: int, returns: Sequence[float], unfinished_environments: int) -> None:
        """Take in an actor's report: what its episodes returned, and how many environments have ended none yet."""
        if self._first is not None:
            self._first.extend(returns[: RETURN_WINDOW - len(self._first)])
        self._forget(actor_id)
        self._unfinished[actor_id] = unfinished_environments
        self._unfinished_actors += unfinished_environments > 0

    def look(self, episodes: int, actors: int) -> None:
        """Set `last_count`, with so many episodes in the window, and so many actors that play now."""
        # Those that are gone are the ones that nobody has heard of for longest.
        while len(self._unfinished) > actors:
            self._forget(next(iter(self._unfinished)))
        everybody = 0 < actors == len(self._unfinished)
        self.last_count = episodes >= RETURN_WINDOW and everybody and not self._unfinished_actors

    @property
    def untrained(self) -> float | None:
        """The mean return of the first 100 episodes, about that of untrained play.

        None until they have ended, and where a checkpoint of an older version did not keep them.
        """
        if self._first is None or len(self._first) < RETURN_WINDOW:
            return None
        return float(np.mean(self._first))

    def state(self, *, exact: bool) -> dict[str, Any]:
        """As plain values, for a checkpoint. `exact`: its actors go on as they are."""
        return {
            "first_episodes": self._first,
            "training_window": [list(item) for item in self._unfinished.items()] if exact else None,
        }

    def restore(self, state: dict[str, Any], *, exact: bool) -> None:
        """The inverse of `state`, from a checkpoint that holds other things too."""
        self._first = state.get("first_episodes")
        if exact:
            self._unfinished = {actor_id: unfinished for actor_id, unfinished in state["training_window"]}  # noqa: C416
            self._unfinished_actors = sum(unfinished > 0 for unfinished in self._unfinished.values())

    def _forget(self, actor_id: int) -> None:
        self._unfinished_actors -= self._unfinished.pop(actor_id, 0) > 0


# As training plays, whose return is to be confirmed.
CONFIRMING_POLICY: EvaluationPolicy = "sampled"

Status = Literal[
    "running", "interrupted", "return_reached", "frames_reached", "time_reached", "arrivals_replayed", "failed"
]


class TrainingPoint(NamedTuple):
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
    def of(cls, update: int, account: Account, seconds: float) -> "TrainingPoint":
        """The moment after this update, with the run's account and its seconds of training so far."""
        return cls(update, account.episodes, account.ledger.sampled, account.frames, seconds, account.mean_return)


class ReturnTarget:
    """The return that a run is to reach, and what has come of it.

    Measured by `training`, the first crossing asks for an evaluation, and so does the next one after a failed
    evaluation, but not before 100 new training episodes. Measured by `evaluation`, an evaluation that reaches the mark
    is crossing and confirmation in one.
    """

    def __init__(self, mean_return: float, measure: Literal["training", "evaluation"]) -> None:
        self.mean_return = mean_return
        self.measure = measure
        self.first: TrainingPoint | None = None
        self.confirmed: TrainingPoint | None = None
        self._asked: TrainingPoint | None = None
        self._not_before_episode = 0

    def crosses(self, at: TrainingPoint, *, counts: bool) -> bool:
        """Take in a moment, and whether its window counts. True: these weights are to be evaluated now."""
        mean = at.mean_return_100
        if self.measure != "training" or self.confirmed is not None or self._asked is not None:
            return False
        if not counts or mean is None or mean < self.mean_return or at.episodes < self._not_before_episode:
            return False
        self._asked = at
        self.first = self.first or at
        return True

    def evaluated(self, mean: float, at: TrainingPoint, policy: EvaluationPolicy, *, episodes: int) -> bool:
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

    def __init__(self, config: RunConfig, mark: ReturnTarget | None) -> None:
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


def crossings(mark: ReturnTarget | None) -> dict[str, dict[str, Any] | None]:
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


def _moment(values: Sequence[Any] | None) -> TrainingPoint | None:
    return None if values is None else TrainingPoint(*values)


_LONGEST_WAIT_SECONDS = 60.0

# As `Coordinator.evaluate`.
Evaluate = Callable[[EvaluationPolicy, WeightSnapshot | None], WeightSnapshot]


class Asked(NamedTuple):
    """An evaluation of the weights of a moment."""

    at: TrainingPoint
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
    at: TrainingPoint
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
        self, config: EvaluationConfig, backoff_seconds: float, mark: ReturnTarget | None, say: Callable[[str], None]
    ) -> None:
        self._policy = config.policy
        self._backoff_seconds = backoff_seconds
        self._mark = mark
        self._say = say
        self._schedule = EvaluationSchedule(config, 0)
        self.last: dict[str, Any] | None = None

    def ask_if_due(self, at: TrainingPoint, evaluate: Evaluate, *, window_counts: bool) -> None:
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
    return Asked(TrainingPoint(*at), policy)
