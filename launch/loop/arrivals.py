"""What changed a run from outside, as a text file: with it, an asynchronous run can be repeated step by step.

The first line names the actors that the run began with, `actors 0 1 2`. Each line after it is one arrival, in the
order in which the run took them in: `report 0`, the call of an actor that has reported; `lost 0`, an actor that failed;
`lost-with-node 0`, one that went with its node; `joined 3`, an actor that was started, as a replacement or where there
was room; `evaluation`; `lost-evaluator`. Files of older versions have no `joined`: there each `lost` has a replacement
at once.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from shared.errors import setting_error


class Arrival(NamedTuple):
    """One line: what arrived, and of which actor. `actor_id` is None for what concerns the evaluator."""

    kind: Literal["report", "lost", "lost-with-node", "joined", "evaluation", "lost-evaluator"]
    actor_id: int | None = None

    def __str__(self) -> str:
        """Its line in a file."""
        return self.kind if self.actor_id is None else f"{self.kind} {self.actor_id}"


class ArrivalsWriter:
    """Writes each line as it comes.

    Args:
        file: is overwritten.
        actor_ids: of the actors that the run begins with.
    """

    def __init__(self, file: Path, actor_ids: Sequence[int]) -> None:
        self._file = file.open("w", buffering=1)
        self._file.write(f"actors {' '.join(map(str, actor_ids))}\n")

    def add(self, arrival: Arrival) -> None:
        """Write one down."""
        self._file.write(f"{arrival}\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Arrivals:
    """A file of arrivals, read whole and checked. `line(2)` is the first arrival.

    Raises:
        ConfigurationError: it cannot be read, or is not such a file.
    """

    def __init__(self, file: str) -> None:
        try:
            head, *lines = Path(file).read_text().splitlines() or [""]
        except (OSError, UnicodeDecodeError) as error:
            raise setting_error("replay_arrivals", file, f"cannot be read: {error}") from error
        word, *ids = head.split() or [""]
        if word != "actors" or not ids or not all(i.isdecimal() for i in ids):
            raise setting_error("replay_arrivals", file, "does not begin with its actors; record it by a run")
        self.actor_ids = list(map(int, ids))
        self.all = [_parse(file, number, line) for number, line in enumerate(lines, start=2)]


class RecordedOrder:
    """Goes through the arrivals of a file, one after the other.

    Args:
        file: as the setting names it.
    """

    def __init__(self, file: str) -> None:
        self._arrivals = Arrivals(file).all
        self._position = 0
        self._joins_left = sum(arrival.kind == "joined" for arrival in self._arrivals)
        self._tells_joins = bool(self._joins_left)

    @property
    def line(self) -> int:
        """The number of the line that is next."""
        # The first line names the actors.
        return self._position + 2

    @property
    def next(self) -> Arrival | None:
        """The arrival that is next; None at the end."""
        return self._arrivals[self._position] if self._position < len(self._arrivals) else None

    def advance(self) -> None:
        """Go to the line after that."""
        self._position += 1

    @property
    def joins_left(self) -> int:
        """How many actors have yet to be started."""
        return self._joins_left

    def take_join(self) -> bool:
        """Whether an actor is to be started now. If the next line says so, it is taken."""
        if self.next is not None and self.next.kind == "joined":
            self._joins_left -= 1
            self.advance()
            return True
        return not self._tells_joins


def _parse(file: str, number: int, line: str) -> Arrival:
    match line.split():
        case ["evaluation" | "lost-evaluator" as kind]:
            return Arrival(kind)
        case ["report" | "lost" | "lost-with-node" | "joined" as kind, actor_id] if actor_id.isdecimal():
            return Arrival(kind, int(actor_id))
    raise setting_error("replay_arrivals", file, f"line {number} is {line!r}: not an arrival")
