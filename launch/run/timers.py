"""Actions that repeat after seconds of training or after frames, such as checkpoints and rows of metrics."""

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Timer:
    """An action and its interval, which ends by seconds or by frames.

    `since` are the seconds of training and the frames at which the interval began.
    """

    action: Callable[[], object]
    seconds: float
    frames: float = math.inf
    since: tuple[float, int] = (0.0, 0)

    def is_due(self, seconds: float, frames: int) -> bool:
        return seconds - self.since[0] >= self.seconds or frames - self.since[1] >= self.frames


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
