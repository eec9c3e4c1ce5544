"""Evaluations of a run, and the conditions under which it stops. No Ray, no TensorFlow.

A training return can cross a target by luck: many versions of the weights played it, and it is compared after every
rollout. A crossing is therefore confirmed by an evaluation of the weights of that moment. The confirmation selects
these weights, so that its mean is not a score: `tributary evaluate` plays other games for one.
"""

import math
from collections.abc import Callable
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


def reason_to_stop(config: RunConfig, frames: int, seconds: float, *, confirmed: bool) -> Status | None:
    """The status of a run that stops after `frames` and `seconds` of training; None if it goes on.

    When several rules hold, a `confirmed` target comes before the limits that it made unnecessary.
    """
    if confirmed:
        return "return_reached"
    if frames >= config.total_frames:
        return "frames_reached"
    if config.stop_after_seconds is not None and seconds >= config.stop_after_seconds:
        return "time_reached"
    return None


# ---- Evaluations


def expected_maximum(tries: int) -> float:
    """The expected maximum of `tries` standard normal numbers (Blom 1958): 0, 0.6, 0.9, 1.0, 1.2."""
    return NormalDist().inv_cdf((tries - 0.375) / (tries + 0.25))


def confirmed_mean(returns: npt.NDArray[np.float64], tries: int, untrained: float | None) -> float | None:
    """What the confirmation that is number `tries` compares with the target; None: the mean.

    The first confirmation compares its mean. A later one subtracts `expected_maximum(tries)` standard errors of the
    mean, by which the best of that number of equal tries exceeds the true mean. Its returns then include one episode of
    untrained play, if that is known and lower: the error of 100 games without a lost one is nearly zero. A policy of
    Pong that loses 5 % of its games and has a mean of 17 is confirmed at 18 within 40 tries by a quarter of the runs,
    by 99 of 100 if each compares its mean; one with a mean of 19 and 3 % takes 1.2 tries, not 1.1.
    """
    if tries == 1 or not np.isfinite(returns).all():
        return None
    cautious = returns if untrained is None or untrained >= returns.mean() else np.append(returns, untrained)
    return float(cautious.mean() - expected_maximum(tries) * cautious.std(ddof=1) / math.sqrt(len(cautious)))


# Standard normal quantiles: one-sided error rates of 10 % and of 1 %.
_Z_MISSED, _Z_REACHED = 1.28, 2.33
# A policy that loses one game of ten may win all of a smaller number.
_MIN_EPISODES_REACHED = 30


def predicted_verdict(
    returns: npt.NDArray[np.float64], episodes: int, target: float, untrained: float | None, tries: int = 1
) -> bool | None:
    """True if the mean of all `episodes` will reach the target, by the first of them; None while uncertain.

    `tries`: number of this confirmation. From the second on, the target is raised by `expected_maximum(tries)` standard
    errors.

    Of N episodes n have been played, with mean m and standard deviation s. The mean of all N is then about normal, with
    mean m and standard deviation s √((N − n) / (N n)): zero when all are played. This is a group-sequential test by
    predictive power (Spiegelhalter, Freedman and Blackburn 1986), with a look after each wave from 20 episodes on:

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
    spread, margin = math.sqrt((episodes - played) / (episodes * played)), expected_maximum(tries) / math.sqrt(episodes)
    with np.errstate(invalid="ignore"):
        mean, deviation = returns.mean(), returns.std(ddof=1)
        best = float(mean + _Z_MISSED * spread * deviation)
        if best - margin * deviation < target:
            return False
        # One episode of untrained play alone may hold a later confirmation below the target, also after perfect play.
        counted = confirmed_mean(np.full(episodes, best), tries, untrained)
        if counted is not None and counted < target:
            return False
        if untrained is None or not untrained < mean or played < _MIN_EPISODES_REACHED:
            return None
        cautious = np.append(returns, untrained)
        certain = cautious.mean() - (_Z_REACHED * spread + margin) * cautious.std(ddof=1) >= target
    return True if certain else None


class Evaluations:
    """Requests regular evaluations and confirmations of --stop-at-return, one at a time, and compares the results.

    With the measure `training` a crossing by `TrainingReturns`, or by `RecentReturn`, requests a confirmation. With the
    measure `evaluation` a regular evaluation that reaches the target is crossing and confirmation in one.

    After a confirmation that failed the next one waits until half as many agent steps as it took have been played, and
    until those of all confirmations are at most as many as those of training, for `RecentReturn` half as many. The best
    of several tries is high by luck: see `confirmed_mean`. When an evaluation is lost, the next regular one comes at
    its usual time, and a confirmation counts as a failed one.

    Attributes:
        every_frames: frames between regular evaluations; 0 if none is to come.
        first, confirmed: the points at which the target was crossed and confirmed.
        tries: confirmations that ended with a mean.
        last: the entry of the last evaluation, for the summary.
        seconds: of training, during which evaluations were under way.
        agent_steps: agent steps of evaluations. None of them is in a count of training.
    """

    def __init__(self, config: RunConfig, returns: TrainingReturns, log: Callable[[str], None]) -> None:
        self.returns, self._config, self._log = returns, config.evaluation, log
        self._target, self._measure = config.stop_at_return, config.stop_measure
        self.every_frames = config.evaluation.every_frames
        self._since_frames = 0
        # The weights of the evaluation under way, and whether it is a confirmation.
        self._under_way: tuple[TrainingPoint, bool] | None = None
        self.first: TrainingPoint | None = None
        self.confirmed: TrainingPoint | None = None
        self.tries = self._confirming_agent_steps = 0
        self._not_before_agent_steps = 0.0
        self.last: dict[str, Any] | None = None
        self.seconds, self.agent_steps = 0.0, 0

    def _reaches(self, mean: float | None) -> bool:
        # Without the test an infinity would reach any target.
        return self._target is not None and mean is not None and math.isfinite(mean) and mean >= self._target

    def _crosses(self, at: TrainingPoint) -> bool:
        """True if the run crosses the target here, and may confirm it."""
        if self._measure != "training" or at.agent_steps < self._not_before_agent_steps:
            return False
        return self.returns.is_representative and any(
            self._reaches(getattr(at, name)) and self._confirming_agent_steps <= share * at.agent_steps
            for name, share in _CONFIRMING_SHARES.items()
        )

    def request_if_due(
        self, at: TrainingPoint, evaluate: Callable[[EvaluationPolicy, EvaluationConfig, GoesOn | None], bool]
    ) -> None:
        """Request an evaluation of the newest weights if they cross the target, or if a regular one is due.

        None is due after the target is confirmed. `evaluate` returns False if none can begin now.
        """
        config, target = self._config, self._target
        if self._under_way is not None or self.confirmed is not None:
            return
        confirms = self._crosses(at)
        due = 0 < self.every_frames <= at.frames - self._since_frames
        if not (confirms or due):
            return

        def goes_on(returns: npt.NDArray[np.float64]) -> bool:
            untrained, tries = self.returns.untrained, self.tries + 1 if confirms else 1
            verdict = target is not None and predicted_verdict(returns, config.episodes, target, untrained, tries)
            # A regular evaluation that reaches the target is played to its end: it is a point of the curve, too.
            return verdict is None or (verdict and not confirms)

        ends_early = confirms or (target is not None and self._measure == "evaluation")
        policy = CONFIRMING_POLICY if confirms else config.policy
        if not evaluate(policy, config, goes_on if ends_early else None):
            return
        self._under_way = at, confirms
        if not confirms:
            self._since_frames = at.frames
            return
        self.first = self.first or at
        by_recent = "" if at.recent_return is None else f" ({at.recent_return:.2f} by the latest rewards)"
        mean = "unknown" if at.training_mean_return is None else f"{at.training_mean_return:.2f}"
        self._log(
            f"the mean return of training is {mean}{by_recent}, and the target is {target:g}: an evaluation of update "
            f"{at.update} checks it"
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
        mean = counted = entry["mean_return"]
        evaluated = at._replace(evaluation_mean_return=mean)
        if confirms:
            self.tries += 1
            least = confirmed_mean(result.episodes.returns, self.tries, self.returns.untrained)
            counted = mean if least is None else least
            if self.first == at:
                self.first = evaluated
            if self._reaches(mean) and not self._reaches(counted):
                line = f"the best of {self.tries} confirmations may reach {mean:.2f} by chance"
                self._log(f"{line}: it counts as {counted:.2f}, below the target {self._target:g}")
        if self._reaches(counted) and (confirms or self._measure == "evaluation"):
            self.first, self.confirmed = self.first or evaluated, evaluated
        point = {"frames": at.frames, "agent_steps": at.agent_steps, "elapsed_seconds": at.seconds}
        return point | entry, self.confirmed is not None

    def lose(self, lost: EvaluationLost, now: TrainingPoint) -> None:
        """Log the loss of the evaluation under way."""
        at, _ = self._ended(now, lost.agent_steps)
        more = ", and no further regular evaluation is played" if lost.endless and self.every_frames else ""
        self._log(f"the evaluation of update {at.update} is given up{more}: {lost.reason}")
        if lost.endless:
            self.every_frames = 0

    def _ended(self, now: TrainingPoint, agent_steps: int) -> tuple[TrainingPoint, bool]:
        assert self._under_way is not None
        (at, confirms), self._under_way = self._under_way, None
        self.seconds += now.seconds - at.seconds
        self.agent_steps += agent_steps
        if confirms:
            self._confirming_agent_steps += agent_steps
            self._not_before_agent_steps = now.agent_steps + agent_steps / 2
        return at, confirms

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint. An evaluation under way is not in it: it is lost with its process."""
        return {
            "untrained_return": self.returns.untrained,
            "last_evaluation": self.last,
            "evaluated_frames": self._since_frames,
            "evaluation_seconds": self.seconds,
            "evaluation_agent_steps": self.agent_steps,
            "return_target": [self._target, self._measure],
            "crossings": [self.first, self.confirmed],
            "confirmations": [self.tries, self._confirming_agent_steps, self._not_before_agent_steps],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`, without the crossings of another target; other keys are ignored."""
        self.returns.untrained, self.last = state["untrained_return"], state["last_evaluation"]
        self._since_frames = state["evaluated_frames"]
        self.seconds, self.agent_steps = state["evaluation_seconds"], state["evaluation_agent_steps"]
        if state["return_target"] == [self._target, self._measure]:
            self.first, self.confirmed = (point and TrainingPoint(*point) for point in state["crossings"])
            self.tries, self._confirming_agent_steps, self._not_before_agent_steps = state["confirmations"]
