"""Pictures and text as the cells of a terminal, and the bytes that change what it shows into something else."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

Frame = npt.NDArray[np.uint8]
Colours = Literal["true", "256", "none"]
Colour = tuple[int, int, int]

_BLACK: Colour = (0, 0, 0)
_SPACE, _UPPER_HALF = ord(" "), ord("▀")
# For terminals that are to show no colours: from what is most of the picture to what differs from it most.
_SHADES = np.array([ord(character) for character in " .:-=+*#%@"], np.uint32)
_LUMINANCE = np.array([0.299, 0.587, 0.114])
# xterm's 256 colours: a cube of these levels from 16 on, and a ramp of greys from 232 on.
_LEVELS = np.array([0, 95, 135, 175, 215, 255])
_GREYS = np.arange(8, 239, 10)

# The terminal shows all of a frame at once, where it knows how; others pass over this.
_BEGIN, _END = b"\x1b[?2026h", b"\x1b[?2026l"


class Rectangle(NamedTuple):
    """A part of a grid of cells."""

    row: int
    column: int
    rows: int
    columns: int


class Cells:
    """A grid of cells, each with a character, the colour of it and that behind it. A new one is black.

    Args:
        rows, columns: of the terminal.
    """

    def __init__(self, rows: int, columns: int) -> None:
        self.characters = np.full((rows, columns), _SPACE, np.uint32)
        self.front = np.zeros((rows, columns, 3), np.uint8)
        self.back = np.zeros((rows, columns, 3), np.uint8)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.characters.shape
        return rows, columns

    def picture(self, frame: Frame, at: Rectangle) -> None:
        """Draw a frame uint8 [height, width, 3] over a rectangle, two pixels to a cell: one above the other."""
        place = slice(at.row, at.row + at.rows), slice(at.column, at.column + at.columns)
        # Each pixel is the mean of what it covers: what is small gets dim, and does not come and go.
        resized = Image.fromarray(frame).resize((at.columns, 2 * at.rows), Image.Resampling.BOX)
        pixels = np.asarray(resized).reshape(at.rows, 2, at.columns, 3)
        self.characters[place] = _UPPER_HALF
        self.front[place], self.back[place] = pixels[:, 0], pixels[:, 1]

    def text(self, row: int, column: int, text: str, colour: Colour) -> None:
        """Write a line over what is behind it. What does not fit is left out."""
        rows, columns = self.shape
        if row >= rows or column >= columns:
            return
        text, column = text[max(0, -column) :], max(0, column)
        characters = [ord(character) for character in text[: columns - column]]
        place = row, slice(column, column + len(characters))
        self.characters[place], self.front[place] = characters, colour

    def fill(self, at: Rectangle, colour: Colour) -> None:
        """Set the colour behind a rectangle."""
        self.back[at.row : at.row + at.rows, at.column : at.column + at.columns] = colour


class Painter:
    """Knows what a terminal shows, and how to change it.

    Args:
        colours: that it can show, or is to. `none`: pictures are drawn in characters.
    """

    def __init__(self, colours: Colours) -> None:
        self._colours = colours
        self._shown: tuple[npt.NDArray[np.uint32], ...] | None = None

    def clear(self) -> bytes:
        """Bytes that clear the terminal, of which nothing is known any more."""
        self._shown = None
        return b"\x1b[0m\x1b[2J"

    def paint(self, cells: Cells) -> bytes:
        """Bytes that make it show these cells: only those that have changed."""
        wanted = self._as_shown(cells)
        if self._shown is None or self._shown[0].shape != cells.shape:
            changed = np.arange(cells.characters.size)
        else:
            differs = [now != before for now, before in zip(wanted, self._shown, strict=True)]
            changed = np.flatnonzero(np.logical_or.reduce(differs))
        self._shown = wanted
        if not changed.size:
            return b""
        text = self._moves_and_characters(changed, wanted)
        return _BEGIN + text.encode() + _END

    def _as_shown(self, cells: Cells) -> tuple[npt.NDArray[np.uint32], ...]:
        """Characters, front and back colours, as the terminal is told them: uint32 [rows, columns] each."""
        if self._colours == "none":
            nothing = np.zeros(cells.shape, np.uint32)
            return _without_colours(cells), nothing, nothing
        as_number = _in_256 if self._colours == "256" else _in_24_bits
        characters, front, back = cells.characters, as_number(cells.front), as_number(cells.back)
        # A half block on its own colour is a space: it needs one colour less.
        empty = (characters == _SPACE) | ((characters == _UPPER_HALF) & (front == back))
        return np.where(empty, _SPACE, characters).astype(np.uint32), np.where(empty, back, front), back

    def _moves_and_characters(self, changed: npt.NDArray[np.int64], wanted: tuple[npt.NDArray[np.uint32], ...]) -> str:
        columns = wanted[0].shape[1]
        expected, front, back = -1, -1, -1
        parts = []
        lists = (values.ravel()[changed].tolist() for values in wanted)
        for cell, character, its_front, its_back in zip(changed.tolist(), *lists, strict=True):
            row, column = divmod(cell, columns)
            if cell != expected or column == 0:
                parts.append(f"\x1b[{row + 1};{column + 1}H")
            if self._colours != "none":
                if its_back != back:
                    parts.append(self._colour(its_back, 48))
                    back = its_back
                if its_front != front and character != _SPACE:
                    parts.append(self._colour(its_front, 38))
                    front = its_front
            parts.append(chr(character))
            expected = cell + 1
        return "".join(parts)

    def _colour(self, number: int, place: int) -> str:
        if self._colours == "256":
            return f"\x1b[{place};5;{number}m"
        return f"\x1b[{place};2;{number >> 16};{number >> 8 & 255};{number & 255}m"


def terminal_colours(environment: Mapping[str, str]) -> Colours:
    """What a terminal is to be sent, by its environment variables: see no-color.org, and termstandard/colors."""
    if environment.get("NO_COLOR"):
        return "none"
    true = environment.get("COLORTERM") in ("truecolor", "24bit") or environment.get("TERM", "").endswith("-direct")
    return "true" if true else "256"


def _without_colours(cells: Cells) -> npt.NDArray[np.uint32]:
    """Characters uint32 [rows, columns], with shades where there is a picture."""
    picture = cells.characters == _UPPER_HALF
    means = ((cells.front.astype(np.float64) + cells.back) @ _LUMINANCE / 2).astype(int)
    background = np.bincount(means[picture]).argmax() if picture.any() else 0
    shades = np.minimum(np.abs(means - background) * len(_SHADES) // 128, len(_SHADES) - 1)
    return np.where(picture, _SHADES[shades], cells.characters)


def _in_24_bits(colours: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    wide = colours.astype(np.uint32)
    return (wide[..., 0] << 16 | wide[..., 1] << 8 | wide[..., 2]).astype(np.uint32)


def _in_256(colours: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """The nearest of xterm's 256 colours, by the squares of the differences."""
    wide = colours.astype(np.int64)
    steps = np.abs(wide[..., None] - _LEVELS).argmin(-1)
    cube = 16 + steps @ (36, 6, 1)
    grey = np.abs(wide.mean(-1)[..., None] - _GREYS).argmin(-1)
    to_cube = np.square(wide - _LEVELS[steps]).sum(-1)
    to_grey = np.square(wide - _GREYS[grey][..., None]).sum(-1)
    return np.where(to_cube <= to_grey, cube, 232 + grey).astype(np.uint32)


def fit(frame_width: float, frame_height: float, rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of the largest picture of these proportions; a cell is twice as high as wide."""
    aspect = frame_width / frame_height
    wide = max(1, min(columns, round(2 * rows * aspect)))
    return max(1, min(rows, round(wide / aspect / 2))), wide
