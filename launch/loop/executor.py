"""What the coordinator asks of whatever runs the actors, be it processes or one loop. No TensorFlow in it."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from shared.types import AggregatedReport, EvaluationPolicy, EvaluationResult, GradientReport, WeightSnapshot


class Failed(NamedTuple):
    """An actor died or hangs, or its rollout raised; actor_id None: the evaluator. `reason` is one line.

    `node_lost`: it went with its node, which says nothing about the actor. `not_made`: its process lives, and could not
    make what plays there.
    """

    actor_id: int | None
    reason: str
    node_lost: bool = False
    not_made: bool = False


class Replaced(NamedTuple):
    """A failed actor was replaced by a new one with a new id, which the evaluator does not have."""

    failed: Failed
    replacement_id: int | None


class ChangedWithin(NamedTuple):
    """Of those that the actor id stands for, one was lost, or replaced, and the others go on."""

    actor_id: int
    change: Failed | Replaced


Completion = GradientReport | AggregatedReport | EvaluationResult | Failed | ChangedWithin


class Executor(Protocol):
    """Where rollouts run. A call that is dispatched is completed exactly once, by a report, a failure, or a
    change within.

    `actors` is how many play: what has an actor id here may stand for several. `rollouts_under_way` is how many
    rollouts, of at most T x B agent steps each, are lost if an actor dies now; if it stands for several, how many at
    most.

    The order of calls is the contract: `publish` makes a snapshot the one that later dispatches carry, and
    `publish_target` one for the target network, where the method has one; `dispatch` asks an actor for one rollout;
    `evaluate` asks for one evaluation of the weights it is given, whichever were published, of an evaluator that is
    started when it is first needed; `next_completion` waits for whichever call ends first, and returns None if none
    does within a moment; `has_completed` says whether the oldest call of an actor has ended already; `remove` ends an
    actor, dead or not, and forgets its calls; `add` starts a new one, None if there is no place for it, and
    `replace_evaluator` a new evaluator, with nothing under way. `room` says how many actors more the run wants and has
    places for, and `leaving` whose places are about to go.
    """

    @property
    def actor_ids(self) -> Sequence[int]: ...
    @property
    def calls_in_flight(self) -> int: ...
    @property
    def actors(self) -> int: ...
    def publish(self, snapshot: WeightSnapshot) -> None: ...
    def publish_target(self, snapshot: WeightSnapshot) -> None: ...
    def dispatch(self, actor_id: int) -> None: ...
    def evaluate(self, snapshot: WeightSnapshot, policy: EvaluationPolicy) -> None: ...
    def next_completion(self) -> Completion | None: ...
    def has_completed(self, actor_id: int) -> bool: ...
    def rollouts_under_way(self, actor_id: int) -> int: ...
    def remove(self, actor_id: int) -> None: ...
    def add(self) -> int | None: ...
    def room(self) -> int: ...
    def leaving(self) -> Sequence[int]: ...
    def replace_evaluator(self) -> None: ...
    def close(self) -> None: ...
