"""Writes to each tracker from a thread of its own, so that no outage or retry there holds training up or ends it."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from launch.run.progress import Progress
from launch.run.trackers import Tracker
from shared.types import Video

# Nearly three hours of rows at the usual interval. Videos weigh a megabyte or so, and the run folder has them anyway.
MOST_ROWS_WAITING = 1000
_MOST_WAITING_BEFORE_A_VIDEO = 16
CLOSE_SECONDS = 15.0

OpenTracker = Callable[[], Tracker]


class Trackers:
    """All trackers of a run, none of which may end it. No method raises.

    Args:
        openers: how each is opened, by its name in messages.
        say: takes a message; called from several threads.
    """

    def __init__(self, openers: Mapping[str, OpenTracker], say: Callable[[str], None]) -> None:
        self._say = say
        self._threads = [TrackerThread(name, open_tracker, say) for name, open_tracker in openers.items()]

    def write(self, row: Progress) -> None:
        """Pass a row on to each."""
        for thread in self._threads:
            thread.write(row)

    def write_video(self, video: Video, frames: int) -> None:
        """Pass the video of an evaluation on to each; see `Tracker`."""
        for thread in self._threads:
            thread.write_video(video, frames)

    @property
    def rows_left_out(self) -> dict[str, int]:
        """Rows that did not arrive since the session began, a video as one, for each tracker that misses some."""
        return {thread.name: thread.rows_left_out for thread in self._threads if thread.rows_left_out}

    def close(self) -> None:
        """Write what still waits and close them, side by side; whatever takes longer than CLOSE_SECONDS is left out."""
        for thread in self._threads:
            thread.start_to_close()
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            thread.wait_until_closed(deadline - time.monotonic())
        for name, rows in self.rows_left_out.items():
            self._say(
                f"{name}: {rows:,} {'row was' if rows == 1 else 'rows were'} left out; metrics.jsonl has them all"
            )


class TrackerThread:
    """Passes rows on to one tracker, from a thread of its own.

    Its first exception becomes a warning; of later ones, the rows that did not arrive are counted.

    Args:
        name: of the tracker.
        open_tracker: opens it. Called in the thread at once, and where it fails again for each row.
        say: takes a message; called from the thread, too.
        most_rows: that may wait while the tracker takes its time; more are left out.
    """

    def __init__(
        self, name: str, open_tracker: OpenTracker, say: Callable[[str], None], most_rows: int = MOST_ROWS_WAITING
    ) -> None:
        self.name = name
        self.rows_left_out = 0
        self._open, self._say, self._most_rows = open_tracker, say, most_rows
        self._tracker: Tracker | None = None
        self._warned = self._closing = False
        self._changed = threading.Condition()
        # A row stays the first one here until it is written, so that whatever is here has not arrived.
        self._waiting: deque[Callable[[Tracker], None]] = deque()
        # The process may end while the tracker hangs.
        self._thread = threading.Thread(target=self._run, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def write(self, row: Progress) -> None:
        """Pass a row on, or leave it out where too many wait."""
        with self._changed:
            room = len(self._waiting) < self._most_rows
            if room:
                self._waiting.append(lambda tracker: tracker.write(row))
                self._changed.notify()
            else:
                self.rows_left_out += 1
        if not room:
            self._warn(f"{self._most_rows:,} rows wait for it")

    def write_video(self, video: Video, frames: int) -> None:
        """Pass a video on; a tracker that is behind gets none, and misses it."""
        with self._changed:
            if len(self._waiting) < _MOST_WAITING_BEFORE_A_VIDEO:
                self._waiting.append(lambda tracker: tracker.write_video(video, frames))
                self._changed.notify()
            else:
                self.rows_left_out += 1

    def start_to_close(self) -> None:
        """Let the thread write what waits, and close the tracker."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def wait_until_closed(self, seconds: float) -> None:
        """Wait for the thread to end, for so many seconds at most. What still waits then is left out."""
        self._thread.join(max(0.0, seconds))
        if self._thread.is_alive():
            self._warn("it does not answer, and is not waited for any longer")
        with self._changed:
            self.rows_left_out += len(self._waiting)
            self._waiting.clear()

    def _run(self) -> None:
        self._attempt(lambda _tracker: None)
        while (write := self._next()) is not None:
            arrived = self._attempt(write)
            with self._changed:
                # Nothing is there any more if nobody waits for it: it was counted.
                if self._waiting:
                    self._waiting.popleft()
                    self.rows_left_out += not arrived
        if self._tracker is not None:
            self._attempt(lambda tracker: tracker.close())

    def _next(self) -> Callable[[Tracker], None] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            return self._waiting[0] if self._waiting else None

    def _attempt(self, act: Callable[[Tracker], None]) -> bool:
        """Act on the tracker, opened first if it is not. Returns whether that went well."""
        try:
            if self._tracker is None:
                self._tracker = self._open()
            act(self._tracker)
        # Each tracker has a hierarchy of its own, beside those of HTTP and of TensorFlow: none of it may end a run.
        except Exception as error:
            self._warn(_first_line(error))
            return False
        return True

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            self._say(f"warning: {self.name}: {reason}; training goes on, and what it misses is counted")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
