"""The asynchronous loop: whoever has reported is sent on its way again at once. No ray in it, and no barrier."""

import time
from collections.abc import Callable, Iterator, Sequence

from launch.loop.executor import Change, ChildEvent, Executor, Failed, Heartbeat, Replaced
from launch.loop.worker_pool import TrainingStoppedError, WorkerPool
from learner.learner import Learner, Outcome
from shared.config import SupervisionConfig
from shared.errors import ConfigurationError
from shared.types import AggregatedReport, EvaluationPolicy, EvaluationResult, GradientReport, WeightSnapshot

Event = Outcome | EvaluationResult | Change


class Coordinator:
    """Moves reports into the learner and weights out of it.

    `run` is a generator, so that logging, checkpoints and stopping stay outside. It yields each event after the
    learner has taken it and the actor is under way again, so that this actor plays while
    the caller makes a plot or a checkpoint of it. After `stop`, what is in flight is still taken in.

    Args:
        learner: takes the reports.
        executor: runs the rollouts.
        calls_per_actor: rollouts asked of one actor at a time.
        supervision: when an actor hangs, and how many may be replaced.
        clock: seconds, monotonic.

    Attributes:
        evaluations_under_way: those that `evaluate` has asked for.
        messages: that the learner took in.
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
        self._published_version: int | None = None
        self._published_target_version: int | None = None
        self._non_finite = 0
        self.evaluations_under_way = 0
        self.messages = 0

    @property
    def actor_restarts(self) -> int:
        """Actors that were replaced."""
        return self._pool.actor_restarts

    @property
    def rollouts_lost(self) -> int:
        """Rollouts that ended with the actors that were making them, at most."""
        return self._pool.rollouts_lost

    def resume(self, actor_ids: Sequence[int]) -> None:
        """Watch over rollouts that are under way before `run`, by their actors' ids."""
        self._pool.resume(actor_ids)

    def stop(self) -> None:
        """Ask for no further rollouts; `run` ends when what is in flight has been taken in."""
        self._pool.stopping = True

    def give_up_evaluations(self) -> None:
        """Wait for no evaluation that is under way: one may take minutes, or never end."""
        self._executor.drop_evaluations()
        self.evaluations_under_way = 0

    def evaluate(self, policy: EvaluationPolicy, snapshot: WeightSnapshot | None = None) -> WeightSnapshot:
        """Have weights evaluated, the current ones if none are given; `run` yields the result. Returns the weights.

        An evaluator that dies takes all evaluations along that are under way: `run` yields `Replaced` then.
        """
        self._publish()
        snapshot = snapshot or self._learner.snapshot()
        self._executor.evaluate(snapshot, policy)
        self.evaluations_under_way += 1
        return snapshot

    def run(self) -> Iterator[Event | None]:
        """Yield an event for every completed call, and None now and then while nothing completes.

        Raises:
            TrainingStoppedError: more actors died than may be replaced, or too many gradients were not finite.
            ConfigurationError: an actor could not be made, and none has reported yet: none will.
        """
        self._publish()
        self._pool.start()
        while self._executor.calls_in_flight or self._pool.expects_others:
            completion = self._executor.next_completion()
            if isinstance(completion, GradientReport | AggregatedReport):
                yield from self._take(completion)
                yield from self._pool.remove_if_drained(completion.actor_id)
            elif isinstance(completion, ChildEvent):
                self._stop_if_none_can_be_made(completion.change)
                yield self._pool.changed(completion)
                yield from self._pool.remove_if_drained(completion.actor_id)
            elif isinstance(completion, Heartbeat):
                self._pool.on_heartbeat(completion)
                yield from self._pool.remove_if_drained(completion.actor_id)
                yield None
            elif isinstance(completion, EvaluationResult):
                self.evaluations_under_way = max(0, self.evaluations_under_way - 1)
                yield completion
            elif isinstance(completion, Failed):
                yield self._lose(completion)
            else:
                yield None
            yield from self._pool.supervise()
        self._pool.end()

    def _take(self, report: GradientReport | AggregatedReport) -> Sequence[Outcome]:
        """Give a report to the learner, and send its actor on its way again."""
        self.messages += 1
        self._pool.reported(report)
        if isinstance(report, AggregatedReport):
            outcomes = self._learner.submit_sum(report)
        else:
            outcomes = [self._learner.submit(report)]
        for outcome in outcomes:
            self._non_finite = self._non_finite + 1 if outcome.dropped == "non_finite" else 0
        if self._non_finite > self._max_non_finite:
            raise TrainingStoppedError(
                f"{self._non_finite} gradients in a row were not finite, more than --supervision.max-non-finite "
                f"{self._max_non_finite}: lower --optimizer.learning-rate, or clip by --optimizer.max-gradient-norm"
            )
        # Before the outcomes are yielded: the actor would idle for as long as their reader takes.
        if not self._pool.stopping:
            self._publish()
        self._pool.dispatch(report.actor_id)
        return outcomes

    def _lose(self, failed: Failed) -> Failed | Replaced:
        if failed.actor_id is None:
            self._executor.replace_evaluator()
            self.evaluations_under_way = 0
            return Replaced(failed, None)
        self._stop_if_none_can_be_made(failed)
        return self._pool.lose(failed)

    def _stop_if_none_can_be_made(self, change: Change) -> None:
        # Once a message has come, an actor can be made: another one that cannot is replaced like any that fails.
        if isinstance(change, Failed) and change.not_made and not self.messages:
            raise ConfigurationError(f"actor {change.actor_id} {change.reason}")

    def _publish(self) -> None:
        # Only what is new: each snapshot that is published becomes an object in Ray's store.
        if self._published_version != self._learner.version:
            self._executor.publish(self._learner.snapshot())
            self._published_version = self._learner.version
        target = self._learner.target_snapshot()
        if target is not None and target.version != self._published_target_version:
            self._executor.publish_target(target)
            self._published_target_version = target.version
