"""`tributary watch [RUN]`: an agent plays in the terminal, beside its values and action probabilities."""

import os
import sys
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import tyro
from rich.console import Console

from launch import zoo
from launch.film.stage import Frame, Performance, PlayArguments, PlayedStep
from launch.film.terminal import Cells, Painter, Rectangle, Screen
from launch.output import EXIT_DONE, EXIT_INTERRUPTED, check_json_file, print_line, provenance, quoted, write_json
from launch.run.folder import RunFolder
from launch.run.status import RunPath, run_name
from shared.errors import ConfigurationError

_DEFAULT = zoo.FOLDER / "pong"
_AFTER_EPISODE_SECONDS = 1.5
# Afterwards the seeds repeat.
_EPISODES = 1000

_SPEEDS = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8)
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

_BRIGHT, _DIM, _KEY = (255, 255, 255), (150, 150, 150), (110, 110, 110)
_BAR, _TAKEN_BAR = (38, 62, 92), (30, 100, 60)


@dataclass(frozen=True, kw_only=True)
class WatchArguments(PlayArguments):
    """Watch an agent play in the terminal, at the console's speed. Keys change speed and episode; q ends it."""

    run: Annotated[RunPath, tyro.conf.Positional] = _DEFAULT
    """Folder of the run, latest: the newest below runs/, or zoo:NAME: an agent that ships."""


def watch(arguments: WatchArguments) -> int:
    """Run `tributary watch`. Returns the exit code."""
    check_json_file(arguments.json)
    folder = RunFolder(arguments.run)
    environment_id = folder.read_settings("run").environment.id
    no_terminal = ConfigurationError(
        f"watch plays in a terminal, and there is none here: tributary record {quoted(folder.name)} writes a video"
    )
    in_terminal = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
    if not in_terminal or os.environ.get("TERM") in (None, "", "dumb"):
        raise no_terminal
    console = Console()
    print_line(console, f"{run_name(arguments.run)} plays {environment_id}: TensorFlow takes a few seconds to load")
    try:
        screen_of_terminal = Screen()
    except OSError as error:
        raise no_terminal from error
    performance = Performance(folder, _EPISODES, arguments)
    agent, stage = Path(folder.name).name, performance.stage
    names, preferences_are = performance.spec.action_set, performance.policy.method.preferences_are
    returns: list[float] = []
    try:
        with screen_of_terminal as screen:
            player = Player(screen, Painter(_true_colours()), stage.frames_per_second, stage.pixel_aspect)
            for episode in count():
                for step in performance.episode(episode % _EPISODES):
                    panel = Panel(agent, environment_id, episode + 1, returns, step, names, preferences_are)
                    if not all(player.show(frame, panel) for frame in step.frames):
                        break
                    if step.ended:
                        returns.append(step.episode_return)
                        player.hold(_AFTER_EPISODE_SECONDS)
                if player.over:
                    break
            interrupted = screen.interrupted
    finally:
        performance.close()
    whole = f"{len(returns)} whole episodes, mean return {sum(returns) / len(returns):g}, " if returns else ""
    print_line(console, f"played {whole}with {performance.source}")
    print_line(console, f"a video of it: tributary record {quoted(run_name(arguments.run))}")
    if arguments.json is not None:
        played = {**performance.description, "returns": returns, "interrupted": interrupted}
        write_json(arguments.json, played | provenance())
    return EXIT_INTERRUPTED if interrupted else EXIT_DONE


def _true_colours() -> bool:
    """Whether the terminal has 16 million colours, by the variables that termstandard/colors describes."""
    direct = os.environ.get("TERM", "").endswith("-direct")
    return direct or os.environ.get("COLORTERM") in ("truecolor", "24bit")


class Panel(NamedTuple):
    """The texts and numbers beside the picture. `returns` are those of earlier episodes."""

    agent: str
    environment_id: str
    episode: int
    returns: list[float]
    step: PlayedStep
    action_names: tuple[str, ...]
    preferences_are: str
    speed: str = ""


class Player:
    """Shows frames at their rate and handles the keys. Frames for which the terminal is too slow are skipped.

    Args:
        screen: terminal to draw on.
        painter: for its colours.
        frames_per_second: at speed 1.
        pixel_aspect: width of a pixel over its height.
    """

    def __init__(self, screen: Screen, painter: Painter, frames_per_second: int, pixel_aspect: float) -> None:
        self._screen = screen
        self._painter = painter
        self._frames_per_second = frames_per_second
        self._pixel_aspect = pixel_aspect
        self._speed = _SPEEDS.index(1)
        self._paused = self._next_episode = False
        self._single_frames = 0
        self._latest: tuple[Frame, Panel] | None = None
        self._stale = False
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
        self._latest, self._stale = (frame, panel), True
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
        keys = self._screen.wait(min(seconds, _POLL_SECONDS))
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
            self._due, self._stale = time.monotonic(), True
        self.over = self.over or self._screen.interrupted
        if self._screen.changed or (self._stale and (self._paused or keys)):
            self._paint()

    def _paint(self) -> None:
        if self._latest is None or not self._screen.ready:
            return
        frame, panel = self._latest
        clear = self._painter.clear() if self._screen.changed else b""
        self._screen.changed = False
        speed = "paused" if self._paused else f"×{_SPEEDS[self._speed]:g}"
        cells = compose(self._screen.size, frame, self._pixel_aspect, panel._replace(speed=speed))
        self._screen.send(clear + self._painter.paint(cells))
        self._painted, self._stale = time.monotonic(), False


def compose(size: tuple[int, int], frame: Frame, pixel_aspect: float, panel: Panel) -> Cells:
    """A frame uint8 [height, width, 3] in a window of `size` rows and columns, with its panel beside it.

    A narrow window has one line below the picture in place of the panel.
    """
    rows, columns = size
    height, width = frame.shape[0], frame.shape[1] * pixel_aspect
    # The last row lists the keys.
    free = max(1, rows - 1)
    cells = Cells(rows, columns)
    beside = fit(width, height, free, max(1, columns - _LEAST_SIDE_COLUMNS - 1))
    side = min(_MOST_SIDE_COLUMNS, columns - beside[1] - 1)
    if columns >= _LEAST_COLUMNS:
        left = max(0, (columns - beside[1] - 1 - side) // 2)
        cells.picture(frame, Rectangle((free - beside[0]) // 2, left, *beside))
        _panel(cells, Rectangle(0, left + beside[1] + 1, free, side), panel)
    else:
        picture = fit(width, height, max(1, free - 1), columns)
        cells.picture(frame, Rectangle(0, (columns - picture[1]) // 2, *picture))
        score = f"score {panel.step.episode_return:g}  value {panel.step.value:+.2f}  {panel.speed}  {panel.agent}"
        if rows > 2:
            cells.text(picture[0], 0, score, _BRIGHT)
    if rows > 1:
        cells.text(rows - 1, 0, _KEYS, _KEY)
    return cells


def _panel(cells: Cells, at: Rectangle, panel: Panel) -> None:
    """The panel with a line for each fact, and a bar for each action."""
    step = panel.step
    facts = {
        "score": f"{step.episode_return:g}",
        "value": f"{step.value:+.2f}",
        "episode": f"{panel.episode}",
        "earlier": ", ".join(f"{r:g}" for r in panel.returns[-3:]),
        "speed": panel.speed,
    }
    cells.text(at.row, at.column, panel.agent[: at.columns], _BRIGHT)
    cells.text(at.row + 1, at.column, panel.environment_id[: at.columns], _DIM)
    row = at.row + 3
    for name, text in facts.items():
        if text:
            cells.text(row, at.column, name, _DIM)
            cells.text(row, at.column + at.columns - len(text), text, _BRIGHT)
            row += 1
    cells.text(row + 1, at.column, "action" if step.preferences is None else panel.preferences_are, _DIM)
    row += 2
    lines = _action_lines(panel)
    # The actions with the greatest bars for which there are rows, in their order.
    most = sorted(lines, key=lambda line: -line[2])[: max(0, at.row + at.rows - row)]
    for name, number, share, taken in (line for line in lines if line in most):
        cells.fill(Rectangle(row, at.column, 1, round(share * at.columns)), _TAKEN_BAR if taken else _BAR)
        colour = _BRIGHT if taken else _DIM
        cells.text(row, at.column, name[: at.columns - len(number) - 1], colour)
        cells.text(row, at.column + at.columns - len(number), number, colour)
        row += 1


def _action_lines(panel: Panel) -> list[tuple[str, str, float, bool]]:
    """Name, number, length of the bar in [0, 1], and whether it was taken, for each action."""
    preferences, action = panel.step.preferences, panel.step.action
    if preferences is None:
        values = np.zeros(len(panel.action_names)) if action is None else action
        return [(f"›{i}", f"{v:+.2f}", min(1.0, max(0.0, (v + 1) / 2)), True) for i, v in enumerate(values.tolist())]
    # Probabilities are lengths already; values have any range.
    shares = preferences
    if panel.preferences_are != "probability":
        lowest, highest = float(np.nanmin(preferences)), float(np.nanmax(preferences))
        # Actions that are not allowed have no value.
        shares = np.nan_to_num((preferences - lowest) / max(highest - lowest, 1e-9))
    lines = []
    for i, name in enumerate(panel.action_names):
        taken = action is not None and i == int(action)
        number = "-" if np.isnan(preferences[i]) else f"{preferences[i]:.2f}"
        lines.append((f"{'›' if taken else ' '}{name}", number, float(shares[i]), taken))
    return lines


def fit(frame_width: float, frame_height: float, rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of the largest picture with these proportions. A cell is twice as high as wide."""
    aspect = frame_width / frame_height
    wide = max(1, min(columns, round(2 * rows * aspect)))
    return max(1, min(rows, round(wide / aspect / 2))), wide
