"""The event trace of an asynchronous run: a text file from which the run can be replayed step by step.

The first line is `version 3`, the second has the ids of the first actors, `actors 0 1 2`. Each further line is an event
from outside of the learner, in the order in which the run took them in:

- `report 0`: an actor's call ended in a report.
- `played 0`: it ended without one, after a rollout that its next calls differentiate.
- `played-ahead 0`: the same, after a rollout that is in no gradient.
- `lost 0`, `lost-with-node 0`: an actor failed, or was lost with its node.
- `replacement 3`, `joined 3`: an actor was started in place of a failed one, or in a free slot.
- `released 0`: an actor on a draining node made its last report and was ended.
- `evaluation 0`: an actor's call ended in a part of an evaluation.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, cast, get_args

from launch.loop.executor import Drained, Failed, Joined, Replaced
from shared.errors import setting_error
from shared.types import EvaluationPart, GradientReport, Heartbeat

# Text, so that a trace can be read and shortened by hand when a fault is looked for.
_VERSION = "version 3"
# Number of the line with the first event.
_FIRST_LINE = 3
_Kind = Literal[
    "report", "played", "played-ahead", "evaluation", "lost", "lost-with-node", "replacement", "joined", "released"
]
# After these a draining actor gets no further dispatch.
_ENDING = ("report", "played-ahead", "evaluation")


class TraceEvent(NamedTuple):
    """One line of a trace."""

    kind: _Kind
    actor_id: int

    def __str__(self) -> str:
        return f"{self.kind} {self.actor_id}"


def trace_event(event: object) -> TraceEvent | None:
    """The line for the end of a call, or for a change among the actors; None for other events."""
    match event:
        case GradientReport():
            return TraceEvent("report", event.actor_id)
        case Heartbeat():
            return TraceEvent("played" if event.expects_report else "played-ahead", event.actor_id)
        case EvaluationPart():
            return TraceEvent("evaluation", event.actor_id)
        case Failed():
            return TraceEvent("lost-with-node" if event.node_lost else "lost", event.actor_id)
        case Replaced():
            return TraceEvent("replacement", event.replacement_id)
        case Joined():
            return TraceEvent("joined", event.actor_id)
        case Drained():
            return TraceEvent("released", event.actor_id)
    return None


class TraceWriter:
    """Writes events to `file`, which is overwritten, a line at a time.

    `actor_ids`: of the first actors.
    """

    def __init__(self, file: Path, actor_ids: Sequence[int]) -> None:
        # Line by line: a run that is killed leaves a trace up to its end.
        self._file = file.open("w", buffering=1, encoding="utf-8")
        self._file.write(f"{_VERSION}\nactors {' '.join(map(str, actor_ids))}\n")

    def add(self, event: TraceEvent) -> None:
        self._file.write(f"{event}\n")

    def close(self) -> None:
        self._file.close()


class TraceReader:
    """A position in a trace, and the state of the actors after the events up to it.

    Attributes:
        actor_ids: ids of the first actors.
        calls_before_drained: calls that each actor which will be drained has yet to end, by its id.

    Raises:
        ConfigurationError: the file cannot be read, or is not a trace.
    """

    def __init__(self, file: str) -> None:
        try:
            lines = Path(file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise setting_error("replay_arrivals", file, f"cannot be read: {error}") from error
        word, *ids = lines[1].split() if lines[:1] == [_VERSION] and len(lines) > 1 else [""]
        if word != "actors" or not ids or not all(i.isdecimal() for i in ids):
            problem = f"does not begin with {_VERSION!r} and its actors; record it by a run"
            raise setting_error("replay_arrivals", file, problem)
        self.actor_ids = [*map(int, ids)]
        self._events = [_parse(file, *line) for line in enumerate(lines[2:], _FIRST_LINE)]
        self._position = 0
        self._replacements_missing = 0
        # The trace has no line for the moment at which a node began to drain. It follows from the number of calls
        # that are left: a draining actor gets no further dispatch, except after `played`.
        calls = Counter(event.actor_id for event in self._events if event.kind in _ENDING)
        drained = [event.actor_id for event in self._events if event.kind == "released"]
        self.calls_before_drained = {actor_id: calls[actor_id] for actor_id in drained}

    @property
    def line(self) -> int:
        """Line number of the next event."""
        return _FIRST_LINE + self._position

    @property
    def next(self) -> TraceEvent | None:
        """The next event; None at the end."""
        return self._events[self._position] if self._position < len(self._events) else None

    @property
    def free_slots(self) -> int:
        """See `Executor.free_slots`: failed actors without a replacement so far, and one that joins now."""
        if self.next is None:
            return 0
        return self._replacements_missing + (self.next.kind == "joined")

    def advance(self) -> None:
        kind, actor_id = self._events[self._position]
        if kind in _ENDING and actor_id in self.calls_before_drained:
            self.calls_before_drained[actor_id] -= 1
        elif kind == "released":
            del self.calls_before_drained[actor_id]
        self._replacements_missing += (kind == "lost") - (kind == "replacement")
        self._position += 1


def _parse(file: str, number: int, line: str) -> TraceEvent:
    kind, _, actor_id = line.partition(" ")
    if kind in get_args(_Kind) and actor_id.isdecimal():
        return TraceEvent(cast(_Kind, kind), int(actor_id))
    raise setting_error("replay_arrivals", file, f"line {number} is {line!r}: not an event of a trace")
