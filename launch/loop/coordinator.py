"""The asynchronous loop between the learner and its actors: no barrier, no Ray.

The life of a gradient report:

    dispatched ──► computed ──► sent ──► taken in here ──► admitted ──► summed ──► applied (one update per K)
      weights       by the      by the       │                │
      of the        actor       executor     │                └──► dropped, with its reason
      moment                                 └──► the actor is dispatched again, with the newest weights

    Lost with an actor between "dispatched" and "taken in": counted by the worker pool. Every report that is taken in
    ends as applied, pending or dropped in the learner's account: sampled = applied + pending + dropped.
"""

import time
from collections.abc import Callable, Iterator, Sequence

from launch.loop.executor import Change, ChildEvent, Executor, Failed, Heartbeat, Replaced
from launch.loop.worker_pool import TrainingStoppedError, WorkerPool, worked_seconds
from learner.learner import Learner, Outcome
from shared.config import SupervisionConfig
from shared.errors import ConfigurationError
from shared.types import AggregatedReport, EvaluationPolicy, EvaluationResult, GradientReport

Event = Outcome | EvaluationResult | Heartbeat | Change


class Coordinator:
    """Moves reports into the learner and weights out of it.

    `run` is a generator: logging, checkpoints and stopping are its caller's. It yields an event after the learner has
    taken it in and the actor has been dispatched again, so that the actor works while the caller writes.

    Args:
        learner: takes the reports.
        executor: runs the rollouts.
        calls_per_actor: rollouts in flight per actor.
        supervision: limits of silence and of replacements.
        clock: monotonic seconds.

    Attributes:
        evaluations_under_way: evaluations that were requested and have not ended.
        messages: number of messages that the learner took in; a sum of gradients is one.
        began: `time.monotonic()` at which the first rollout began, by its actor's own account; None before its report.
    """

    def __init__(
        self,
        learner: Learner,
        executor: Executor,
        *,
        calls_per_actor: int,
        supervision: SupervisionConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._learner = learner
        self._executor = executor
        self._pool = WorkerPool(executor, calls_per_actor, supervision, clock)
        self._max_non_finite = supervision.max_non_finite
        # The versions that the executor has: a publish costs a copy, so each is published once.
        self._published_version: int | None = None
        self._published_target_version: int | None = None
        # Rollouts in a row that were not finite: each of them gives one report. One may come from a single bad
        # environment step, a series of them does not end.
        self._non_finite = 0
        self.evaluations_under_way = 0
        self.messages = 0
        self.began: float | None = None

    @property
    def actor_restarts(self) -> int:
        """Number of replaced actors."""
        return self._pool.actor_restarts

    @property
    def rollouts_lost(self) -> int:
        """Upper bound of the rollouts that were lost with ended actors."""
        return self._pool.rollouts_lost

    def stop(self) -> None:
        """Dispatch no further rollouts. `run` takes in what is in flight, and ends."""
        self._pool.stopping = True

    def give_up_evaluations(self) -> None:
        """Do not wait for evaluations in flight: one may take minutes, or never end."""
        self._executor.drop_evaluations()
        self.evaluations_under_way = 0

    def evaluate(self, policy: EvaluationPolicy) -> None:
        """Request an evaluation of the current weights. `run` yields the result.

        If the evaluator dies, `run` yields `Replaced`, and all evaluations in flight are lost.
        """
        self._publish()
        self._executor.evaluate(self._learner.snapshot(), policy)
        self.evaluations_under_way += 1

    def run(self) -> Iterator[Event | None]:
        """Yield an event for every completed call, and None now and then while none completes.

        Raises:
            TrainingStoppedError: more actors died than may be replaced, or too many gradients were not finite.
            ConfigurationError: an actor could not be constructed before any has reported.
        """
        self._publish()
        self._pool.start()
        while self._executor.calls_in_flight or self._pool.expects_actors:
            completion = self._executor.next_completion()
            match completion:
                case GradientReport() | AggregatedReport():
                    yield from self._take(completion)
                    yield from self._pool.remove_if_drained(completion.actor_id)
                case ChildEvent():
                    self._stop_if_none_can_be_made(completion.change)
                    yield self._pool.on_child_event(completion)
                    yield from self._pool.remove_if_drained(completion.actor_id)
                case Heartbeat():
                    self._pool.on_heartbeat(completion)
                    yield completion
                    yield from self._pool.remove_if_drained(completion.actor_id)
                case EvaluationResult():
                    self.evaluations_under_way = max(0, self.evaluations_under_way - 1)
                    yield completion
                case Failed():
                    yield self._on_failure(completion)
                case None:
                    # The caller looks at its clock: for rows, checkpoints, and limits of time.
                    yield None
            yield from self._pool.supervise()
        self._pool.end()

    def _take(self, report: GradientReport | AggregatedReport) -> Sequence[Outcome]:
        """Submit a report to the learner, and dispatch to its actor again."""
        if self.began is None:
            # Not `clock`: a replay drives it by the trace. Actors on other machines have clocks of their own.
            self.began = time.monotonic() - worked_seconds(report)
        self.messages += 1
        self._pool.on_report(report)
        if isinstance(report, AggregatedReport):
            outcomes = self._learner.submit_sum(report)
        else:
            outcomes = [self._learner.submit(report)]
        for outcome in outcomes:
            self._non_finite = self._non_finite + 1 if outcome.dropped == "non_finite" else 0
            if self._non_finite > self._max_non_finite:
                raise TrainingStoppedError(
                    f"{self._non_finite} rollouts in a row were not finite, more than --supervision.max-non-finite "
                    f"{self._max_non_finite}; the last had the {outcome.report.non_finite}: "
                    f"{non_finite_advice(outcome.report.non_finite)}"
                )
        # Before the outcomes are yielded: the actor would idle while the caller writes rows or a checkpoint.
        if not self._pool.stopping:
            self._publish()
        self._pool.dispatch(report.actor_id)
        return outcomes

    def _on_failure(self, failed: Failed) -> Failed | Replaced:
        if failed.actor_id is None:
            # The evaluator. Its restarts are not limited here: an evaluation is requested anew by the caller or not.
            self._executor.replace_evaluator()
            self.evaluations_under_way = 0
            return Replaced(failed, None)
        self._stop_if_none_can_be_made(failed)
        return self._pool.on_failure(failed)

    def _stop_if_none_can_be_made(self, change: Change) -> None:
        # After the first report it is known that actors can be constructed: later failures are replaced like others.
        if isinstance(change, Failed) and change.not_made and not self.messages:
            raise ConfigurationError(f"actor {change.actor_id} {change.reason}")

    def _publish(self) -> None:
        # Only new versions: every published snapshot is encoded and copied once, 2.7 MB for the network of A3C.
        if self._published_version != self._learner.version:
            self._executor.publish(self._learner.snapshot())
            self._published_version = self._learner.version
        target = self._learner.target_snapshot()
        if target is not None and target.version != self._published_target_version:
            self._executor.publish_target(target)
            self._published_target_version = target.version


_ADVICE = {
    "reward": "mend the reward of the environment, or replace it in a wrapper (--environment.wrappers MODULE:WRAPPER)",
    "observation": "mend this number of the environment's observations, or replace it in a wrapper "
    "(--environment.wrappers MODULE:WRAPPER)",
}


def non_finite_advice(what: str) -> str:
    """What to do about a rollout with this `GradientReport.non_finite`."""
    diverged = "lower --optimizer.learning-rate, clip by --optimizer.max-gradient-norm, or scale rewards down"
    return _ADVICE.get(what.partition(" ")[0], diverged)
