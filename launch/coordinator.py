"""The asynchronous loop: whoever has reported is sent on its way again at once. No ray in it, and no barrier."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from learner.learner import Learner, Outcome
from shared.types import EvaluationResult, GradientReport, WeightSnapshot


class Failed(NamedTuple):
    """An actor died, or its rollout raised. `reason` is one line."""

    actor_id: int
    reason: str


class Replaced(NamedTuple):
    """A failed actor was replaced by a new one with a new id."""

    failed: Failed
    replacement_id: int


Completion = GradientReport | EvaluationResult | Failed
Event = Outcome | EvaluationResult | Replaced


class ActorsLostError(Exception):
    """More actors died than the run may replace."""


class Executor(Protocol):
    """Where rollouts run. A call that is dispatched is completed exactly once, by a report or a failure.

    The order of calls is the contract: `publish` makes a snapshot the one that later dispatches carry, and
    `publish_target` one for the target network, where the method has one; `dispatch` asks an actor for one rollout;
    `evaluate` asks for one evaluation; `next_completion` waits for whichever call ends first, and returns None if none
    does within a moment; `replace` puts a new actor in a dead one's place.
    """

    @property
    def actor_ids(self) -> Sequence[int]: ...
    @property
    def calls_in_flight(self) -> int: ...
    def publish(self, snapshot: WeightSnapshot) -> None: ...
    def publish_target(self, snapshot: WeightSnapshot) -> None: ...
    def dispatch(self, actor_id: int) -> None: ...
    def evaluate(self) -> None: ...
    def next_completion(self) -> Completion | None: ...
    def replace(self, actor_id: int) -> int: ...
    def close(self) -> None: ...


class Coordinator:
    """Moves reports into the learner and weights out of it.

    `run` is a generator, so that logging, checkpoints and stopping stay outside: it yields each event after the
    learner has taken it and the actor is under way again. After `stop`, what is in flight is still taken in.

    Args:
        learner: takes the reports.
        executor: runs the rollouts.
        calls_per_actor: rollouts asked of one actor at a time.
        max_restarts: actors that may be replaced before `run` raises ActorsLostError.
    """

    def __init__(self, learner: Learner, executor: Executor, *, calls_per_actor: int, max_restarts: int) -> None:
        self._learner = learner
        self._executor = executor
        self._calls_per_actor = calls_per_actor
        self._max_restarts = max_restarts
        self._published_version: int | None = None
        self._published_target_version: int | None = None
        self._stopping = False
        self._evaluating = False
        self.actor_restarts = 0

    @property
    def evaluating(self) -> bool:
        """Whether an evaluation is under way."""
        return self._evaluating

    def stop(self) -> None:
        """Ask for no further rollouts; `run` ends when what is in flight has been taken in."""
        self._stopping = True

    def evaluate(self) -> None:
        """Have the current weights evaluated; `run` yields the result."""
        self._publish()
        self._evaluating = True
        self._executor.evaluate()

    def run(self) -> Iterator[Event | None]:
        """Yield an event for every completed call, and None now and then while nothing completes.

        Raises:
            ActorsLostError: more than `max_restarts` actors died.
        """
        for _ in range(self._calls_per_actor):
            for actor_id in self._executor.actor_ids:
                self._dispatch(actor_id)
        while self._executor.calls_in_flight:
            completion = self._executor.next_completion()
            if isinstance(completion, GradientReport):
                outcome = self._learner.submit(completion)
                self._dispatch(completion.actor_id)
                yield outcome
            elif isinstance(completion, EvaluationResult):
                self._evaluating = False
                yield completion
            elif isinstance(completion, Failed):
                yield self._replace(completion)
            else:
                yield None

    def _dispatch(self, actor_id: int) -> None:
        if self._stopping:
            return
        self._publish()
        self._executor.dispatch(actor_id)

    def _publish(self) -> None:
        if self._published_version != self._learner.version:
            self._executor.publish(self._learner.snapshot())
            self._published_version = self._learner.version
        target = self._learner.target_snapshot()
        if target is not None and target.version != self._published_target_version:
            self._executor.publish_target(target)
            self._published_target_version = target.version

    def _replace(self, failed: Failed) -> Replaced:
        self.actor_restarts += 1
        if self.actor_restarts > self._max_restarts:
            raise ActorsLostError(
                f"{self.actor_restarts} actors died, more than --actor.max-restarts {self._max_restarts}; "
                f"the last: {failed.reason}"
            )
        replacement_id = self._executor.replace(failed.actor_id)
        for _ in range(self._calls_per_actor):
            self._dispatch(replacement_id)
        return Replaced(failed, replacement_id)
