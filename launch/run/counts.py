"""What is counted over all the processes of one run: a resumed run goes on counting where it stopped."""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class RunCounts:
    """Sums over the processes of a run. The names are keys of a checkpoint.

    Attributes:
        elapsed_seconds: of training.
        messages: control messages that the learner received: one for each report, or for each sum of several.
        actor_restarts: actors that were replaced.
        rollouts_lost: with the actors that were making them.
        learner_restarts: learner processes that died, and were followed by another one.
        agent_steps_lost: taken in by learners that died, after their last checkpoint.
    """

    elapsed_seconds: float = 0.0
    messages: int = 0
    actor_restarts: int = 0
    rollouts_lost: int = 0
    learner_restarts: int = 0
    agent_steps_lost: int = 0

    def __add__(self, other: "RunCounts") -> "RunCounts":
        """The counts of both."""
        others = asdict(other)
        return RunCounts(**{name: count + others[name] for name, count in asdict(self).items()})

    def state(self) -> dict[str, Any]:
        """As plain values, for a checkpoint."""
        return asdict(self)

    @classmethod
    def restored(cls, state: dict[str, Any]) -> "RunCounts":
        """The counts in a checkpoint, whose `state` holds other things too."""
        # Checkpoints of older versions do not have the messages.
        return cls(**{name: state[name] for name in asdict(cls()) if name != "messages" or name in state})


class LearnerDeath(NamedTuple):
    """The learner's process died, and the run goes on in another one.

    `agent_steps_seen` is how far the dead one was known to have come; `reason` is one line.
    """

    reason: str
    agent_steps_seen: int
