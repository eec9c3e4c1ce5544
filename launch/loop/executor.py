"""The interface between the asynchronous loop and the executor of the actors' calls, and its events. No TensorFlow."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shared.types import AggregatedReport, EvaluationPart, EvaluationShare, GradientReport, Heartbeat, WeightSnapshot

# Rollouts in a row that may be not finite: one may come from a single bad environment step, a series does not end.
MAX_NON_FINITE_IN_A_ROW = 20
NO_GRADIENT = np.empty(0, np.float32)
"""In place of the gradient in a report whose gradient travels by other means."""


class Failed(NamedTuple):
    """An actor died or hangs, or its call raised. `reason` is one line.

    Attributes:
        node_lost: the actor's node was lost, which is no evidence against the actor itself.
        raised: the process lives; its actor could not be made, or its rollout raised an error.
    """

    actor_id: int
    reason: str
    node_lost: bool = False
    raised: bool = False

    def __str__(self) -> str:
        return f"actor {self.actor_id}: {self.reason}"


class Replaced(NamedTuple):
    """A new actor with a new id took the place of a failed one."""

    failed: Failed
    replacement_id: int

    def __str__(self) -> str:
        return f"actor {self.replacement_id} replaces actor {self.failed.actor_id}"


class Joined(NamedTuple):
    """An actor was started in a free slot."""

    actor_id: int

    def __str__(self) -> str:
        return f"actor {self.actor_id} joins"


Change = Failed | Replaced | Joined


class ChildEvent(NamedTuple):
    """A change among the actors behind the id of a node's aggregator; its other actors go on.

    `rollouts_lost` is an upper bound. `evaluation`: the number of the one in which a failed actor had a share.
    """

    actor_id: int
    change: Change
    rollouts_lost: int = 0
    evaluation: int | None = None


CallResult = GradientReport | AggregatedReport | EvaluationPart | ChildEvent | Heartbeat
"""The result of a call: a report, a part of an evaluation, a change behind an aggregator, or neither."""
Completion = CallResult | Failed


class Executor(ABC):
    """Runs the calls of actors: rollouts, gradients, and shares of evaluations. Keeps the weights published last.

    `publish` precedes the first `dispatch`. An actor has at most one call, which is completed exactly once by
    `next_completion`. An executor never retries a call: a rollout that ran twice would be counted twice.

    An actor id usually stands for one actor. Where gradients are summed on their node, it stands for the node's
    aggregator and all actors there; its calls are completed by an `AggregatedReport`, `ChildEvent` or `Heartbeat`.
    """

    aggregates = False
    """True if ids stand for aggregators."""
    _weights: WeightSnapshot | None = None
    _target: WeightSnapshot | None = None
    _evaluation_weights: WeightSnapshot | None = None

    def publish(self, snapshot: WeightSnapshot) -> None:
        """Set the weights of later dispatches. Calls in flight keep theirs."""
        self._weights = snapshot

    def publish_target(self, snapshot: WeightSnapshot) -> None:
        """The same for the target network, of methods that have one."""
        self._target = snapshot

    def publish_evaluation_weights(self, snapshot: WeightSnapshot) -> None:
        """Set the weights of an evaluation, for its later shares. They may be older than those of `publish`."""
        self._evaluation_weights = snapshot

    @property
    @abstractmethod
    def actor_ids(self) -> Sequence[int]:
        """Ids that accept a dispatch, in the order in which they were started."""

    @property
    def actors(self) -> int:
        """Number of actors: more than ids where an id stands for several."""
        return sum(map(self.actors_of, self.actor_ids))

    def actors_of(self, actor_id: int) -> int:  # noqa: ARG002
        """Number of actors that an id stands for."""
        return 1

    @property
    @abstractmethod
    def calls_in_flight(self) -> int:
        """Calls that were dispatched and not completed yet."""

    @abstractmethod
    def dispatch(self, actor_id: int, share: EvaluationShare | None = None) -> None:
        """Start the actor's next call (`NextCall`), or one call of its share of an evaluation. Does not block."""

    @abstractmethod
    def next_completion(self) -> Completion | None:
        """Wait for the next call to end. None if none does within a moment."""

    @abstractmethod
    def has_completed(self, actor_id: int) -> bool:
        """True if the call of this actor has ended and waits for `next_completion`."""

    def has_lost_node(self, actor_id: int) -> bool:  # noqa: ARG002
        """True if the node of this actor does not respond any more."""
        return False

    @abstractmethod
    def rollouts_under_way(self, actor_id: int) -> int:
        """Upper bound of the rollouts lost if this actor ends now, with a call that has just failed.

        An aggregator may have rollouts under way without a call in flight.
        """

    @abstractmethod
    def remove(self, actor_id: int) -> None:
        """End an actor, dead or alive, and forget its call."""

    @abstractmethod
    def add(self) -> int | None:
        """Start one more actor under a fresh id. None if no slot is free."""

    def free_slots(self) -> int:
        """Number of actors that the run may add and the nodes have room for. Negative if there are too many."""
        return 0

    @abstractmethod
    def close(self) -> None:
        """End all actors, and free their shared resources."""
