"""A terminal as a display: cells with characters and colours, the bytes that change them, and its keys."""

import os
import re
import select
import signal
import termios
import time
import tty
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

Colour = tuple[int, int, int]

_SPACE, _UPPER_HALF = ord(" "), ord("▀")
# The cube of xterm's 256 colours has these levels, from colour 16 on.
_LEVELS = np.array([0, 95, 135, 175, 215, 255])
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
    terminal. `changed` is set when the whole display must be drawn again, because the window was resized; the caller
    resets it. Ctrl-Z does nothing.

    Raises:
        OSError: this process has no terminal.
    """

    def __init__(self) -> None:
        self._terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
        self._settings = termios.tcgetattr(self._terminal)
        self._input = b""
        self._requests, self._last_request = 0, 0.0
        self._sends_requests, self._replied = True, False
        self.interrupted = False
        self.changed = True

    def __enter__(self) -> "Screen":
        kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH)
        # Signals that are ignored from the start, as under nohup, stay ignored.
        self._before = {kind: signal.getsignal(kind) for kind in kinds if signal.getsignal(kind) != signal.SIG_IGN}
        for kind in self._before:
            signal.signal(kind, self._on_signal)
        with suppress(termios.error):
            tty.setcbreak(self._terminal, termios.TCSANOW)
            settings = termios.tcgetattr(self._terminal)
            # Ctrl-S would block the output, and with it the exit; Ctrl-Z would leave the display as it is.
            settings[0] &= ~termios.IXON
            settings[6][termios.VSUSP] = b"\0"
            termios.tcsetattr(self._terminal, termios.TCSANOW, settings)
        self._write(_ENTER)
        return self

    def __exit__(self, *_: object) -> None:
        # The handlers stay until the terminal is restored: a signal cannot interrupt that.
        self._restore()
        os.close(self._terminal)
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

    def _restore(self) -> None:
        self._write(_LEAVE)
        # Later replies would appear as input of the shell.
        deadline = time.monotonic() + _REPLY_SECONDS
        while self._replied and self._requests and (left := deadline - time.monotonic()) > 0:
            self.wait(left)
        self._requests = 0
        with suppress(termios.error):
            termios.tcflush(self._terminal, termios.TCIFLUSH)
            termios.tcsetattr(self._terminal, termios.TCSANOW, self._settings)

    def _on_signal(self, kind: int, _frame: object) -> None:
        if kind == signal.SIGWINCH:
            self.changed = True
        else:
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
        true_colours: the terminal has 16 million colours, and not 256.
    """

    def __init__(self, true_colours: bool) -> None:
        self._true_colours = true_colours
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
            if its_back != back:
                parts.append(self._colour(its_back, 48))
            if its_front != front:
                parts.append(self._colour(its_front, 38))
            parts.append(chr(character))
            expected, front, back = cell + 1, its_front, its_back
        return _BEGIN + "".join(parts).encode() + _END

    def _as_shown(self, cells: Cells) -> npt.NDArray[np.uint32]:
        """Character, front and back colour as numbers of the terminal: uint32 [rows, columns, 3]."""
        as_number = _in_24_bits if self._true_colours else _in_256
        return np.stack([cells.characters, as_number(cells.front), as_number(cells.back)], axis=-1)

    def _colour(self, number: int, place: int) -> str:
        if not self._true_colours:
            return f"\x1b[{place};5;{number}m"
        return f"\x1b[{place};2;{number >> 16};{number >> 8 & 255};{number & 255}m"


def _in_24_bits(colours: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    return (colours @ np.array([1 << 16, 1 << 8, 1])).astype(np.uint32)


def _in_256(colours: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """The nearest colour of xterm's cube."""
    steps = np.abs(colours.astype(np.int64)[..., None] - _LEVELS).argmin(-1)
    return (16 + steps @ (36, 6, 1)).astype(np.uint32)
