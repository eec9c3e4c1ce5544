"""`tributary watch [RUN]`: an agent plays in the terminal, beside its values and action probabilities."""

import os
import re
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from rich.color import Color
from rich.console import Console, ConsoleOptions, Group
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

_SPEEDS = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8)
# Drawing one takes 2 to 8 ms.
_MOST_PER_SECOND = 60
# A late frame is still shown if none was shown for longer than this.
_LONGEST_UNSEEN_SECONDS = 0.1
# A longer delay is not made up for.
_MOST_LATE_SECONDS = 0.25
_POLL_SECONDS = 0.05

# A narrower window has no panel beside the picture.
_LEAST_COLUMNS = 60
_LEAST_SIDE_COLUMNS, _MOST_SIDE_COLUMNS = 20, 40
_KEYS = "q quit   space pause   . one frame   ← → speed   n next episode"
_BAR, _TAKEN_BAR = "on #263e5c", "on #1e643c"

# One key: a sequence, or a character.
_KEY = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO.|.", re.DOTALL)
_ARROWS = {b"\x1b[C": "right", b"\x1b[D": "left", b"\x1bOC": "right", b"\x1bOD": "left"}


@dataclass(frozen=True, kw_only=True)
class WatchArguments(PlayArguments):
    """Watch an agent play in the terminal, at the console's speed. Keys change speed and episode; q ends it."""

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
                    title = Path(folder.name).name
                    panel = Panel(title, environment_id, episode + 1, returns, step, names, preferences_are)
                    if not all(player.show(frame, panel) for frame in step.frames):
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

    def wait(self, seconds: float) -> list[str]:
        """Wait for keys: characters, "left" and "right".

        Raises:
            KeyboardInterrupt: the terminal was closed.
        """
        if not select.select([self._terminal], [], [], max(0.0, seconds))[0]:
            return []
        read = b""
        with suppress(OSError):
            read = os.read(self._terminal, 65_536)
        if not read:
            raise KeyboardInterrupt
        return [_ARROWS.get(key, key.decode(errors="replace")) for key in _KEY.findall(read)]


class Panel(NamedTuple):
    """The texts and numbers beside the picture. `returns`: of earlier episodes."""

    agent: str
    environment_id: str
    episode: int
    returns: list[float]
    step: PlayedStep
    action_names: tuple[str, ...]
    preferences_are: str
    speed: str = ""


class TerminalPlayer:
    """Shows frames at their rate and handles the keys. Frames for which the terminal is too slow are skipped.

    `frames_per_second` is at speed 1, and `pixel_aspect` the width of a pixel over its height.
    """

    def __init__(self, live: Live, keys: Keys, frames_per_second: int, pixel_aspect: float) -> None:
        self._live, self._keys = live, keys
        self._frames_per_second, self._pixel_aspect = frames_per_second, pixel_aspect
        self._speed = _SPEEDS.index(1)
        self._paused = self._next_episode = False
        self._single_frames = 0
        self._latest: tuple[Frame, Panel] | None = None
        self._due = self._painted = time.monotonic()
        self.over = False

    def show(self, frame: Frame, panel: Panel) -> bool:
        """Show a frame uint8 [height, width, 3] when it is due. Returns False if the user has ended the episode."""
        while True:
            waits_for_a_key = self._paused and not self._single_frames
            self._handle_keys(_POLL_SECONDS if waits_for_a_key else self._due - time.monotonic())
            if self.over or self._next_episode:
                self._next_episode = False
                return False
            now = time.monotonic()
            if now >= self._due and not (self._paused and not self._single_frames):
                break
        self._latest = frame, panel
        self._single_frames = max(0, self._single_frames - 1)
        frame_seconds = 1 / (self._frames_per_second * _SPEEDS[self._speed])
        since = now - self._painted
        in_time = now - self._due <= frame_seconds and since > 0.75 / _MOST_PER_SECOND
        if self._paused or in_time or since > _LONGEST_UNSEEN_SECONDS:
            self._paint()
        self._due = max(self._due, now - _MOST_LATE_SECONDS) + frame_seconds
        return True

    def hold(self, seconds: float) -> None:
        """Keep the last frame."""
        self._due = time.monotonic() + seconds

    def _handle_keys(self, seconds: float) -> None:
        keys = self._keys.wait(min(seconds, _POLL_SECONDS))
        for key in keys:
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
                    continue
            self._due = time.monotonic()
        # While paused the window may change, too.
        if keys or (self._paused and time.monotonic() - self._painted > _LONGEST_UNSEEN_SECONDS):
            self._paint()

    def _paint(self) -> None:
        if self._latest is None:
            return
        frame, panel = self._latest
        speed = "paused" if self._paused else f"×{_SPEEDS[self._speed]:g}"
        size = self._live.console.size
        shown = compose((size.height, size.width), frame, self._pixel_aspect, panel._replace(speed=speed))
        self._live.update(shown, refresh=True)
        self._painted = time.monotonic()


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


def compose(size: tuple[int, int], frame: Frame, pixel_aspect: float, panel: Panel) -> Group:
    """A frame uint8 [height, width, 3] in a window of `size` rows and columns, with its panel beside it.

    A narrow window has one line below the picture in place of the panel.
    """
    rows, columns = size
    height, width = frame.shape[0], frame.shape[1] * pixel_aspect
    # The last row lists the keys.
    keys = Text(_KEYS, style="dim", no_wrap=True)
    if columns < _LEAST_COLUMNS:
        score = f"score {panel.step.episode_return:g}  value {panel.step.value:+.2f}  {panel.speed}  {panel.agent}"
        picture = HalfBlocks(frame, *fit(width, height, max(1, rows - 2), columns))
        return Group(picture, Text(score, no_wrap=True), keys)
    picture_rows, picture_columns = fit(width, height, max(1, rows - 1), columns - _LEAST_SIDE_COLUMNS - 1)
    side = min(_MOST_SIDE_COLUMNS, columns - picture_columns - 1)
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_row(HalfBlocks(frame, picture_rows, picture_columns), _side(panel, max(1, rows - 1), side))
    return Group(grid, keys)


def _side(panel: Panel, rows: int, columns: int) -> Text:
    """The panel with a line for each fact, and a bar for each action."""
    step = panel.step
    facts = {
        "score": f"{step.episode_return:g}",
        "value": f"{step.value:+.2f}",
        "episode": f"{panel.episode}",
        "earlier": ", ".join(f"{r:g}" for r in panel.returns[-3:]),
        "speed": panel.speed,
    }
    lines = [Text(panel.agent), Text(panel.environment_id, "dim"), Text()]
    lines += [_entry(name, text, columns) for name, text in facts.items() if text]
    lines += [Text(), Text("action" if step.preferences is None else panel.preferences_are, "dim")]
    bars = _action_lines(panel)
    # The actions with the greatest bars for which there are rows, in their order.
    most = sorted(range(len(bars)), key=lambda i: -bars[i][2])[: max(0, rows - len(lines))]
    for name, number, share, taken in (bars[i] for i in sorted(most)):
        line = _entry(name, number, columns)
        line.stylize(_TAKEN_BAR if taken else _BAR, 0, round(share * columns))
        lines.append(line)
    for line in lines:
        line.truncate(columns)
    return Text("\n", no_wrap=True).join(lines[:rows])


def _entry(name: str, value: str, columns: int) -> Text:
    """A name at the left and a value at the right."""
    return Text(f"{name[: columns - len(value) - 1]:<{columns - len(value)}}{value}")


def _action_lines(panel: Panel) -> list[tuple[str, str, float, bool]]:
    """Name, number, length of the bar in [0, 1], and whether it was taken, for each action."""
    preferences, action = panel.step.preferences, panel.step.action
    if preferences is None:
        values = np.zeros(len(panel.action_names)) if action is None else action
        return [(f"›{i}", f"{v:+.2f}", min(1.0, max(0.0, (v + 1) / 2)), True) for i, v in enumerate(values.tolist())]
    # Probabilities are lengths already; values have any range, and actions that are not allowed have none.
    shares = preferences
    if panel.preferences_are != "probability":
        shares = preferences - np.nanmin(preferences)
        shares = np.nan_to_num(shares / max(float(np.nanmax(shares)), 1e-9))
    lines = []
    for i, name in enumerate(panel.action_names):
        number = "-" if np.isnan(preferences[i]) else f"{preferences[i]:.2f}"
        taken = action is not None and i == action
        lines.append((f"{'›' if taken else ' '}{name}", number, float(shares[i]), bool(taken)))
    return lines


def fit(frame_width: float, frame_height: float, rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of the largest picture with these proportions. A cell is twice as high as wide."""
    aspect = frame_width / frame_height
    wide = max(1, min(columns, round(2 * rows * aspect)))
    return max(1, min(rows, round(wide / aspect / 2))), wide
