"""When an actor counts as hung, when its replacement starts, and when a run has lost too many. No clock in it."""

from collections import deque
from collections.abc import Callable

from shared.config import SupervisionConfig

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

    def at_work(self, actor_id: int, now: float) -> None:
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
