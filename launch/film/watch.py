"""`tributary watch [RUN]`: an agent plays in the terminal, beside its values and action probabilities."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, pairwise
from pathlib import Path

import numpy as np
from PIL import Image
from rich.bar import Bar
from rich.color import Color
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from launch import zoo
from launch.film.stage import Frame, Performance, PlayedStep
from launch.interrupts import Interrupts
from launch.output import EXIT_DONE, EXIT_INTERRUPTED, print_line, provenance, quoted, write_json
from launch.results.evaluate import PlayArguments
from launch.run.folder import RunFolder
from launch.run.lookup import RunPath, trust_option
from launch.settings.parse import Operand
from shared.errors import ConfigurationError

_DEFAULT = zoo.FOLDER / "pong"
_AFTER_EPISODE_SECONDS = 1.5
# Afterwards the seeds repeat.
_EPISODES = 1000

# Drawing a frame takes 2 to 8 ms.
_MOST_PER_SECOND = 60
# A late frame is still shown if none was shown for longer than this.
_LONGEST_UNSEEN_SECONDS = 0.1
# A longer delay is not made up for.
_MOST_LATE_SECONDS = 0.25
_POLL_SECONDS = 0.05

_KEYS = "q quit, space pause"
_LEAST_SIDE_COLUMNS, _MOST_SIDE_COLUMNS, _BAR_COLUMNS = 20, 40, 5


@dataclass(frozen=True, kw_only=True)
class WatchArguments(PlayArguments):
    """Watch an agent play in the terminal, at the console's speed. Space pauses, q quits."""

    run: Operand[RunPath] = _DEFAULT
    """Folder of the run, latest: the newest below runs/, or zoo:NAME: an agent that ships."""


def watch(arguments: WatchArguments) -> int:
    folder, agent = RunFolder(arguments.run), zoo.agent_name(arguments.run) or str(arguments.run)
    config = folder.read_settings("run")
    environment_id = config.environment.id
    record = f"tributary record {quoted(agent)}{trust_option(config)}"
    in_terminal = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
    if not in_terminal or os.environ.get("TERM") in (None, "", "dumb"):
        raise ConfigurationError(f"watch plays in a terminal, and there is none here: {record} writes a video")
    console = Console()
    print_line(console, f"{agent} plays {environment_id}: TensorFlow takes a few seconds to load")
    performance = Performance(arguments, _EPISODES)
    stage, returns, interrupted = performance.stage, list[float](), False
    titles = Path(folder.name).name, environment_id, _KEYS
    names, preferences_are = performance.spec.action_set, performance.policy.method.preferences_are
    try:
        # SIGTERM and a closed terminal raise KeyboardInterrupt as Ctrl-C does.
        with (
            closing(performance),
            Interrupts(),
            Keys() as keys,
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            player = TerminalPlayer(live, keys, stage.frames_per_second, stage.pixel_aspect)
            for episode in count():
                for step in performance.episode(episode % _EPISODES):
                    facts = {
                        "score": f"{step.episode_return:g}",
                        "value": f"{step.value:+.2f}",
                        "episode": f"{episode + 1}",
                        "earlier": ", ".join(f"{r:g}" for r in returns[-3:]),
                    }
                    side = panel(titles, facts, step, names, preferences_are, console.size.height)
                    if not all(player.show(frame, side) for frame in step.frames):
                        break
                    if step.ended:
                        returns.append(step.episode_return)
                        player.hold(_AFTER_EPISODE_SECONDS)
                if player.over:
                    break
    except KeyboardInterrupt:
        interrupted = True
    episodes = "1 whole episode" if len(returns) == 1 else f"{len(returns)} whole episodes"
    whole = f"{episodes}, mean return {sum(returns) / len(returns):g}, " if returns else ""
    print_line(console, f"played {whole}with {performance.source}")
    print_line(console, f"a video of it: {record}")
    played = {**performance.description, "returns": returns, "interrupted": interrupted}
    write_json(arguments.json, played | provenance())
    return EXIT_INTERRUPTED if interrupted else EXIT_DONE


class Keys:
    """The keys that are typed at the terminal of this process. Use as a context, within which it does not echo them."""

    def __enter__(self) -> "Keys":
        self._terminal = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._terminal)
        tty.setcbreak(self._terminal, termios.TCSANOW)
        settings = termios.tcgetattr(self._terminal)
        # Ctrl-S would block the output, and with it the exit; Ctrl-Z would leave the display as it is.
        settings[0] &= ~termios.IXON
        settings[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(self._terminal, termios.TCSANOW, settings)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(termios.error):
            termios.tcsetattr(self._terminal, termios.TCSAFLUSH, self._before)

    def wait(self, seconds: float) -> bytes:
        """Wait for keys.

        Raises:
            KeyboardInterrupt: the terminal was closed.
        """
        if not select.select([self._terminal], [], [], max(0.0, seconds))[0]:
            return b""
        read = b""
        with suppress(OSError):
            read = os.read(self._terminal, 65_536)
        if not read:
            raise KeyboardInterrupt
        return read


class TerminalPlayer:
    """Shows frames at their rate until `over`. Frames for which the terminal is too slow are skipped.

    `pixel_aspect` is the width of a pixel over its height.
    """

    def __init__(self, live: Live, keys: Keys, frames_per_second: int, pixel_aspect: float) -> None:
        self._live, self._keys = live, keys
        self._frame_seconds, self._pixel_aspect = 1 / frames_per_second, pixel_aspect
        self._due = self._painted = time.monotonic()
        self._paused = self.over = False

    def show(self, frame: Frame, side: RenderableType) -> bool:
        """Show a frame uint8 [height, width, 3] when it is due, and its panel. Returns False if the user has quit."""
        while True:
            keys = self._keys.wait(_POLL_SECONDS if self._paused else min(self._due - time.monotonic(), _POLL_SECONDS))
            self.over = not {b"q", b"Q", b"\x04"}.isdisjoint(key.to_bytes() for key in keys)
            if self.over:
                return False
            now = time.monotonic()
            if keys.count(b" ") % 2:
                self._paused, self._due = not self._paused, now
            if now >= self._due and not self._paused:
                break
        since = now - self._painted
        in_time = now - self._due <= self._frame_seconds and since > 0.75 / _MOST_PER_SECOND
        if in_time or since > _LONGEST_UNSEEN_SECONDS:
            self._live.update(compose(self._live.console.size, frame, self._pixel_aspect, side), refresh=True)
            self._painted = time.monotonic()
        self._due = max(self._due, now - _MOST_LATE_SECONDS) + self._frame_seconds
        return True

    def hold(self, seconds: float) -> None:
        """Keep the last frame."""
        self._due = time.monotonic() + seconds


class HalfBlocks:
    """A frame uint8 [height, width, 3] in rows of half blocks: two pixels to a cell, one above the other."""

    def __init__(self, frame: Frame, rows: int, columns: int) -> None:
        # Each pixel is the mean of its area, so that small objects are dimmed instead of flickering.
        resized = Image.fromarray(frame).resize((columns, 2 * rows), Image.Resampling.BOX)
        self._columns = columns
        # Both colours of each cell: [rows, columns, 6].
        self._cells = np.concatenate([np.asarray(resized)[::2], np.asarray(resized)[1::2]], axis=-1)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for row in self._cells:
            starts = [0, *(np.flatnonzero((row[1:] != row[:-1]).any(-1)) + 1).tolist(), self._columns]
            for start, end in pairwise(starts):
                yield Segment("▀" * (end - start), _half_block(*row[start].tolist()))
            yield Segment.line()

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(self._columns, self._columns)


@lru_cache(65_536)
def _half_block(*colours: int) -> Style:
    return Style(color=Color.from_rgb(*colours[:3]), bgcolor=Color.from_rgb(*colours[3:]))


def compose(size: tuple[int, int], frame: Frame, pixel_aspect: float, side: RenderableType) -> Table:
    """A frame uint8 [height, width, 3] in a window of `size` columns and rows, with its panel beside it."""
    columns, rows = size
    most = columns - min(_LEAST_SIDE_COLUMNS, columns // 2) - 1
    picture_rows, picture_columns = fit(frame.shape[1] * pixel_aspect, frame.shape[0], rows, most)
    grid = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
    grid.add_column()
    grid.add_column(width=max(0, min(_MOST_SIDE_COLUMNS, columns - picture_columns - 1)), no_wrap=True)
    grid.add_row(HalfBlocks(frame, picture_rows, picture_columns), side)
    return grid


def panel(
    titles: Sequence[str],
    facts: Mapping[str, str],
    step: PlayedStep,
    action_names: Sequence[str],
    preferences_are: str,
    rows: int,
) -> Group:
    """Lines for titles, facts and actions; in `rows` rows only the actions with the greatest preferences."""
    table = Table.grid(padding=(0, 1, 0, 0), pad_edge=False, expand=True)
    table.add_column(ratio=1, no_wrap=True)
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    lines = [*titles, *(f"{name:<9}{text}" for name, text in facts.items() if text)]
    discrete = step.preferences is not None
    lines.append(preferences_are if discrete else "action")
    zeros = np.zeros(len(action_names))
    numbers = np.asarray(step.preferences if discrete else zeros if step.action is None else step.action, np.float64)
    most = np.argsort(-np.nan_to_num(numbers, nan=-np.inf), kind="stable")[: max(0, rows - len(lines))]
    for i in sorted(most.tolist()):
        number = "-" if np.isnan(numbers[i]) else f"{numbers[i]:.2f}"
        bar = Bar(1.0, 0.0, numbers[i], width=_BAR_COLUMNS) if discrete and preferences_are == "probability" else ""
        taken = discrete and i == step.action
        table.add_row(action_names[i], bar, number, style="reverse" if taken else None)
    return Group(*(Text(line, no_wrap=True, overflow="crop") for line in lines), table)


def fit(frame_width: float, frame_height: float, rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of the largest picture with these proportions. A cell is twice as high as wide."""
    aspect = frame_width / frame_height
    wide = max(1, min(columns, round(2 * rows * aspect)))
    return max(1, min(rows, round(wide / aspect / 2))), wide
