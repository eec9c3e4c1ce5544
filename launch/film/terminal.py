"""A terminal as a display: cells with characters and colours, the bytes that change them, and its keys."""

import os
import re
import select
import signal
import sys
import tempfile
import termios
import time
import tty
from collections.abc import Mapping
from contextlib import suppress
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

Colours = Literal["true", "256", "none"]
Colour = tuple[int, int, int]

_SPACE, _UPPER_HALF = ord(" "), ord("▀")
# Without colours: from the shade of the background to the most different one.
_SHADES = np.array([ord(character) for character in " .:-=+*#%@"], np.uint32)
_LUMINANCE = np.array([0.299, 0.587, 0.114])
# xterm's 256 colours: a cube of these levels from 16 on, and a ramp of greys from 232 on.
_LEVELS = np.array([0, 95, 135, 175, 215, 255])
_GREYS = np.arange(8, 239, 10)
# Synchronised output: the terminal shows a frame at once, or ignores the sequence.
_BEGIN, _END = b"\x1b[?2026h", b"\x1b[?2026l"

# The alternate screen, no cursor, no wrapping at the last column; and back.
_ENTER = b"\x1b[?1049h\x1b[?25l\x1b[?7l"
_LEAVE = b"\x1b[?2026l\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
# A request for the cursor's position. The terminal replies when it has processed all earlier bytes.
_POSITION_REQUEST = b"\x1b[6n"
_POSITION = re.compile(rb"\x1b\[\d+;\d+R")
_ARROWS = {b"\x1b[C": "right", b"\x1b[D": "left", b"\x1bOC": "right", b"\x1bOD": "left"}
# One key or sequence. The beginning of a sequence does not match before its end has arrived.
_INPUT = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO.|\x1b(?=[^\[O])|[^\x1b]", re.DOTALL)

# Frames that the terminal has not processed yet. A slow connection shows fewer frames, but none late.
_MOST_FRAMES_UNDER_WAY = 2
_REPLY_SECONDS = 1.0


class Screen:
    """The whole terminal of this process as a display. On exit it is restored, also after signals and errors.

    Use as a context, and call `wait` regularly. `interrupted` is set by signals that request the end, and by a closed
    terminal. `changed` is set when the whole display must be drawn again, because the window was resized or the program
    suspended; the caller resets it. Standard error is held back until the end.

    Raises:
        OSError: this process has no terminal.
    """

    def __init__(self) -> None:
        self._terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
        self._settings = termios.tcgetattr(self._terminal)
        self._input = b""
        self._requests, self._last_request = 0, 0.0
        self._sends_requests, self._replied = True, False
        self._suspended = self._continued = False
        self.interrupted = False
        self.changed = True

    def __enter__(self) -> "Screen":
        kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
        # Signals that are ignored from the start, as under nohup, stay ignored.
        self._before = {kind: signal.getsignal(kind) for kind in kinds if signal.getsignal(kind) != signal.SIG_IGN}
        for kind in self._before:
            signal.signal(kind, self._on_signal)
        self._stderr = os.dup(2) if os.isatty(2) else None
        if self._stderr is not None:
            self._held = tempfile.TemporaryFile()
            os.dup2(self._held.fileno(), 2)
        self._set_up()
        return self

    def __exit__(self, *_: object) -> None:
        # The handlers stay until the terminal is restored: a signal cannot interrupt that.
        self._restore()
        os.close(self._terminal)
        if self._stderr is not None:
            sys.stderr.flush()
            os.dup2(self._stderr, 2)
            os.close(self._stderr)
            self._held.seek(0)
            with suppress(OSError), self._held:
                os.write(2, self._held.read())
        for kind, before in self._before.items():
            signal.signal(kind, before)

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        columns = rows = 0
        with suppress(OSError):
            columns, rows = os.get_terminal_size(self._terminal)
        return (rows, columns) if rows and columns else (24, 80)

    @property
    def ready(self) -> bool:
        """Whether the terminal has processed enough for another frame."""
        if self._requests and time.monotonic() - self._last_request > _REPLY_SECONDS:
            # A terminal that has never replied does not know the request.
            self._requests, self._sends_requests = 0, self._replied
        return self._requests < _MOST_FRAMES_UNDER_WAY

    def send(self, frame: bytes) -> None:
        """Send the bytes of a frame."""
        if frame and self._sends_requests:
            self._requests, self._last_request = self._requests + 1, time.monotonic()
            frame += _POSITION_REQUEST
        self._write(frame)

    def wait(self, seconds: float) -> list[str]:
        """Wait for keys: characters, "left" and "right"."""
        keys = self._read(seconds)
        if self._suspended:
            self._suspended = False
            self._restore()
            handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTSTP)
            signal.signal(signal.SIGTSTP, handler)
            self._set_up()
        elif self._continued:
            self._set_up()
        return keys

    def _read(self, seconds: float) -> list[str]:
        if not select.select([self._terminal], [], [], max(0.0, seconds))[0]:
            return []
        read = b""
        with suppress(OSError):
            read = os.read(self._terminal, 65_536)
        if not read:
            self._closed()
        keys = []
        self._input += read
        while found := _INPUT.match(self._input):
            self._input = self._input[found.end() :]
            if _POSITION.match(found[0]):
                self._requests, self._replied = max(0, self._requests - 1), True
            elif found[0] in _ARROWS:
                keys.append(_ARROWS[found[0]])
            elif len(found[0]) == 1:
                keys.append(chr(found[0][0]))
        return keys

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._terminal, data) :]
        except OSError:
            self._closed()

    def _closed(self) -> None:
        self.interrupted, self._requests = True, 0

    def _set_up(self) -> None:
        self._continued = False
        with suppress(termios.error):
            tty.setcbreak(self._terminal, termios.TCSANOW)
            # Without this, Ctrl-S would block the output, and with it the exit.
            settings = termios.tcgetattr(self._terminal)
            settings[0] &= ~termios.IXON
            termios.tcsetattr(self._terminal, termios.TCSANOW, settings)
        self._write(_ENTER)
        self.changed = True

    def _restore(self) -> None:
        self._write(_LEAVE)
        # Later replies would appear as input of the shell.
        deadline = time.monotonic() + _REPLY_SECONDS
        while self._replied and self._requests and (left := deadline - time.monotonic()) > 0:
            self._read(left)
        self._requests = 0
        with suppress(termios.error):
            termios.tcflush(self._terminal, termios.TCIFLUSH)
            termios.tcsetattr(self._terminal, termios.TCSANOW, self._settings)

    def _on_signal(self, kind: int, _frame: object) -> None:
        match kind:
            case signal.SIGWINCH:
                self.changed = True
            case signal.SIGTSTP:
                self._suspended = True
            case signal.SIGCONT:
                self._continued = True
            case _:
                self.interrupted = True


class Rectangle(NamedTuple):
    """A part of a grid of cells."""

    row: int
    column: int
    rows: int
    columns: int


class Cells:
    """A grid of cells with a character, its colour and the colour behind it. Initially black."""

    def __init__(self, rows: int, columns: int) -> None:
        self.shape = rows, columns
        self.characters = np.full(self.shape, _SPACE, np.uint32)
        self.front = np.zeros((rows, columns, 3), np.uint8)
        self.back = np.zeros((rows, columns, 3), np.uint8)

    def picture(self, frame: npt.NDArray[np.uint8], at: Rectangle) -> None:
        """Draw a frame uint8 [height, width, 3] over a rectangle, two pixels to a cell: one above the other."""
        place = slice(at.row, at.row + at.rows), slice(at.column, at.column + at.columns)
        # Each pixel is the mean of its area, so that small objects are dimmed instead of flickering.
        resized = Image.fromarray(frame).resize((at.columns, 2 * at.rows), Image.Resampling.BOX)
        pixels = np.asarray(resized).reshape(at.rows, 2, at.columns, 3)
        self.characters[place] = _UPPER_HALF
        self.front[place], self.back[place] = pixels[:, 0], pixels[:, 1]

    def text(self, row: int, column: int, text: str, colour: Colour) -> None:
        """Write a line, clipped at the edges, and keep the colours behind it."""
        rows, columns = self.shape
        if row < rows and column < columns:
            text, column = text[max(0, -column) :], max(0, column)
            characters = [ord(character) for character in text[: columns - column]]
            place = row, slice(column, column + len(characters))
            self.characters[place], self.front[place] = characters, colour

    def fill(self, at: Rectangle, colour: Colour) -> None:
        """Set the colour behind a rectangle."""
        self.back[at.row : at.row + at.rows, at.column : at.column + at.columns] = colour


class Painter:
    """Computes the bytes that change a terminal from one grid of cells to the next.

    Args:
        colours: of the terminal. `none` draws pictures with characters.
    """

    def __init__(self, colours: Colours) -> None:
        self._colours = colours
        self._shown: npt.NDArray[np.uint32] | None = None

    def clear(self) -> bytes:
        """Bytes that clear the terminal. The next `paint` sends all cells."""
        self._shown = None
        return b"\x1b[0m\x1b[2J"

    def paint(self, cells: Cells) -> bytes:
        """Bytes that show `cells`, for those that have changed."""
        wanted = self._as_shown(cells)
        if self._shown is None or self._shown.shape != wanted.shape:
            changed = np.arange(cells.characters.size)
        else:
            changed = np.flatnonzero((wanted != self._shown).any(-1))
        self._shown = wanted
        if not changed.size:
            return b""
        parts, expected, front, back = [], -1, -1, -1
        for cell, values in zip(changed.tolist(), wanted.reshape(-1, 3)[changed].tolist(), strict=True):
            character, its_front, its_back = values
            row, column = divmod(cell, cells.shape[1])
            if cell != expected or column == 0:
                parts.append(f"\x1b[{row + 1};{column + 1}H")
            if self._colours != "none":
                if its_back != back:
                    parts.append(self._colour(its_back, 48))
                if its_front != front:
                    parts.append(self._colour(its_front, 38))
            parts.append(chr(character))
            expected, front, back = cell + 1, its_front, its_back
        return _BEGIN + "".join(parts).encode() + _END

    def _as_shown(self, cells: Cells) -> npt.NDArray[np.uint32]:
        """Character, front and back colour as numbers of the terminal: uint32 [rows, columns, 3]."""
        if self._colours == "none":
            nothing = np.zeros(cells.shape, np.uint32)
            return np.stack([_without_colours(cells), nothing, nothing], axis=-1)
        as_number = _in_256 if self._colours == "256" else _in_24_bits
        return np.stack([cells.characters, as_number(cells.front), as_number(cells.back)], axis=-1)

    def _colour(self, number: int, place: int) -> str:
        if self._colours == "256":
            return f"\x1b[{place};5;{number}m"
        return f"\x1b[{place};2;{number >> 16};{number >> 8 & 255};{number & 255}m"


def terminal_colours(environment: Mapping[str, str]) -> Colours:
    """The colours of a terminal by its environment variables; see no-color.org and termstandard/colors."""
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
    return (colours @ np.array([1 << 16, 1 << 8, 1])).astype(np.uint32)


def _in_256(colours: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """The nearest of xterm's 256 colours, by the squares of the differences."""
    wide = colours.astype(np.int64)
    steps = np.abs(wide[..., None] - _LEVELS).argmin(-1)
    cube = 16 + steps @ (36, 6, 1)
    grey = np.abs(wide.mean(-1)[..., None] - _GREYS).argmin(-1)
    to_cube = np.square(wide - _LEVELS[steps]).sum(-1)
    to_grey = np.square(wide - _GREYS[grey][..., None]).sum(-1)
    return np.where(to_cube <= to_grey, cube, 232 + grey).astype(np.uint32)
