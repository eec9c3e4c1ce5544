"""The asynchronous loop: whoever has reported is sent on its way again at once. No ray in it, and no barrier."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from launch.loop.executor import ChangedWithin, Executor, Failed, Replaced
from launch.loop.supervision import RestartPolicy, Watchdog
from learner.learner import Learner, Outcome
from shared.config import SupervisionConfig
from shared.errors import ConfigurationError
from shared.types import AggregatedReport, EvaluationPolicy, EvaluationResult, GradientReport, WeightSnapshot

# Between two looks for actors that hang.
_CHECK_SECONDS = 1.0


class Joined(NamedTuple):
    """An actor was started where there was room for one more."""

    actor_id: int


class Released(NamedTuple):
    """An actor on a draining node has made its last report and was ended."""

    actor_id: int


Event = Outcome | EvaluationResult | Failed | Replaced | Joined | Released


class TrainingStoppedError(Exception):
    """The run cannot go on: too many actors were lost, or too many gradients were not finite."""


class Coordinator:
    """Moves reports into the learner and weights out of it.

    `run` is a generator, so that logging, checkpoints and stopping stay outside. It yields each event after the
    learner has taken it and the actor is under way again, so that this actor plays while
    the caller makes a plot or a checkpoint of it. After `stop`, what is in flight is still taken in.

    A failed actor is replaced, after a wait if its kind keeps failing; the others go on meanwhile.

    Args:
        learner: takes the reports.
        executor: runs the rollouts.
        calls_per_actor: rollouts asked of one actor at a time.
        supervision: when an actor hangs, and how many may be replaced.
        clock: seconds, monotonic.
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
        self._calls_per_actor = calls_per_actor
        self._supervision = supervision
        self._clock = clock
        self._watchdog = Watchdog(supervision)
        self._restarts = RestartPolicy(supervision)
        self._due: list[tuple[float, Failed]] = []
        self._draining: set[int] = set()
        self._published_version: int | None = None
        self._published_target_version: int | None = None
        self._stopping = False
        self._checked = clock()
        self._non_finite = 0
        self.actor_restarts = 0
        self.rollouts_lost = 0
        self.messages = 0

    def resume(self, actor_ids: Sequence[int]) -> None:
        """Watch over rollouts that are under way before `run`, by their actors' ids."""
        for actor_id in actor_ids:
            self._watchdog.dispatched(actor_id, self._clock())

    def stop(self) -> None:
        """Ask for no further rollouts; `run` ends when what is in flight has been taken in."""
        self._stopping = True

    def evaluate(self, policy: EvaluationPolicy, snapshot: WeightSnapshot | None = None) -> WeightSnapshot:
        """Have weights evaluated, the current ones if none are given; `run` yields the result. Returns the weights.

        An evaluator that dies takes all evaluations along that are under way: `run` yields `Replaced` then.
        """
        self._publish()
        snapshot = snapshot or self._learner.snapshot()
        self._executor.evaluate(snapshot, policy)
        return snapshot

    def run(self) -> Iterator[Event | None]:
        """Yield an event for every completed call, and None now and then while nothing completes.

        Raises:
            TrainingStoppedError: more actors died than may be replaced, or too many gradients were not finite.
            ConfigurationError: an actor could not be made, and none has reported yet: none will.
        """
        for calls in range(self._calls_per_actor):
            for actor_id in self._executor.actor_ids:
                # Some have their calls already, from before a resume.
                if self._watchdog.outstanding(actor_id) <= calls:
                    self._dispatch(actor_id)
        while self._executor.calls_in_flight or self._due or self._waiting_for_room():
            completion = self._executor.next_completion()
            if isinstance(completion, GradientReport | AggregatedReport):
                yield from self._take(completion)
                yield from self._release_if_done(completion.actor_id)
            elif isinstance(completion, ChangedWithin):
                yield self._note_change(completion)
                yield from self._release_if_done(completion.actor_id)
            elif isinstance(completion, EvaluationResult):
                yield completion
            elif isinstance(completion, Failed):
                yield self._fail(completion)
            else:
                yield None
            now = self._clock()
            if now - self._checked >= _CHECK_SECONDS:
                self._checked = now
                for actor_id, reason in self._watchdog.hung(now, self._executor.has_completed).items():
                    yield self._fail(Failed(actor_id, reason))
                yield from self._follow_cluster()
            yield from self._replace_due(now)
        # Where an id stands for several actors, only the call is waited for, and not the rollouts of those that have
        # no part in its sum: they end with their process.
        self.rollouts_lost += sum(map(self._executor.rollouts_under_way, self._executor.actor_ids))

    def _take(self, report: GradientReport | AggregatedReport) -> Sequence[Outcome]:
        """Give a report to the learner, and send its actor on its way again."""
        self.messages += 1
        self._watchdog.reported(report.actor_id, self._clock())
        self._restarts.proven(report.actor_id)
        if isinstance(report, AggregatedReport):
            outcomes = self._learner.submit_sum(report)
        else:
            outcomes = [self._learner.submit(report)]
        for outcome in outcomes:
            self._non_finite = self._non_finite + 1 if outcome.dropped == "non_finite" else 0
        if self._non_finite > self._supervision.max_non_finite:
            raise TrainingStoppedError(
                f"{self._non_finite} gradients in a row were not finite, more than --supervision.max-non-finite "
                f"{self._supervision.max_non_finite}: lower --optimizer.learning-rate, or clip by "
                f"--optimizer.max-gradient-norm"
            )
        # Before the outcomes are yielded: the actor would idle for as long as their reader takes.
        self._dispatch(report.actor_id)
        return outcomes

    def _waiting_for_room(self) -> bool:
        """Whether all actors were lost with their nodes, and the run waits for new nodes."""
        return not self._stopping and not self._executor.actor_ids

    def _follow_cluster(self) -> Iterator[Event]:
        """Ask actors on draining nodes for nothing more, and start others where there is room."""
        if self._stopping:
            return
        self._draining |= set(self._executor.draining())
        # Some of the room is that of actors that failed, whose replacements wait for their time.
        for _ in range(self._executor.room() - len(self._due)):
            actor_id = self._executor.add()
            if actor_id is None:
                return
            for _ in range(self._calls_per_actor):
                self._dispatch(actor_id)
            yield Joined(actor_id)

    def _stop_if_none_can_be_made(self, failed: Failed) -> None:
        # Once a message has come, an actor can be made: another one that cannot is replaced like any that fails.
        if failed.not_made and not self.messages:
            raise ConfigurationError(f"actor {failed.actor_id} {failed.reason}")

    def _note_change(self, told: ChangedWithin) -> Event:
        """Count an actor that was lost or replaced among those of one id, and have the others go on."""
        now = self._clock()
        calls_left = self._watchdog.outstanding(told.actor_id) - 1
        # A process starts there: what it takes is no measure of the calls before it.
        self._watchdog.forget(told.actor_id)
        for _ in range(calls_left):
            self._watchdog.dispatched(told.actor_id, now)
        if isinstance(told.change, Replaced):
            self.actor_restarts += 1
        else:
            self._stop_if_none_can_be_made(told.change)
            self.rollouts_lost += 1
            self._count_death(told.change, now)
        self._dispatch(told.actor_id)
        return told.change

    def _release_if_done(self, actor_id: int) -> Iterator[Released]:
        """End an actor on a draining node, once it has reported all that it was asked for."""
        if actor_id not in self._draining or self._watchdog.outstanding(actor_id):
            return
        self._draining.discard(actor_id)
        self._watchdog.forget(actor_id)
        # None, unless the id stands for several actors: what they have under way without a call ends with them.
        self.rollouts_lost += self._executor.rollouts_under_way(actor_id)
        self._executor.remove(actor_id)
        yield Released(actor_id)

    def _dispatch(self, actor_id: int) -> None:
        """Ask an actor for one rollout with the newest weights, unless the run stops or its node is draining."""
        if self._stopping or actor_id in self._draining:
            return
        self._publish()
        self._executor.dispatch(actor_id)
        self._watchdog.dispatched(actor_id, self._clock())

    def _publish(self) -> None:
        # Only what is new: each snapshot that is published becomes an object in Ray's store.
        if self._published_version != self._learner.version:
            self._executor.publish(self._learner.snapshot())
            self._published_version = self._learner.version
        target = self._learner.target_snapshot()
        if target is not None and target.version != self._published_target_version:
            self._executor.publish_target(target)
            self._published_target_version = target.version

    def _fail(self, failed: Failed) -> Event:
        if failed.actor_id is None:
            self._executor.replace_evaluator()
            return Replaced(failed, None)
        self._stop_if_none_can_be_made(failed)
        now = self._clock()
        self.rollouts_lost += self._executor.rollouts_under_way(failed.actor_id)
        self._watchdog.forget(failed.actor_id)
        self._executor.remove(failed.actor_id)
        self._draining.discard(failed.actor_id)
        if failed.node_lost:
            # It has no replacement of its own: others start when, and where, there is room again.
            return failed
        self._due.append((now + self._count_death(failed, now), failed))
        return failed

    def _count_death(self, failed: Failed, now: float) -> float:
        """Seconds to wait before the replacement of this actor starts."""
        assert failed.actor_id is not None
        wait = self._restarts.died(failed.actor_id, now)
        if wait is None:
            raise TrainingStoppedError(
                f"more actors died within {self._supervision.restart_window_seconds:.0f} s than "
                f"--supervision.max-restarts {self._supervision.max_restarts}; the last, actor {failed.actor_id}: "
                f"{failed.reason}"
            )
        return wait

    def _replace_due(self, now: float) -> Iterator[Event]:
        """Start the replacements whose wait is over, as far as there are places for them."""
        if self._stopping:
            self._due = []
        for due in [due for due in self._due if due[0] <= now]:
            replacement_id = self._executor.add()
            if replacement_id is None:
                break
            self._due.remove(due)
            self._restarts.replaced_by(replacement_id)
            self.actor_restarts += 1
            for _ in range(self._calls_per_actor):
                self._dispatch(replacement_id)
            yield Replaced(due[1], replacement_id)
