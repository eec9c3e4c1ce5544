"""What a terminal shows of an agent that plays: a picture as large as the window, and what the agent thinks."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from launch.film.cells import Cells, Frame, Rectangle, fit
from shared.types import Float32Array

_LEAST_SIDE_COLUMNS, _MOST_SIDE_COLUMNS = 20, 40
_LEAST_SIDE_ROWS = 12
# The panel beside the picture says more than the lines below it.
_SIDE_IS_BETTER = 1.2
_LINES_BELOW = 3
_KEYS = "q quit   space pause   . one frame   ← → speed   n next episode"

_BRIGHT, _DIM, _KEY = (255, 255, 255), (150, 150, 150), (110, 110, 110)
_BAR, _TAKEN_BAR = (38, 62, 92), (30, 100, 60)
_MARK = "›"


class Seen(NamedTuple):
    """What is shown beside the picture.

    `preferences` are float32 [A], None for a vector of actions; `preferences_are` says what one is. `action` is what
    the agent did last, an int32 or float32 [D]; None before the first one. `returns` are those of the episodes before.
    """

    agent: str
    environment_id: str
    episode: int
    score: float
    value: float
    returns: list[float]
    action_names: tuple[str, ...]
    preferences: Float32Array | None
    preferences_are: str
    action: npt.NDArray[np.generic] | None
    speed: str = ""


def compose(size: tuple[int, int], frame: Frame, pixel_aspect: float, seen: Seen) -> Cells:
    """A frame uint8 [height, width, 3] and what is to be seen with it, for a window of `size` rows and columns."""
    rows, columns = size
    height, width = frame.shape[0], frame.shape[1] * pixel_aspect
    # The last row has the keys.
    free = max(1, rows - 1)
    beside = fit(width, height, free, max(1, columns - _LEAST_SIDE_COLUMNS - 1))
    below = fit(width, height, max(1, free - _LINES_BELOW), columns)
    cells = Cells(rows, columns)
    side = min(_MOST_SIDE_COLUMNS, columns - beside[1] - 1)
    if side >= _LEAST_SIDE_COLUMNS and beside[0] * beside[1] * _SIDE_IS_BETTER >= below[0] * below[1]:
        left = max(0, (columns - beside[1] - 1 - side) // 2)
        cells.picture(frame, Rectangle((free - beside[0]) // 2, left, *beside))
        _side(cells, Rectangle(0, left + beside[1] + 1, free, side), seen)
    else:
        cells.picture(frame, Rectangle(0, (columns - below[1]) // 2, *below))
        left = free - below[0]
        if left > _LEAST_SIDE_ROWS:
            _side(cells, Rectangle(below[0] + 1, 0, left - 1, min(columns, _MOST_SIDE_COLUMNS)), seen)
        else:
            _below(cells, Rectangle(below[0], 0, left, columns), seen)
    if rows > 1:
        cells.text(rows - 1, 0, _KEYS, _KEY)
    return cells


def _side(cells: Cells, at: Rectangle, seen: Seen) -> None:
    facts = [
        ("score", f"{seen.score:g}"),
        ("value", f"{seen.value:+.2f}"),
        ("episode", f"{seen.episode}"),
        ("earlier", ", ".join(f"{r:g}" for r in seen.returns[-3:])),
        ("speed", seen.speed),
    ]
    cells.text(at.row, at.column, seen.agent[: at.columns], _BRIGHT)
    cells.text(at.row + 1, at.column, seen.environment_id[: at.columns], _DIM)
    row = at.row + 3
    for name, text in facts:
        if text:
            cells.text(row, at.column, name, _DIM)
            cells.text(row, at.column + at.columns - len(text), text, _BRIGHT)
            row += 1
    cells.text(row + 1, at.column, seen.preferences_are if seen.preferences is not None else "action", _DIM)
    row += 2
    lines = _weighed(seen)
    for i in _that_fit(lines, at.row + at.rows - row):
        name, number, share, taken = lines[i]
        cells.fill(Rectangle(row, at.column, 1, round(share * at.columns)), _TAKEN_BAR if taken else _BAR)
        colour = _BRIGHT if taken else _DIM
        cells.text(row, at.column, f"{_MARK if taken else ' '}{name}"[: at.columns - len(number) - 1], colour)
        cells.text(row, at.column + at.columns - len(number), number, colour)
        row += 1


def _below(cells: Cells, at: Rectangle, seen: Seen) -> None:
    facts = f"{seen.agent}   score {seen.score:g}   value {seen.value:+.2f}   episode {seen.episode}   {seen.speed}"
    cells.text(at.row, 0, facts, _BRIGHT)
    row, column = at.row + 1, 0
    for name, number, _, taken in _weighed(seen):
        text = f"{_MARK if taken else ' '}{name} {number}  "
        if column + len(text) > at.columns:
            row, column = row + 1, 0
        if row >= at.row + at.rows:
            break
        cells.text(row, column, text, _BRIGHT if taken else _DIM)
        column += len(text)


def _weighed(seen: Seen) -> list[tuple[str, str, float, bool]]:
    """Of each action its name, a number, how long its bar is in [0, 1], and whether it was taken."""
    preferences, action = seen.preferences, seen.action
    if preferences is None:
        values = np.zeros(len(seen.action_names)) if action is None else action
        return [(f"{i}", f"{v:+.2f}", min(1.0, max(0.0, (v + 1) / 2)), True) for i, v in enumerate(values.tolist())]
    # Probabilities are shares already; values lie anywhere.
    shares = preferences
    if seen.preferences_are != "probability":
        shares = (preferences - preferences.min()) / max(float(np.ptp(preferences)), 1e-9)
    return [
        (name, f"{number:.2f}", float(share), action is not None and i == int(action))
        for i, (name, number, share) in enumerate(zip(seen.action_names, preferences, shares, strict=True))
    ]


def _that_fit(lines: list[tuple[str, str, float, bool]], rows: int) -> list[int]:
    """Which lines to show where there is not room for all: the greatest, in their order."""
    greatest = sorted(range(len(lines)), key=lambda i: -lines[i][2])[: max(0, rows)]
    return sorted(greatest)
