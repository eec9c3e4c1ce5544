"""What the coordinator asks of whatever runs the actors, be it processes or one loop. No TensorFlow in it."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from shared.types import AggregatedReport, EvaluationPolicy, EvaluationResult, GradientReport, WeightSnapshot


class Failed(NamedTuple):
    """An actor died or hangs, or its rollout raised; `actor_id` is None for the evaluator. `reason` is one line.

    `node_lost`: it went with its node, which says nothing about the actor. `not_made`: its process lives, and could
    not make the actor. `raised`: its process lives, and its rollout raised an error.
    """

    actor_id: int | None
    reason: str
    node_lost: bool = False
    not_made: bool = False
    raised: bool = False


class Replaced(NamedTuple):
    """A failed actor was replaced by a new one with a new id. A new evaluator has none: `replacement_id` is None."""

    failed: Failed
    replacement_id: int | None


class Joined(NamedTuple):
    """An actor was started where there was room for one more."""

    actor_id: int


class Drained(NamedTuple):
    """An actor on a draining node has made its last report and was ended."""

    actor_id: int


Change = Failed | Replaced | Joined | Drained


class ChildEvent(NamedTuple):
    """Something changed among several actors that share the id `actor_id`; the others go on.

    `rollouts_lost` is how many were lost by it, at most.
    """

    actor_id: int
    change: Change
    rollouts_lost: int = 0


class Heartbeat(NamedTuple):
    """A sign of life from who adds for several actors that share the id `actor_id`: no sum is whole yet.

    `expects_one`: actors are at work on it. Else there is none now, so that it may take any time.
    """

    actor_id: int
    expects_one: bool


Completion = GradientReport | AggregatedReport | EvaluationResult | Failed | ChildEvent | Heartbeat


class Executor(Protocol):
    """Where rollouts run. Its user keeps to this order, and it keeps the promises of each method.

    `publish` comes before the first `dispatch`, which asks an actor for one rollout, and `next_completion` says how
    the rollout ended. Each call that was dispatched is completed exactly once: by a report, a failure, a change
    within, or a sign of life. The calls of one actor are completed in the order of their dispatch. Nothing is
    retried behind the user's back, as a retried rollout would be counted twice. After `close` only `state` may be
    asked for.

    Usually an actor id stands for one actor. Where gradients are added on their way to the learner, it stands for all
    actors of a node or of several nodes: the executor then completes a call by an `AggregatedReport`, a
    `ChildEvent` or an `Heartbeat`.
    """

    @property
    def actor_ids(self) -> Sequence[int]:
        """Those that can be dispatched to, in the order in which they were started."""
        ...

    @property
    def actors(self) -> int:
        """How many actors play. More than there are ids, where an id stands for several."""
        ...

    @property
    def calls_in_flight(self) -> int:
        """Rollouts and evaluations that were asked for and not completed yet."""
        ...

    def publish(self, snapshot: WeightSnapshot) -> None:
        """Have later dispatches carry this snapshot. Those under way keep the one that they left with."""
        ...

    def publish_target(self, snapshot: WeightSnapshot) -> None:
        """Have later dispatches carry these weights of the target network. Only for methods that have one."""
        ...

    def dispatch(self, actor_id: int) -> None:
        """Ask an actor for one rollout. Returns at once; an actor works on its calls one after the other."""
        ...

    def evaluate(self, snapshot: WeightSnapshot, policy: EvaluationPolicy) -> None:
        """Ask for one evaluation of these weights, whichever are published. Returns at once.

        The evaluator is started when it is first needed.
        """
        ...

    def drop_evaluations(self) -> None:
        """Forget the evaluations under way: they are not completed any more."""
        ...

    def next_completion(self) -> Completion | None:
        """Wait for the call that ends next, whosever it is. None if none does within a moment."""
        ...

    def has_completed(self, actor_id: int) -> bool:
        """Whether the oldest call of this actor, which has one, has ended and only waits for `next_completion`."""
        ...

    def rollouts_under_way(self, actor_id: int) -> int:
        """How many rollouts are lost if this actor ends now, at most. A rollout has up to T x B agent steps.

        A call that has just been completed by a failure counts. Where the id stands for several actors, some may be
        under way though no call is.
        """
        ...

    def remove(self, actor_id: int) -> None:
        """End an actor, dead or not, and forget its calls: they are not completed any more."""
        ...

    def add(self) -> int | None:
        """Start one more actor, under an id that was never used. None if there is no place for it."""
        ...

    def free_slots(self) -> int:
        """How many more actors the run wants and has places for. Negative if it has more than it wants."""
        ...

    def draining(self) -> Sequence[int]:
        """Actors on draining nodes: they still play, and will be killed soon. Ask them for nothing more."""
        ...

    def replace_evaluator(self) -> None:
        """End the evaluator, dead or not, and forget its calls. The next `evaluate` starts another one."""
        ...

    def state(self) -> dict[str, Any] | None:
        """State for a bit-exact resume, as values that JSON can hold: the actors, and the calls under way.

        None if there is no such state: processes have no fixed order.
        """
        ...

    def restore(self, state: dict[str, Any]) -> Sequence[int]:
        """The inverse of `state`, for an executor with actors of the same ids and no call under way.

        Returns the actor's id of each rollout that is under way again, oldest first.
        """
        ...

    def close(self) -> None:
        """End all actors and the evaluator, and free what they shared."""
        ...
