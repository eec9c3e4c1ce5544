"""Writes the order in which a run's calls end to a file, while the run goes on."""

from collections.abc import Callable, Sequence
from pathlib import Path

from launch.loop.arrivals import Arrival, ArrivalsWriter
from launch.loop.coordinator import Event
from launch.loop.executor import Failed
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
        self._writer: ArrivalsWriter | None = ArrivalsWriter(Path(file), actor_ids)

    def add(self, event: Event | None) -> None:
        """Write down whose call ended with this event, if one did."""
        ended = arrival(event)
        if self._writer is None or ended is None:
            return
        try:
            self._writer.add(ended)
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


def arrival(event: Event | None) -> Arrival | None:
    """Whose call ended with this event; None if no call did."""
    if isinstance(event, Outcome):
        return Arrival(event.report.actor_id)
    if isinstance(event, Failed):
        return Arrival(event.actor_id, lost=True)
    return Arrival(None) if isinstance(event, EvaluationResult) else None
