"""The actors of one executor: dispatch, supervision and replacement. No Ray, and no clock of its own.

The life of an actor:

                 add()                   first report
    free slot ─────────► starting ─────────────────────► working ◄──┐ report, or a heartbeat after a rollout
                            │                            │    │     │ or before a sum; next dispatch
                            │ no call ended for          │    └─────┘
                            │ start_seconds              │
                            │                            │ no report for hang_seconds*
                            ▼                            │
                          silent ◄───────────────────────┘
                            │ its report is not waiting in the executor
                            ▼
      process died ──────► failed
      rollout raised      (Failed)
                            ├── node lost ───► a free slot, if the run has one elsewhere (Joined)
                            ├── otherwise ───► a replacement under a new id, after a wait if one dies early (Replaced)
                            └── more than max_restarts in ten minutes, or before any report ─► TrainingFailedError

    * or 20 × the longest of its last rollouts, 3 × the work of its first one, or start_seconds in an evaluation, if
      that is longer.

Failed actors are never revived under their id: a late report of the old process must not be taken for one of the new.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from launch.loop.executor import Change, ChildEvent, Executor, Failed, Joined, Replaced
from shared.config import SupervisionConfig
from shared.errors import TrainingFailedError
from shared.types import AggregatedReport, EvaluationPart, EvaluationShare, GradientReport, Heartbeat

# Seconds between two checks for hung actors and for nodes that join, which costs a call to Ray's server.
_CHECK_SECONDS = 1.0
# A longer time between two checks is a pause of this process.
_PAUSE_SECONDS = 10.0
# Before another actor takes the place of a replacement that never reported: the cause may be lasting.
_WAIT_SECONDS = 30.0
# The first call traces graphs: twenty times as long would keep a hung actor for minutes.
_FIRST_FACTOR = 3.0
# An actor counts as hung after this multiple of the longest of its last rollouts. That many rollouts after a pause of
# the whole machine, the pause no longer raises the limit.
_HANG_FACTOR, _LAST_ROLLOUTS = 20.0, 200
# A death an hour is no reason to end a run of days, and ten within minutes have a lasting cause.
_RESTART_WINDOW_SECONDS = 600.0


class WorkerPool:
    """Dispatches to the actors of an executor and replaces those that fail or hang.

    The coordinator has one, and so has the gradient aggregator of each node. In the coordinator's pool an id may stand
    for an aggregator and its actors; the rules are the same.

    Weights are published before the first dispatch. `clock` gives monotonic seconds.

    Attributes:
        share_of: returns an actor's share of an evaluation, played in place of training; None if it has none.
        actor_restarts: number of replaced actors, those behind an aggregator included.
        rollouts_lost: upper bound of the rollouts lost with ended actors, likewise.

    Raises:
        TrainingFailedError: more actors died than may be replaced. By `on_child_event`, `on_failure` and `supervise`.
    """

    def __init__(self, executor: Executor, supervision: SupervisionConfig, clock: Callable[[], float]) -> None:
        self._executor, self._supervision, self._clock = executor, supervision, clock
        self._watched: dict[int, _Watched] = {}
        self._deaths: deque[float] = deque()
        # Whether a rollout was ever completed: deaths before have a lasting cause, however far apart they are.
        self._works = False
        # Replacements that have not reported yet.
        self._unproven: set[int] = set()
        # Replacements to be started: due time, failure.
        self._due: list[tuple[float, Failed]] = []
        self._checked = clock()
        self.stopping = False
        self.share_of: Callable[[int], EvaluationShare | None] = lambda _: None
        self.actor_restarts = 0
        self.rollouts_lost = 0

    @property
    def expects_actors(self) -> bool:
        """True if actors will work again though none may work now: replacements, or actors on nodes that join."""
        return bool(self._due) or not (self.stopping or self._executor.actor_ids)

    def dispatch(self, actor_id: int) -> None:
        """Dispatch a call to an actor without one.

        A rollout that is in no gradient yet is completed first: its agent steps are already played. Then comes a
        share of an evaluation, also while the run stops. The actors of an aggregator complete theirs by themselves.
        """
        watched, aggregates = self._watched.setdefault(actor_id, _Watched()), self._executor.aggregates
        share = None if watched.unfinished and not aggregates else self.share_of(actor_id)
        if self.stopping and share is None and not watched.unfinished:
            return
        if self.stopping and share is not None:
            share = share._replace(alone=True)
        self._executor.dispatch(actor_id, share)
        watched.since, watched.evaluates = self._clock(), share is not None

    def dispatch_idle(self) -> None:
        """Dispatch to actors without a call."""
        for actor_id in self._executor.actor_ids:
            if actor_id not in self._watched or self._watched[actor_id].since is None:
                self.dispatch(actor_id)

    def on_report(self, report: GradientReport | AggregatedReport) -> None:
        """Record that an actor completed its call."""
        self._unproven.discard(report.actor_id)
        self._works = True
        watched, worked = self._watched[report.actor_id], worked_seconds(report)
        watched.unfinished = isinstance(report, GradientReport) and report.new_steps_follow
        assert watched.since is not None, "a report ends a call"
        # The call that plays a rollout may end in a heartbeat: the actor's own account has its seconds.
        if watched.first is None:
            watched.first = worked
        else:
            watched.last.append(max(self._clock() - watched.since, worked))
        watched.since = None

    def on_part(self, part: EvaluationPart) -> None:
        """Record that an actor played a part of an evaluation, and dispatch to it again.

        While the run stops, others wait for the next wave, which may begin now.
        """
        self._watched[part.actor_id].since = None
        self.dispatch_idle()

    def on_child_event(self, event: ChildEvent) -> Change:
        """Count a change among the actors behind an aggregator, and dispatch to it again."""
        # A process starts or has just ended there: the seconds so far say nothing about later ones.
        self._watched[event.actor_id] = _Watched(unfinished=self._watched[event.actor_id].unfinished)
        self.rollouts_lost += event.rollouts_lost
        if isinstance(event.change, Replaced):
            self.actor_restarts += 1
        elif isinstance(event.change, Failed) and not event.change.node_lost:
            self._count_death(event.change)
            if self._dies_too_often and self.stopping:
                # The sum would never be complete.
                self._watched[event.actor_id].unfinished = False
        self.dispatch(event.actor_id)
        return event.change

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Record that an actor or aggregator is alive, and dispatch to it again.

        A rollout that was played (no warm-up), or a sum that actors are working on, is completed even
        while the run stops. So the end of a run waits for at most K gradients of each node.
        """
        watched = self._watched[heartbeat.actor_id]
        watched.since, watched.unfinished = None, heartbeat.new_steps_follow
        self.dispatch(heartbeat.actor_id)

    def on_failure(self, failed: Failed) -> Failed:
        """End a failed actor, and schedule its replacement."""
        self.rollouts_lost += self._executor.rollouts_under_way(failed.actor_id)
        del self._watched[failed.actor_id]
        self._executor.remove(failed.actor_id)
        # An actor lost with its node has no replacement of its own: `_follow_cluster` fills free slots, wherever
        # they are. A run that stops replaces no actor.
        if not failed.node_lost and not self.stopping:
            self._count_death(failed)
            waits = failed.actor_id in self._unproven
            self._due.append((self._clock() + waits * _WAIT_SECONDS, failed))
        return failed

    def supervise(self) -> Iterator[Change]:
        """End hung actors, follow the cluster, and start due replacements."""
        now = self._clock()
        if (gap := now - self._checked) >= _CHECK_SECONDS:
            self._checked = now
            if gap > max(self._supervision.hang_seconds, _PAUSE_SECONDS):
                # This process was paused, and the actors may have been with it, as in a suspended job.
                for watched in self._watched.values():
                    watched.since = None if watched.since is None else min(watched.since + gap, now)
            for actor_id, watched in list(self._watched.items()):
                reason = watched.hang_reason(now, self._supervision)
                # A report may wait to be taken in, as after a pause of this process for a checkpoint on a slow disk.
                if reason is not None and not self._executor.has_completed(actor_id):
                    lost = self._executor.has_lost_node(actor_id)
                    yield self.on_failure(Failed(actor_id, "its node does not respond" if lost else reason, lost))
            yield from self._follow_cluster()
        # A replacement of an actor that was just found to hang may be due at once.
        yield from self._replace_due(self._clock())

    @property
    def _dies_too_often(self) -> bool:
        return len(self._deaths) > self._supervision.max_restarts

    def _count_death(self, failed: Failed) -> None:
        """Count a death against the limit, past which a run that is not stopping fails."""
        self._deaths.append(self._clock())
        # All count while the run stops: it would wait for a sum for ever.
        while self._works and not self.stopping and self._deaths[0] < self._deaths[-1] - _RESTART_WINDOW_SECONDS:
            self._deaths.popleft()
        if self._dies_too_often and not self.stopping:
            when = f"within {_RESTART_WINDOW_SECONDS:.0f} s" if self._works else "before any report"
            limit = f"--supervision.max-restarts {self._supervision.max_restarts}"
            raise TrainingFailedError(f"more than {limit} actors died {when}; the last: {failed}")

    def _follow_cluster(self) -> Iterator[Joined]:
        """Start actors in free slots."""
        if self.stopping:
            return
        # Some free slots belong to replacements that wait.
        for _ in range(self._executor.free_slots() - len(self._due)):
            actor_id = self._add()
            if actor_id is None:
                return
            yield Joined(actor_id)

    def _replace_due(self, now: float) -> Iterator[Replaced]:
        if self.stopping:
            # A run that stops waits for calls in flight only.
            self._due = []
        for due in [due for due in self._due if due[0] <= now]:
            replacement_id = self._add()
            if replacement_id is None:
                if self._executor.free_slots() <= 0:
                    # The slot went to another actor, or is gone with its node: no actor is missing.
                    self._due.remove(due)
                break
            self._due.remove(due)
            self._unproven.add(replacement_id)
            self.actor_restarts += 1
            yield Replaced(due[1], replacement_id)

    def _add(self) -> int | None:
        """Start one more actor and dispatch its first call. None if no slot is free."""
        actor_id = self._executor.add()
        if actor_id is not None:
            self.dispatch(actor_id)
        return actor_id


@dataclass
class _Watched:
    """The time at which an actor's call began, None without one, and the seconds of its first and its last rollouts.

    Those of the first one are by its own account: without the start of its process, and its imports.
    `evaluates`: the last call is of an evaluation. `unfinished`: the next report has agent steps that are in no
    gradient yet.
    """

    since: float | None = None
    evaluates: bool = False
    unfinished: bool = False
    first: float | None = None
    last: deque[float] = field(default_factory=lambda: deque(maxlen=_LAST_ROLLOUTS))

    def hang_reason(self, now: float, config: SupervisionConfig) -> str | None:
        """The reason if the actor is silent for too long."""
        history, setting, limit = "and none before", "start-seconds", config.start_seconds
        shorter = ", or make them shorter by --actor.unroll-length or --actor.total-environments"
        if self.first is not None:
            longest = max(self.last, default=0.0)
            history = f"and its longest rollout took {max(longest, self.first):.1f} s"
            limit = max(config.hang_seconds, _HANG_FACTOR * longest, _FIRST_FACTOR * self.first)
            if self.evaluates:
                # For its share of an evaluation an actor makes environments, as at its start.
                limit = max(limit, config.start_seconds)
            else:
                setting, shorter = "hang-seconds", ""
        if self.since is None or now - self.since <= limit:
            return None
        return (
            f"no report for {now - self.since:.0f} s, {history}: the actor hangs; if calls take this long, raise "
            f"--supervision.{setting}{shorter}"
        )


def worked_seconds(report: GradientReport | AggregatedReport) -> float:
    """Seconds of environment, acting and gradient in a report; of a sum, the seconds of its busiest actor."""
    seconds = defaultdict[int, float](float)
    for part in report.reports if isinstance(report, AggregatedReport) else (report,):
        stages = part.stage_seconds
        seconds[part.actor_id] += stages.environment + stages.acting + stages.gradient
    return max(seconds.values(), default=0.0)
