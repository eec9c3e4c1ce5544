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

    def tick(self, now: Callable[[], tuple[float, int]]) -> None:
        """Call the action if it is due. The next interval begins when the action has ended."""
        if self._is_due(*now()):
            self.action()
            self.since = now()

    def _is_due(self, seconds: float, frames: int) -> bool:
        if seconds - self.since[0] >= self.seconds:
            return True
        if self.frames is None:
            return False
        if self.at_multiples:
            return crossed_multiple(self.since[1], frames, self.frames)
        return frames - self.since[1] >= self.frames
