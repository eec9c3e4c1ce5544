"""The order in which a run's calls ended, as a text file: with it, an asynchronous run can be repeated step by step.

The first line names the actors that the run began with, `actors 0 1 2`; each line after it is `report ACTOR`,
`lost ACTOR` or `evaluation`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from shared.errors import setting_error


class Arrival(NamedTuple):
    """One call ended. `actor_id` is None for an evaluation; `lost` is True when the actor failed."""

    actor_id: int | None
    lost: bool = False

    def __str__(self) -> str:
        """Its line in a file."""
        kind = "lost" if self.lost else "report"
        return "evaluation" if self.actor_id is None else f"{kind} {self.actor_id}"


class ArrivalsWriter:
    """Writes each line as its call ends.

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
    """A file of arrivals, read whole and checked.

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
        self._arrivals = {number: _parse(file, number, line) for number, line in enumerate(lines, start=2)}

    def __iter__(self) -> Iterator[tuple[int, Arrival]]:
        """The number of each line, and what it says."""
        return iter(self._arrivals.items())


def _parse(file: str, number: int, line: str) -> Arrival:
    match line.split():
        case ["evaluation"]:
            return Arrival(None)
        case ["report" | "lost" as kind, actor_id] if actor_id.isdecimal():
            return Arrival(int(actor_id), lost=kind == "lost")
    raise setting_error("replay_arrivals", file, f"line {number} is {line!r}: not a report, a loss or an evaluation")
