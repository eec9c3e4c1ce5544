"""`tributary watch [RUN]`: an agent plays in the terminal, beside its values and action probabilities."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import cycle, pairwise
from pathlib import Path

import numpy as np
from PIL import Image
from rich.color import Color
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.segment import Segment, Segments
from rich.style import Style
from rich.table import Table
from rich.text import Text

from launch import zoo
from launch.files import write_json
from launch.film.stage import Frame, Performance, PlayedStep
from launch.output import EXIT_DONE, EXIT_INTERRUPTED, print_line, quoted
from launch.provenance import provenance
from launch.results.evaluate import PlayArguments
from launch.run.folder import RunFolder
from launch.run.lookup import RunPath, trust_option
from launch.settings.parse import Operand
from shared.errors import ConfigurationError, counted

_AFTER_EPISODE_SECONDS = 1.5
# Afterwards the seeds repeat.
_EPISODES = 1000
# A late frame is still shown if none was shown for longer than this.
_LONGEST_UNSEEN_SECONDS = 0.1
# A longer delay is not made up for.
_MAX_LATE_SECONDS = 0.25
_POLL_SECONDS = 0.05
_MIN_SIDE_COLUMNS, _MAX_SIDE_COLUMNS = 20, 40


@dataclass(frozen=True, kw_only=True)
class WatchArguments(PlayArguments):
    """Watch an agent play in the terminal, at the console's speed. Space pauses, q quits."""

    run: Operand[RunPath] = zoo.FOLDER / "pong"
    """Folder of the run, latest: the newest below runs/, zoo:NAME: an agent that ships, or the URL of a copy."""


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
    stage, returns, interrupted = performance.stage, performance.returns, False
    titles = Path(folder.name).name, environment_id, "q quit, space pause"
    names, preferences_are = performance.spec.action_set, performance.policy.method.preferences_are
    try:
        with (
            closing(stage),
            Live(console=console, screen=True, auto_refresh=False) as live,
            TerminalPlayer(live, stage.frames_per_second, stage.pixel_aspect) as player,
        ):
            for step in performance.play(cycle(range(_EPISODES))):
                facts = {
                    "score": f"{step.episode_return:g}",
                    "value": f"{step.value:+.2f}",
                    "episode": f"{len(returns) + 1}",
                    "earlier": ", ".join(f"{r:g}" for r in returns[-3:]),
                }
                side = panel(titles, facts, step, names, preferences_are, console.size.height)
                if not all(player.show(frame, side) for frame in step.frames):
                    break
                if step.ended:
                    player.hold(_AFTER_EPISODE_SECONDS)
    except KeyboardInterrupt:
        interrupted = True
    whole = ""
    if returns:
        whole = f"{counted(len(returns), 'whole episode')}, mean return {sum(returns) / len(returns):g}, "
    print_line(console, f"played {whole}with {performance.source}")
    print_line(console, f"to record a video of this agent: {record}")
    played = {**performance.description, "returns": returns, "interrupted": interrupted}
    write_json(arguments.json, played | provenance())
    return EXIT_INTERRUPTED if interrupted else EXIT_DONE


class TerminalPlayer:
    """Shows frames at their rate. Frames for which the terminal is too slow are skipped.

    `pixel_aspect` is the width of a pixel over its height. Use as a context, within which keys are not echoed.
    """

    def __init__(self, live: Live, frames_per_second: Fraction, pixel_aspect: float) -> None:
        self._live, self._frame_seconds, self._pixel_aspect = live, float(1 / frames_per_second), pixel_aspect
        self._due = self._painted = time.monotonic()
        self._paused = False

    def __enter__(self) -> "TerminalPlayer":
        self._terminal = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._terminal)
        tty.setcbreak(self._terminal, termios.TCSANOW)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(termios.error):
            termios.tcsetattr(self._terminal, termios.TCSAFLUSH, self._before)

    def show(self, frame: Frame, side: RenderableType) -> bool:
        """Show a frame uint8 [height, width, 3] when it is due, and its panel. Returns False if the user has quit.

        Raises:
            KeyboardInterrupt: the terminal was closed.
        """
        while True:
            keys = self._typed(_POLL_SECONDS if self._paused else min(self._due - time.monotonic(), _POLL_SECONDS))
            if b"q" in keys:
                return False
            now = time.monotonic()
            if keys.count(b" ") % 2:
                self._paused, self._due = not self._paused, now
            if now >= self._due and not self._paused:
                break
        if now - self._due <= self._frame_seconds or now - self._painted > _LONGEST_UNSEEN_SECONDS:
            self._live.update(compose(self._live.console.size, frame, self._pixel_aspect, side), refresh=True)
            self._painted = time.monotonic()
        self._due = max(self._due, now - _MAX_LATE_SECONDS) + self._frame_seconds
        return True

    def hold(self, seconds: float) -> None:
        self._due = time.monotonic() + seconds

    def _typed(self, seconds: float) -> bytes:
        if not select.select([self._terminal], [], [], max(0.0, seconds))[0]:
            return b""
        keys = b""
        with suppress(OSError):
            keys = os.read(self._terminal, 65_536)
        if not keys:
            raise KeyboardInterrupt
        return keys


def half_blocks(frame: Frame, rows: int, columns: int) -> Segments:
    """A frame uint8 [height, width, 3] in rows of half blocks: two pixels to a cell, one above the other."""
    # Each pixel is the mean of its area, so that small objects are dimmed instead of flickering.
    pixels = np.asarray(Image.fromarray(frame).resize((columns, 2 * rows), Image.Resampling.BOX))
    segments = []
    # Both colours of each cell: [columns, 6].
    for row in np.concatenate([pixels[::2], pixels[1::2]], axis=-1):
        starts = [0, *(np.flatnonzero((row[1:] != row[:-1]).any(-1)) + 1).tolist(), columns]
        segments += [Segment("▀" * (end - start), _half_block(*row[start].tolist())) for start, end in pairwise(starts)]
        segments.append(Segment.line())
    return Segments(segments)


@lru_cache(65_536)
def _half_block(*colours: int) -> Style:
    return Style(color=Color.from_rgb(*colours[:3]), bgcolor=Color.from_rgb(*colours[3:]))


def compose(size: tuple[int, int], frame: Frame, pixel_aspect: float, side: RenderableType) -> Table:
    """A frame uint8 [height, width, 3] in a window of `size` columns and rows, with its panel beside it."""
    columns, rows = size
    most = columns - min(_MIN_SIDE_COLUMNS, columns // 2) - 1
    picture_rows, picture_columns = fit(frame.shape[1] * pixel_aspect, frame.shape[0], rows, most)
    grid = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
    grid.add_column(width=picture_columns)
    grid.add_column(width=max(0, min(_MAX_SIDE_COLUMNS, columns - picture_columns - 1)), no_wrap=True)
    grid.add_row(half_blocks(frame, picture_rows, picture_columns), side)
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
    lines = [*titles, *(f"{name:<9}{text}" for name, text in facts.items() if text)]
    discrete = step.preferences is not None
    lines.append(preferences_are if discrete else "action")
    # A vector of actions comes with the second step.
    numbers = np.asarray(step.preferences if discrete else () if step.action is None else step.action, np.float64)
    most = np.argsort(-np.nan_to_num(numbers, nan=-np.inf), kind="stable")[: max(0, rows - len(lines))]
    table = Table.grid(padding=(0, 1, 0, 0), pad_edge=False, expand=True)
    table.add_column(ratio=1, no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for i in sorted(most.tolist()):
        number = "-" if np.isnan(numbers[i]) else f"{numbers[i]:.2f}"
        table.add_row(action_names[i], number, style="reverse" if discrete and i == step.action else None)
    return Group(*(Text(line, no_wrap=True, overflow="crop") for line in lines), table)


def fit(frame_width: float, frame_height: float, rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of the largest picture with these proportions. A cell is twice as high as wide."""
    aspect = frame_width / frame_height
    wide = max(1, min(columns, round(2 * rows * aspect)))
    return max(1, min(rows, round(wide / aspect / 2))), wide
