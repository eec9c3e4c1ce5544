"""Shows frames on a terminal when their time has come, and takes the keys that change it."""

import time

from launch.film.cells import Frame, Painter
from launch.film.panel import Seen, compose
from launch.film.screen import Screen

_SPEEDS = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8)
_MOST_PER_SECOND = 60
# A frame that is so late is shown all the same, if none was for longer.
_LONGEST_UNSEEN_SECONDS = 0.1
# What is later is not made up for: the game goes on from now.
_MOST_LATE_SECONDS = 0.25
_POLL_SECONDS = 0.05


class Player:
    """Plays frames at their pace, or as fast as the terminal takes them: those that it has no time for are left out.

    Args:
        screen: that is drawn on.
        painter: for its colours.
        frames_per_second: at the speed of 1.
        pixel_aspect: how many times as wide as high the pixels of a frame are to be.
    """

    def __init__(self, screen: Screen, painter: Painter, frames_per_second: int, pixel_aspect: float) -> None:
        self._screen = screen
        self._painter = painter
        self._frames_per_second = frames_per_second
        self._pixel_aspect = pixel_aspect
        self._speed = _SPEEDS.index(1)
        self._paused = self._next_episode = False
        self._single_frames = 0
        self._latest: tuple[Frame, Seen] | None = None
        self._stale = False
        self._due = self._painted = time.monotonic()
        self.over = False

    def show(self, frame: Frame, seen: Seen) -> bool:
        """Wait until it is time for a frame uint8 [height, width, 3], and show it. False: its episode is over."""
        while True:
            self._wait()
            if self.over or self._next_episode:
                self._next_episode = False
                return False
            now = time.monotonic()
            if not self._waits_for_a_key and now >= self._due:
                break
        self._latest, self._stale = (frame, seen), True
        self._single_frames = max(0, self._single_frames - 1)
        since = now - self._painted
        in_time = now - self._due <= self._frame_seconds and since > 0.75 / _MOST_PER_SECOND
        if self._paused or in_time or since > _LONGEST_UNSEEN_SECONDS:
            self._paint()
        self._due = max(self._due, now - _MOST_LATE_SECONDS) + self._frame_seconds
        return True

    def hold(self, seconds: float) -> None:
        """Leave the last frame where it is for so long."""
        self._due = time.monotonic() + seconds

    @property
    def _waits_for_a_key(self) -> bool:
        return self._paused and not self._single_frames

    @property
    def _frame_seconds(self) -> float:
        return 1 / (self._frames_per_second * _SPEEDS[self._speed])

    def _wait(self) -> None:
        """Wait for keys, until the next frame is due but not for long."""
        left = _POLL_SECONDS if self._waits_for_a_key else self._due - time.monotonic()
        keys = self._screen.wait(min(left, _POLL_SECONDS))
        for key in keys:
            self._take(key)
        self.over = self.over or self._screen.interrupted
        if self._screen.changed or (self._stale and (self._paused or keys)):
            self._paint()

    def _take(self, key: str) -> None:
        match key:
            case "q" | "Q" | "\x04":
                self.over = True
            case " ":
                self._paused, self._single_frames = not self._paused, 0
            case ".":
                self._paused = True
                self._single_frames += 1
            case "right" | "+" | "=":
                self._speed = min(self._speed + 1, len(_SPEEDS) - 1)
            case "left" | "-":
                self._speed = max(self._speed - 1, 0)
            case "n":
                self._next_episode = True
            case _:
                return
        self._due, self._stale = time.monotonic(), True

    def _paint(self) -> None:
        if self._latest is None or not self._screen.ready:
            return
        frame, seen = self._latest
        clear = b""
        if self._screen.changed:
            self._screen.changed = False
            clear = self._painter.clear()
        speed = "paused" if self._paused else f"×{_SPEEDS[self._speed]:g}"
        cells = compose(self._screen.size, frame, self._pixel_aspect, seen._replace(speed=speed))
        self._screen.send(clear + self._painter.paint(cells))
        self._painted, self._stale = time.monotonic(), False
