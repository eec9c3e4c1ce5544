"""What changed a run from outside, as a text file: with it, an asynchronous run can be repeated step by step.

The first line is `version 2`, the second names the actors that the run began with, `actors 0 1 2`. Each line after them
is one arrival, in the order in which the run took them in:

- `report 0`: the call of an actor that has reported.
- `lost 0`, `lost-with-node 0`: an actor failed, or went with its node.
- `replacement 3`, `joined 3`: an actor was started, in the place of one that failed, or where there was room.
- `released 0`: an actor on a draining node has made its last report.
- `evaluation`, `lost-evaluator`.

Files without the first line, of older versions and of the lag study, have no `replacement`: each `lost` has one at
once.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from shared.errors import setting_error

_VERSION = "version 2"
_Kind = Literal["report", "lost", "lost-with-node", "replacement", "joined", "released", "evaluation", "lost-evaluator"]


class TraceEvent(NamedTuple):
    """One line: what arrived, and of which actor. `actor_id` is None for what concerns the evaluator."""

    kind: _Kind
    actor_id: int | None = None

    def __str__(self) -> str:
        """Its line in a file."""
        return self.kind if self.actor_id is None else f"{self.kind} {self.actor_id}"


class TraceWriter:
    """Writes each line as it comes.

    Args:
        file: is overwritten.
        actor_ids: of the actors that the run begins with.
        reports_only: nobody fails or joins. The file is then that of an older version, to the byte.
    """

    def __init__(self, file: Path, actor_ids: Sequence[int], *, reports_only: bool = False) -> None:
        self._file = file.open("w", buffering=1)
        if not reports_only:
            self._file.write(f"{_VERSION}\n")
        self._file.write(f"actors {' '.join(map(str, actor_ids))}\n")

    def add(self, arrival: TraceEvent) -> None:
        """Write one down."""
        self._file.write(f"{arrival}\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class EventTrace:
    """A file of arrivals, read whole and checked.

    Attributes:
        actor_ids: that the run began with.
        all: the arrivals.
        first_line: the number of the first one's line.
        has_replacements: whether it is of this version.

    Raises:
        ConfigurationError: it cannot be read, or is not such a file.
    """

    def __init__(self, file: str) -> None:
        try:
            lines = Path(file).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise setting_error("replay_arrivals", file, f"cannot be read: {error}") from error
        self.has_replacements = lines[:1] == [_VERSION]
        if self.has_replacements:
            del lines[0]
        word, *ids = lines[0].split() if lines else [""]
        if word != "actors" or not ids or not all(i.isdecimal() for i in ids):
            raise setting_error("replay_arrivals", file, "does not begin with its actors; record it by a run")
        self.actor_ids = list(map(int, ids))
        self.first_line = 3 if self.has_replacements else 2
        self.all = [_parse(file, number, line) for number, line in enumerate(lines[1:], self.first_line)]


class TraceReader:
    """Goes through the arrivals of a file, one after the other, and says what they mean for who plays.

    Args:
        file: as the setting names it.

    Attributes:
        reports_before_release: of each actor that will be released, how many reports it has yet to make.
    """

    def __init__(self, file: str) -> None:
        self._record = EventTrace(file)
        self._position = 0
        self._replacements_missing = 0
        released = {arrival.actor_id for arrival in self._record.all if arrival.kind == "released"}
        self.reports_before_release = Counter({actor_id: 0 for actor_id in released if actor_id is not None})
        self.reports_before_release.update(
            arrival.actor_id
            for arrival in self._record.all
            if arrival.kind == "report" and arrival.actor_id is not None and arrival.actor_id in released
        )

    @property
    def has_replacements(self) -> bool:
        """See `EventTrace.has_replacements`."""
        return self._record.has_replacements

    @property
    def line(self) -> int:
        """The number of the line that is next."""
        return self._record.first_line + self._position

    @property
    def next(self) -> TraceEvent | None:
        """The arrival that is next; None at the end."""
        return self._record.all[self._position] if self._position < len(self._record.all) else None

    @property
    def free_slots(self) -> int:
        """How many actors wait for their replacement, or join now; see `Executor.free_slots`."""
        if self.next is None or not self.has_replacements:
            return 0
        return self._replacements_missing + (self.next.kind == "joined")

    def advance(self) -> None:
        """Go to the line after that."""
        match self.next:
            case TraceEvent("report", int(actor_id)) if actor_id in self.reports_before_release:
                self.reports_before_release[actor_id] -= 1
            case TraceEvent("released", int(actor_id)):
                del self.reports_before_release[actor_id]
            case TraceEvent("lost"):
                self._replacements_missing += 1
            case TraceEvent("replacement"):
                self._replacements_missing -= 1
        self._position += 1


def _parse(file: str, number: int, line: str) -> TraceEvent:
    match line.split():
        case ["evaluation" | "lost-evaluator" as kind]:
            return TraceEvent(kind)
        case ["report" | "lost" | "lost-with-node" | "replacement" | "joined" | "released" as kind, actor_id] if (
            actor_id.isdecimal()
        ):
            return TraceEvent(kind, int(actor_id))
    raise setting_error("replay_arrivals", file, f"line {number} is {line!r}: not an arrival")
