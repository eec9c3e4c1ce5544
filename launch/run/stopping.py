"""Evaluations of a run, and the conditions under which it stops. No Ray, no TensorFlow.

A training return can cross a target by luck: many versions of the weights played it, and it is compared after every
rollout. A crossing is therefore confirmed by an evaluation of the weights of that moment. The confirmation selects
these weights, so that its mean is not a score: `tributary evaluate` plays other games for one.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from launch.loop.evaluation import EvaluationLost, EvaluationResult, GoesOn, evaluation_entry, evaluation_line
from launch.run.returns import TrainingReturns
from shared.config import EvaluationConfig, RunConfig
from shared.types import EvaluationPolicy

# The policy of training, whose return is to be confirmed.
CONFIRMING_POLICY: EvaluationPolicy = "sampled"

Status = Literal["running", "interrupted", "return_reached", "frames_reached", "time_reached", "failed"]


class TrainingPoint(NamedTuple):
    """A point of training, with the counts and returns of the run when the weights of `update` were the newest.

    `training_mean_return`, `recent_return`: see `TrainingReturns`, `RecentReturn`.
    """

    update: int
    episodes: int
    agent_steps: int
    frames: int
    seconds: float
    training_mean_return: float | None
    evaluation_mean_return: float | None = None
    recent_return: float | None = None


# Agent steps of confirmations per agent step of training, by the return that crosses the target. One of an evaluation
# takes a third of the time, without gradients. The latest rewards are noisy, and cross early. The mean of about 100
# episodes is rarely wrong: with a share of 0.5 a run of Pong went on for 110,000 agent steps after it had crossed 18.
_CONFIRMING_SHARES = {"training_mean_return": 1.0, "recent_return": 0.5}


@dataclass
class ReturnTarget:
    """The mean return at which a run stops, by default none, and the points at which it was crossed and confirmed.

    With the measure `training` a crossing by `TrainingReturns`, or by `RecentReturn`, requests a confirmation. With the
    measure `evaluation` a regular evaluation that reaches the target is crossing and confirmation in one.

    After a confirmation that failed the next one waits until half as many agent steps as it took have been played, and
    until those of all confirmations are at most as many as those of training, for `RecentReturn` half as many.

    The best of several tries is high by luck, so that a policy below the target would be confirmed in the end: see
    `confirmed_mean`.
    """

    # A checkpoint is strict JSON, which has no infinity.
    mean_return: float = sys.float_info.max
    measure: Literal["training", "evaluation"] = "training"
    first: TrainingPoint | None = None
    confirmed: TrainingPoint | None = None
    confirming_agent_steps: int = 0
    not_before_agent_steps: float = 0.0
    # Confirmations that ended with a mean.
    tries: int = 0

    def crosses(self, at: TrainingPoint, *, representative: bool) -> bool:
        """True if the run crosses the target here, and may confirm it. `representative`: see `TrainingReturns`."""
        if self.measure != "training" or not representative or at.agent_steps < self.not_before_agent_steps:
            return False
        return any(
            self._is_reached_by(getattr(at, name)) and self.confirming_agent_steps <= share * at.agent_steps
            for name, share in _CONFIRMING_SHARES.items()
        )

    def evaluated(self, mean: float | None, at: TrainingPoint, *, confirms: bool, least: float | None = None) -> None:
        """Compare an evaluation of the weights of a point, which a crossing has requested if it `confirms`.

        `least`: the `confirmed_mean`, which is compared in place of the mean.
        """
        evaluated = at._replace(evaluation_mean_return=mean)
        if confirms and self.first == at:
            self.first = evaluated
        self.tries += confirms
        compared = mean if least is None else least
        if self._is_reached_by(compared) and (confirms or self.measure == "evaluation"):
            self.first = self.first or evaluated
            self.confirmed = evaluated

    def _is_reached_by(self, mean: float | None) -> bool:
        # Without the test a NaN would not be below the target, and an infinity above it.
        return mean is not None and math.isfinite(mean) and mean >= self.mean_return

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `dataclasses.asdict`, unless the target has changed."""
        if (state["mean_return"], state["measure"]) == (self.mean_return, self.measure):
            vars(self).update(state)
            self.first, self.confirmed = (point and TrainingPoint(*point) for point in (self.first, self.confirmed))


def reason_to_stop(config: RunConfig, target: ReturnTarget, frames: int, seconds: float) -> Status | None:
    """The status of a run that stops after `frames` and `seconds` of training; None if it goes on.

    When several rules hold, a confirmed target comes before the limits that it made unnecessary.
    """
    if target.confirmed is not None:
        return "return_reached"
    if frames >= config.total_frames:
        return "frames_reached"
    if config.stop_after_seconds is not None and seconds >= config.stop_after_seconds:
        return "time_reached"
    return None


# ---- Evaluations


def luck(tries: int) -> float:
    """The expected maximum of `tries` standard normal numbers (Blom 1958): 0, 0.6, 0.9, 1.0, 1.2."""
    return NormalDist().inv_cdf((tries - 0.375) / (tries + 0.25))


def confirmed_mean(returns: npt.NDArray[np.float64], tries: int, untrained: float | None) -> float | None:
    """What the confirmation that is number `tries` compares with the target; None: the mean.

    The first confirmation compares its mean. A later one subtracts the luck of the best of so many equal tries, in
    standard errors of the mean. Its returns then include one episode of untrained play, if its return is known: the
    error of a hundred games without a lost one is nearly zero. A policy of Pong that loses 5 % of its games and has a
    mean of 17 is confirmed at 18 within 40 tries by a quarter of the runs, by 99 of 100 if each compares its mean; one
    with a mean of 19 and 3 % takes 1.2 tries, not 1.1.
    """
    if tries == 1 or not np.isfinite(returns).all():
        return None
    cautious = returns if untrained is None else np.append(returns, untrained)
    return float(cautious.mean() - luck(tries) * cautious.std(ddof=1) / math.sqrt(len(cautious)))


# Standard normal quantiles: one-sided error rates of 10 % and of 1 %.
_Z_MISSED, _Z_REACHED = 1.28, 2.33
# A policy that loses one game of ten may win all of a smaller number.
_FEWEST_REACHED = 30


def predicted_verdict(
    returns: npt.NDArray[np.float64], episodes: int, target: float, untrained: float | None, tries: int = 1
) -> bool | None:
    """True if the mean of all `episodes` will reach the target, by the first of them; None while uncertain.

    `tries`: number of the confirmation, from the second of which on the target is above by `luck` standard errors.

    Of N episodes n have been played, with mean m and standard deviation s. The mean of all N is then about normal, with
    mean m and standard deviation s √((N − n) / (N n)): zero when all are played. This is a group-sequential test by
    conditional power (Lan, Simon and Halperin 1982), with a look after each whole wave from 20 episodes on:

        missed   if the mean of all reaches the target with a probability of 10 % at most
        reached  if it does with one of 99 %, where m and s have one more episode with the return of untrained play

    Returns are skewed, and the first games may have none of the lost ones: hence the further episode, which also keeps
    21.0 ± 0 from being certain. Fewer than 30 episodes never count as `reached`. An error of the 10 % costs training,
    one of the 1 % would be a false result. With looks at 20, 40, 60 and 80 of 100, of normal returns and of games of
    which 2 to 15 % are lost, whose mean is at the target: at most 0.5 % are `reached` where the mean of all 100 misses
    the target, and 6 % `missed` where it reaches it (tests/launch/run/test_stopping.py). A return that is not finite
    decides nothing.
    """
    played = len(returns)
    if played >= episodes or played < 2:
        return None
    spread, margin = math.sqrt((episodes - played) / (episodes * played)), luck(tries) / math.sqrt(episodes)
    with np.errstate(invalid="ignore"):
        mean, deviation = returns.mean(), returns.std(ddof=1)
        if mean + (_Z_MISSED * spread - margin) * deviation < target:
            return False
        if untrained is None or not untrained < mean or played < _FEWEST_REACHED:
            return None
        cautious = np.append(returns, untrained)
        certain = cautious.mean() - (_Z_REACHED * spread + margin) * cautious.std(ddof=1) >= target
    return True if certain else None


class Evaluations:
    """Requests regular evaluations and confirmations of the target, one at a time, and compares the results with it.

    When an evaluation is lost, the next regular one comes at its usual time, and a confirmation counts as a failed one.

    Attributes:
        every_frames: frames between regular evaluations; 0 if none is to come.
        last: the entry of the last evaluation, for the summary.
        seconds: of training, during which evaluations were under way.
        agent_steps: agent steps of evaluations. None of them is in a count of training.
    """

    def __init__(
        self, config: EvaluationConfig, target: ReturnTarget, returns: TrainingReturns, log: Callable[[str], None]
    ) -> None:
        self.target, self.returns, self._config, self._log = target, returns, config, log
        self.every_frames = config.every_frames
        self._since_frames = 0
        # The weights of the evaluation under way, and whether it is a confirmation.
        self._under_way: tuple[TrainingPoint, bool] | None = None
        self.last: dict[str, Any] | None = None
        self.seconds, self.agent_steps = 0.0, 0

    def request_if_due(
        self, at: TrainingPoint, evaluate: Callable[[EvaluationPolicy, EvaluationConfig, GoesOn | None], bool]
    ) -> None:
        """Request an evaluation of the newest weights if they cross the target, or if a regular one is due.

        None is due after the target is confirmed. `evaluate` returns False if none can begin now.
        """
        target, config = self.target, self._config
        if self._under_way is not None or target.confirmed is not None:
            return
        confirms = target.crosses(at, representative=self.returns.is_representative)
        due = 0 < self.every_frames <= at.frames - self._since_frames
        if not (confirms or due):
            return

        def goes_on(returns: npt.NDArray[np.float64]) -> bool:
            untrained, tries = self.returns.untrained, target.tries + 1 if confirms else 1
            verdict = predicted_verdict(returns, config.episodes, target.mean_return, untrained, tries)
            # A regular evaluation that reaches the target is played to its end: it is a point of the curve, too.
            return verdict is None or (verdict and not confirms)

        ends_early = confirms or target.measure == "evaluation"
        policy = CONFIRMING_POLICY if confirms else config.policy
        if not evaluate(policy, config, goes_on if ends_early else None):
            return
        self._under_way = at, confirms
        if not confirms:
            self._since_frames = at.frames
            return
        target.first = target.first or at
        by_recent = "" if at.recent_return is None else f" ({at.recent_return:.2f} by the latest rewards)"
        mean = "unknown" if at.training_mean_return is None else f"{at.training_mean_return:.2f}"
        self._log(
            f"the mean return of training is {mean}{by_recent}, and the target is {target.mean_return:g}: an "
            f"evaluation of update {at.update} checks it"
        )

    def receive(self, result: EvaluationResult, now: TrainingPoint) -> tuple[dict[str, Any], bool]:
        """Log a result, and compare it with the target.

        Returns the evaluation in a row of metrics.jsonl, which is its entry and the frames, agent steps and seconds of
        its weights; and whether it confirms the target.
        """
        at, confirms = self._ended(now, result.agent_steps)
        entry = evaluation_entry(result, self.returns.untrained)
        self.last = entry = entry | {"confirms": confirms, "seconds": now.seconds - at.seconds}
        self._log(f"{'confirming ' * confirms}evaluation of update {result.snapshot.version}: {evaluation_line(entry)}")
        tries = self.target.tries + 1 if confirms else 1
        least = confirmed_mean(result.episodes.returns, tries, self.returns.untrained)
        self.target.evaluated(entry["mean_return"], at, confirms=confirms, least=least)
        if least is not None and least < self.target.mean_return <= entry["mean_return"]:
            self._log(f"the best of {tries} tries may be as high by luck: it counts as {least:.2f}")
        point = {"frames": at.frames, "agent_steps": at.agent_steps, "elapsed_seconds": at.seconds}
        return point | entry, self.target.confirmed is not None

    def lose(self, lost: EvaluationLost, now: TrainingPoint) -> None:
        """Log the loss of the evaluation under way."""
        at, _ = self._ended(now, lost.agent_steps)
        more = "; no other regular one is played" if lost.endless and self.every_frames else ""
        self._log(f"the evaluation of update {at.update} is given up: {lost.reason}{more}")
        if lost.endless:
            self.every_frames = 0

    def _ended(self, now: TrainingPoint, agent_steps: int) -> tuple[TrainingPoint, bool]:
        assert self._under_way is not None
        (at, confirms), self._under_way = self._under_way, None
        self.seconds += now.seconds - at.seconds
        self.agent_steps += agent_steps
        if confirms:
            self.target.confirming_agent_steps += agent_steps
            self.target.not_before_agent_steps = now.agent_steps + agent_steps / 2
        return at, confirms

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint. An evaluation under way is not in it: it is lost with its process."""
        return {
            "return_target": asdict(self.target),
            "untrained_return": self.returns.untrained,
            "last_evaluation": self.last,
            "evaluated_frames": self._since_frames,
            "evaluation_seconds": self.seconds,
            "evaluation_agent_steps": self.agent_steps,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`; other keys are ignored."""
        self.returns.untrained, self.last = state["untrained_return"], state["last_evaluation"]
        self._since_frames = state["evaluated_frames"]
        self.seconds, self.agent_steps = state["evaluation_seconds"], state["evaluation_agent_steps"]
        self.target.restore(state["return_target"])
