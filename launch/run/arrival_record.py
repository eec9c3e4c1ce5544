"""Writes to a file what arrives from outside, while a run goes on: reports, evaluations, who fails and who joins."""

from collections.abc import Callable, Sequence
from pathlib import Path

from launch.loop.coordinator import Event
from launch.loop.executor import Drained, Failed, Joined, Replaced
from launch.loop.trace import TraceEvent, TraceWriter
from learner.learner import Outcome
from shared.types import EvaluationResult


class ArrivalRecord:
    """The file that --record-arrivals names. One that can be written no more is a warning, and training goes on.

    Args:
        file: as the setting names it.
        actor_ids: of the actors that the run begins with.
        say: takes a message.
    """

    def __init__(self, file: str, actor_ids: Sequence[int], say: Callable[[str], None]) -> None:
        self._file = file
        self._say = say
        self._writer: TraceWriter | None = TraceWriter(Path(file), actor_ids)

    def add(self, event: Event | None) -> None:
        """Write down what arrived with this event, if anything did."""
        arrived = arrival(event)
        if self._writer is None or arrived is None:
            return
        try:
            self._writer.add(arrived)
        except OSError as error:
            # With a gap in it, the order could not be repeated beyond the gap.
            self._writer = None
            self._say(
                f"warning: {self._file} could not be written: {error.strerror}; the order is kept up to here, and "
                f"training goes on"
            )

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


def arrival(event: Event | None) -> TraceEvent | None:
    """What arrived with this event; None if nothing did."""
    match event:
        case Outcome():
            return TraceEvent("report", event.report.actor_id)
        case EvaluationResult():
            return TraceEvent("evaluation")
        case Failed():
            return TraceEvent("lost-with-node" if event.node_lost else "lost", event.actor_id)
        case Replaced(replacement_id=None):
            return TraceEvent("lost-evaluator")
        case Replaced(replacement_id=actor_id):
            return TraceEvent("replacement", actor_id)
        case Joined(actor_id):
            return TraceEvent("joined", actor_id)
        case Drained(actor_id):
            return TraceEvent("released", actor_id)
    return None
