"""The actors of one executor, kept at work: who fails is replaced, who joins gets its first calls. No Ray in it."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence

from launch.loop.executor import Change, ChildEvent, Drained, Executor, Failed, Heartbeat, Joined, Replaced
from shared.config import SupervisionConfig
from shared.types import AggregatedReport, GradientReport

# Between two looks for actors that hang, and for nodes that come and go.
_CHECK_SECONDS = 1.0
_LONGEST_BACKOFF_SECONDS = 60.0
# An actor's first call is no longer than its others but for graphs that are traced; some environments slow down later.
_FIRST_FACTOR = 3.0


class TrainingStoppedError(Exception):
    """The run cannot go on: too many actors were lost, or too many gradients were not finite."""


class LearnerLostError(Exception):
    """A part of the learner was lost, and the weights with it: the run can only go on from its last checkpoint."""


class Watchdog:
    """Remembers the longest rollout of each actor, and so knows how long is too long.

    All times are seconds of one monotonic clock, given by the caller.

    Args:
        config: `hang_factor`, `hang_seconds` and `start_seconds`.
    """

    def __init__(self, config: SupervisionConfig) -> None:
        self._config = config
        self._waiting: dict[int, deque[float]] = {}
        self._working_since: dict[int, float] = {}
        self._longest: dict[int, float] = {}
        self._first: dict[int, float] = {}

    def dispatched(self, actor_id: int, now: float) -> None:
        """The actor was asked for a rollout."""
        waiting = self._waiting.setdefault(actor_id, deque())
        if not waiting:
            self._working_since[actor_id] = now
        waiting.append(now)

    def reported(self, actor_id: int, now: float, worked: float) -> None:
        """The actor completed its oldest call, and has worked for `worked` seconds in it by its own account.

        It works on the next one from now on, if it was asked for one.
        """
        self._waiting[actor_id].popleft()
        taken = now - self._working_since[actor_id]
        if actor_id in self._first:
            self._longest[actor_id] = max(self._longest[actor_id], taken)
        else:
            # The time that it took includes the start of a process; what it worked does not.
            self._first[actor_id], self._longest[actor_id] = worked, 0.0
        self._working_since[actor_id] = now

    def heard_from(self, actor_id: int, now: float) -> None:
        """A call was answered by a sign of life alone: how long rollouts take is not known from it."""
        self._waiting[actor_id].popleft()
        self._working_since[actor_id] = now

    def outstanding(self, actor_id: int) -> int:
        """Rollouts that the actor was asked for and has not reported."""
        return len(self._waiting.get(actor_id, ()))

    def forget(self, actor_id: int) -> None:
        """Drop everything about an actor that has ended."""
        for known in (self._waiting, self._working_since, self._longest, self._first):
            known.pop(actor_id, None)

    def hung(self, now: float, has_completed: Callable[[int], bool]) -> dict[int, str]:
        """The actors that have worked on one rollout for longer than they may, and a reason for each.

        `has_completed` says whether a report of an actor lies there and was not taken yet: so it is after a pause of
        this process itself, and the actor does not hang.
        """
        reasons = {}
        for actor_id, waiting in self._waiting.items():
            silent = now - self._working_since[actor_id]
            if not waiting or silent <= self._deadline(actor_id) or has_completed(actor_id):
                continue
            history, setting = "it has not reported yet", "start-seconds"
            if actor_id in self._first:
                longest = max(self._longest[actor_id], self._first[actor_id])
                history, setting = f"its longest rollout took {longest:.1f} s", "hang-seconds"
            reasons[actor_id] = (
                f"no report for {silent:.0f} s, {history}: it hangs; where rollouts take so long, raise "
                f"--supervision.{setting}"
            )
        return reasons

    def _deadline(self, actor_id: int) -> float:
        if actor_id not in self._first:
            return self._config.start_seconds
        return max(
            self._config.hang_seconds,
            self._config.hang_factor * self._longest[actor_id],
            _FIRST_FACTOR * self._first[actor_id],
        )


class RestartPolicy:
    """Has a replacement start at once, unless replacements keep dying before their first report.

    Then each waits twice as long as the one before it, so that a cause that lasts is not met again every second.

    Args:
        config: `max_restarts`, `restart_window_seconds` and `backoff_seconds`.
    """

    def __init__(self, config: SupervisionConfig) -> None:
        self._config = config
        self._deaths: deque[float] = deque()
        self._unproven: set[int] = set()
        self._fruitless = 0
        self._any_proven = False

    @property
    def hopeless(self) -> bool:
        """Whether nobody has ever reported, and replacements of replacements have failed as well."""
        return not self._any_proven and self._fruitless > 1

    def proven(self, actor_id: int) -> None:
        """The actor has reported: what made those before it fail is over."""
        self._any_proven = True
        if actor_id in self._unproven:
            self._unproven.discard(actor_id)
            self._fruitless = 0

    def died(self, actor_id: int, now: float) -> float | None:
        """Seconds to wait before its replacement starts; None if the run has lost too many."""
        window = self._config.restart_window_seconds
        self._deaths.append(now)
        while self._deaths[0] < now - window:
            self._deaths.popleft()
        if len(self._deaths) > self._config.max_restarts:
            return None
        self._fruitless = self._fruitless + 1 if actor_id in self._unproven else 0
        self._unproven.discard(actor_id)
        if not self._fruitless:
            return 0.0
        return min(self._config.backoff_seconds * 2.0 ** (self._fruitless - 1), _LONGEST_BACKOFF_SECONDS)

    def replaced_by(self, actor_id: int) -> None:
        """A replacement was started under this id."""
        self._unproven.add(actor_id)


class WorkerPool:
    """Sends the actors of an executor on their way, and takes care of those that fail, hang, join or have to go.

    The coordinator has one, and so has every process that adds gradients on their way to the learner: what is said
    here of an actor holds for whatever an id of the executor stands for. A failed actor is replaced, after a wait if
    its kind keeps failing; the others go on meanwhile.

    Args:
        executor: runs the rollouts. Weights are published before the first dispatch.
        calls_per_actor: rollouts asked of one actor at a time.
        supervision: when an actor hangs, and how many may be replaced.
        clock: seconds, monotonic.

    Attributes:
        actor_restarts: actors that were replaced, those within ids that stand for several included.
        rollouts_lost: with actors that ended, likewise.
    """

    def __init__(
        self, executor: Executor, calls_per_actor: int, supervision: SupervisionConfig, clock: Callable[[], float]
    ) -> None:
        self._executor, self._calls_per_actor, self._clock = executor, calls_per_actor, clock
        self._supervision = supervision
        self._watchdog, self._restarts = Watchdog(supervision), RestartPolicy(supervision)
        self._due: list[tuple[float, Failed]] = []
        self._draining: set[int] = set()
        self._checked = clock()
        self.stopping = False
        self.actor_restarts = 0
        self.rollouts_lost = 0

    @property
    def expects_others(self) -> bool:
        """Whether some will be at work again though none may be now: replacements, or whoever finds room."""
        return bool(self._due) or not (self.stopping or self._executor.actor_ids)

    def resume(self, actor_ids: Sequence[int]) -> None:
        """Watch over rollouts that are under way before `start`, by their actors' ids."""
        for actor_id in actor_ids:
            self._watchdog.dispatched(actor_id, self._clock())

    def start(self) -> None:
        """Ask each actor for as many rollouts as it is to have under way, less those that it was resumed with."""
        for calls in range(self._calls_per_actor):
            for actor_id in self._executor.actor_ids:
                if self._watchdog.outstanding(actor_id) <= calls:
                    self.dispatch(actor_id)

    def dispatch(self, actor_id: int) -> None:
        """Ask an actor for one more rollout, unless the run stops or its node is draining."""
        if self.stopping or actor_id in self._draining:
            return
        self._ask(actor_id)

    def reported(self, report: GradientReport | AggregatedReport) -> None:
        """Note that an actor has completed its oldest call."""
        self._watchdog.reported(report.actor_id, self._clock(), _worked_seconds(report))
        self._restarts.proven(report.actor_id)

    def changed(self, told: ChildEvent) -> Change:
        """Count what has changed among the actors of one id, and have the others go on.

        Raises:
            TrainingStoppedError: more actors died than may be replaced, or none has ever completed a rollout.
        """
        now = self._clock()
        calls_left = self._watchdog.outstanding(told.actor_id) - 1
        # A process starts there, or has just ended: what that takes is no measure of other calls.
        self._watchdog.forget(told.actor_id)
        for _ in range(calls_left):
            self._watchdog.dispatched(told.actor_id, now)
        self.rollouts_lost += told.rollouts_lost
        if isinstance(told.change, Replaced):
            self.actor_restarts += 1
        elif isinstance(told.change, Failed) and not told.change.node_lost and not self.stopping:
            self._count_death(told.change, now)
        self.dispatch(told.actor_id)
        return told.change

    def on_heartbeat(self, sign: Heartbeat) -> None:
        """Take in that several actors under one id are watched over where they are, and have them go on.

        A sum that they are at is waited for by a run that stops and on a node that drains, too.
        """
        self._watchdog.heard_from(sign.actor_id, self._clock())
        ask = self._ask if sign.expects_one else self.dispatch
        ask(sign.actor_id)

    def lose(self, failed: Failed) -> Failed:
        """End an actor that failed, and note when its replacement may start.

        Raises:
            TrainingStoppedError: more actors died than may be replaced, or none has ever completed a rollout.
        """
        assert failed.actor_id is not None
        now = self._clock()
        self._end(failed.actor_id)
        # A run that stops replaces nobody.
        if not failed.node_lost and not self.stopping:
            # With its node an actor has no replacement of its own: others start when, and where, there is room again.
            self._due.append((now + self._count_death(failed, now), failed))
        return failed

    def remove_if_drained(self, actor_id: int) -> Iterator[Drained]:
        """End an actor on a draining node, once it has reported all that it was asked for."""
        if actor_id in self._draining and not self._watchdog.outstanding(actor_id):
            # No rollout is lost, unless the id stands for several actors: what they have under way ends with them.
            self._end(actor_id)
            yield Drained(actor_id)

    def supervise(self) -> Iterator[Change]:
        """Do what is due: end those that hang, follow the cluster, start replacements.

        Raises:
            TrainingStoppedError: more actors died than may be replaced, or none has ever completed a rollout.
        """
        now = self._clock()
        if now - self._checked >= _CHECK_SECONDS:
            self._checked = now
            for actor_id, reason in self._watchdog.hung(now, self._executor.has_completed).items():
                yield self.lose(Failed(actor_id, reason))
            yield from self._follow_cluster()
        # One that was just found to hang may be due at once.
        yield from self._replace_due(self._clock())

    def end(self) -> None:
        """Count what will not be waited for.

        Where an id stands for several actors, its call is waited for, and the rollouts that have no part in its sum
        are not: they end with their process.
        """
        self.rollouts_lost += sum(map(self._executor.rollouts_under_way, self._executor.actor_ids))

    def _ask(self, actor_id: int) -> None:
        self._executor.dispatch(actor_id)
        self._watchdog.dispatched(actor_id, self._clock())

    def _end(self, actor_id: int) -> None:
        self.rollouts_lost += self._executor.rollouts_under_way(actor_id)
        self._watchdog.forget(actor_id)
        self._draining.discard(actor_id)
        self._executor.remove(actor_id)

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
        # An error in the environment's code, most often, which no wait mends.
        if failed.raised and self._restarts.hopeless:
            raise TrainingStoppedError(
                f"no rollout was completed, and every replacement failed, too; the last, actor {failed.actor_id}: "
                f"{failed.reason}; --executor inline shows the whole traceback"
            )
        return wait

    def _follow_cluster(self) -> Iterator[Joined]:
        """Ask actors on draining nodes for nothing more, and start others where there is room."""
        if self.stopping:
            return
        self._draining |= set(self._executor.draining())
        # Some of the room is that of actors that failed, whose replacements wait for their time.
        for _ in range(self._executor.free_slots() - len(self._due)):
            actor_id = self._add()
            if actor_id is None:
                return
            yield Joined(actor_id)

    def _replace_due(self, now: float) -> Iterator[Replaced]:
        """Start the replacements whose wait is over, as far as there are places for them."""
        if self.stopping:
            self._due = []
        for due in [due for due in self._due if due[0] <= now]:
            replacement_id = self._add()
            if replacement_id is None:
                if self._executor.free_slots() <= 0:
                    # Others have taken its place, or it is gone: nobody is missing.
                    self._due.remove(due)
                break
            self._due.remove(due)
            self._restarts.replaced_by(replacement_id)
            self.actor_restarts += 1
            yield Replaced(due[1], replacement_id)

    def _add(self) -> int | None:
        """Start one more actor, and give it its first calls. None if there is no place for it."""
        actor_id = self._executor.add()
        if actor_id is not None:
            for _ in range(self._calls_per_actor):
                self.dispatch(actor_id)
        return actor_id


def _worked_seconds(report: GradientReport | AggregatedReport) -> float:
    """Seconds for which the actor of a report played and differentiated; of a sum, its busiest actor."""
    seconds = defaultdict[int, float](float)
    for part in report.reports if isinstance(report, AggregatedReport) else (report,):
        stages = part.stage_seconds
        seconds[part.actor_id] += stages.environment + stages.acting + stages.gradient
    return max(seconds.values(), default=0.0)
