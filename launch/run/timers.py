"""Actions that repeat after seconds of training or after frames, such as checkpoints and rows of metrics."""

from collections.abc import Callable
from dataclasses import dataclass

from shared.schedules import crossed_multiple


@dataclass
class Timer:
    """An action and its interval, which ends by seconds or by frames.

    Attributes:
        at_multiples: the frames are multiples, counted from the beginning of the run.
        since: seconds of training and frames at which the interval began.
    """

    action: Callable[[], object]
    seconds: float
    frames: int | None = None
    at_multiples: bool = False
    since: tuple[float, int] = (0.0, 0)

    def is_due(self, seconds: float, frames: int) -> bool:
        if seconds - self.since[0] >= self.seconds:
            return True
        if self.frames is None:
            return False
        if self.at_multiples:
            return crossed_multiple(self.since[1], frames, self.frames)
        return frames - self.since[1] >= self.frames


class Timers:
    """The timers of a run, in the order in which they act when several are due.

    `now` returns the seconds of training and the frames.
    """

    def __init__(self, now: Callable[[], tuple[float, int]], *timers: Timer) -> None:
        self._now, self._timers = now, timers

    def start(self) -> None:
        """Begin all intervals."""
        for timer in self._timers:
            timer.since = self._now()

    def tick(self) -> None:
        """Call the actions that are due. An interval begins when its action has ended."""
        now = self._now()
        for timer in self._timers:
            if timer.is_due(*now):
                timer.action()
                timer.since = self._now()
