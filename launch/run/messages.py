"""What a run says in words: in its log.txt, and to whoever watches it."""

import time
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path

from launch.loop.executor import Change, Drained, Failed, Joined, Replaced


class Messages:
    """Appends each message to log.txt with the time, and keeps it until it is shown. Threads may share it.

    Args:
        file: the log; made when the first message comes.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._not_shown: deque[str] = deque()

    def say(self, message: str) -> None:
        """Log one message, and show it with the next view."""
        self._not_shown.append(message)
        # On a full disk the message is still shown.
        with suppress(OSError), open(self._file, "a") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n")

    def take(self) -> list[str]:
        """The messages since the last call."""
        return [self._not_shown.popleft() for _ in range(len(self._not_shown))]


class DroppedReports:
    """Counts the reports that the learner dropped, so that the log does not grow with each of them."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def message(self, reason: str, actor_id: int) -> str | None:
        """Take in one dropped report. What to say of the first for a reason, the tenth, the hundredth …, else None."""
        self._counts[reason] += 1
        count = self._counts[reason]
        if count != 10 ** (len(str(count)) - 1):
            return None
        which = "a report" if count == 1 else f"the {count}th report"
        return f"dropped {which} for the reason {reason}, of actor {actor_id}"


def change_message(change: Change) -> str:
    """What to say of a change among the actors, or of an evaluator that was replaced."""
    match change:
        case Failed():
            return f"actor {change.actor_id}: {change.reason}"
        case Replaced(failed, replacement_id=None):
            return f"evaluator: {failed.reason}; another one replaces it"
        case Replaced(failed, replacement_id):
            return f"actor {replacement_id} replaces actor {failed.actor_id}"
        case Joined(actor_id):
            return f"actor {actor_id} joins"
        case Drained(actor_id):
            return f"actor {actor_id}: its node is draining; it made its last report"
