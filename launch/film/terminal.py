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
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import FrameType
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

Colours = Literal["true", "256", "none"]
Colour = tuple[int, int, int]

_SPACE, _UPPER_HALF = ord(" "), ord("▀")
# Without colours: from the shade of the background to the one that differs most from it.
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
# A request for the cursor's position. The answer comes when the terminal has processed all bytes before it.
_QUESTION = b"\x1b[6n"
_ANSWER = re.compile(rb"\x1b\[\d+;\d+R")
_ARROWS = {b"\x1b[C": "right", b"\x1b[D": "left", b"\x1bOC": "right", b"\x1bOD": "left"}
_SEQUENCE = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO.|\x1b")
_UNFINISHED = re.compile(rb"\x1b(\[[0-?]*[ -/]*|O)?$")

# Unprocessed bytes, beside one frame. A slow connection then shows fewer frames, but none late.
_MOST_BYTES_UNDER_WAY = 16_384
_ANSWER_SECONDS = 1.0
_LEAVE_SECONDS = 1.0


class Screen:
    """The whole terminal of this process as a display. On exit it is as before, also after signals and errors.

    Use as a context, and call `wait` regularly. Signals only set `interrupted`. `changed` is set when the whole display
    must be drawn again, because the window was resized or the program suspended; the caller resets it. Standard error
    is held back until the end.

    Raises:
        OSError: this process has no terminal.
    """

    def __init__(self) -> None:
        # Opened again, because the shell shares the flags of its own descriptor, and O_NONBLOCK would stay.
        self._terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        self._settings = termios.tcgetattr(self._terminal)
        self._pending = bytearray()
        self._read = b""
        # Time of each open question, and the number of bytes before it.
        self._questions: deque[tuple[float, int]] = deque()
        self._answers: bool | None = None
        self._suspended = self._continued = self._gone = self._ended = False
        self.changed = True

    def __enter__(self) -> "Screen":
        handlers = {
            signal.SIGINT: self._end,
            signal.SIGTERM: self._end,
            signal.SIGHUP: self._end,
            signal.SIGWINCH: self._resize,
            signal.SIGTSTP: self._stop,
            signal.SIGCONT: self._continue,
        }
        # Signals that are ignored from the start, as under nohup, stay ignored.
        self._before = {kind: signal.getsignal(kind) for kind in handlers}
        for kind, before in self._before.items():
            if before != signal.SIG_IGN:
                signal.signal(kind, handlers[kind])
        self._errors = _HeldErrors()
        self._set_up()
        return self

    def __exit__(self, *_: object) -> None:
        # The handlers stay until the terminal is restored: a signal cannot interrupt that.
        self._restore()
        os.close(self._terminal)
        self._errors.show()
        for kind, before in self._before.items():
            signal.signal(kind, before)

    @property
    def interrupted(self) -> bool:
        """Whether a signal has requested the end, or the terminal is closed."""
        return self._ended or self._gone

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        columns = rows = 0
        with suppress(OSError):
            columns, rows = os.get_terminal_size(self._terminal)
        return (rows, columns) if rows and columns else (24, 80)

    @property
    def ready(self) -> bool:
        """Whether the terminal has processed enough to be sent more."""
        if self._questions and time.monotonic() - self._questions[0][0] > _ANSWER_SECONDS:
            # A terminal that has never answered does not know the question.
            self._answers = self._answers or False
            self._questions.clear()
        return not self._pending and sum(size for _, size in self._questions) <= _MOST_BYTES_UNDER_WAY

    def send(self, data: bytes) -> None:
        """Send bytes without waiting for the terminal."""
        if data:
            self._pending += data
            if self._answers is not False:
                self._questions.append((time.monotonic(), len(data)))
                self._pending += _QUESTION
            self._flush()

    def wait(self, seconds: float) -> list[str]:
        """Wait for keys: characters, "left" and "right"."""
        writes = [self._terminal] if self._pending else []
        readable, writable, _ = select.select([self._terminal], writes, [], max(0.0, seconds))
        if writable:
            self._flush()
        keys = list(self._keys()) if readable else []
        if self._suspended:
            self._suspend()
        elif self._continued:
            self._set_up()
        return keys

    def _keys(self) -> Iterator[str]:
        try:
            read = os.read(self._terminal, 65_536)
        except BlockingIOError:
            return
        except OSError:
            read = b""
        if not read:
            self._gone = True
            return
        self._read, answers = _ANSWER.subn(b"", self._read + read)
        self._answers = True if answers else self._answers
        for _ in range(min(answers, len(self._questions))):
            self._questions.popleft()
        unfinished = _UNFINISHED.search(self._read)
        typed = self._read[: unfinished.start()] if unfinished else self._read
        self._read = self._read[len(typed) :]
        while typed:
            sequence = _SEQUENCE.match(typed)
            if sequence is None:
                yield chr(typed[0])
            elif sequence[0] in _ARROWS:
                yield _ARROWS[sequence[0]]
            typed = typed[sequence.end() if sequence else 1 :]

    def _flush(self) -> None:
        try:
            del self._pending[: os.write(self._terminal, self._pending)]
        except BlockingIOError:
            pass
        except OSError:
            self._pending.clear()
            self._gone = True

    def _set_up(self) -> None:
        self._continued = False
        with suppress(termios.error):
            tty.setcbreak(self._terminal, termios.TCSANOW)
            # Without this, Ctrl-S would block the output, and with it the exit.
            settings = termios.tcgetattr(self._terminal)
            settings[0] &= ~termios.IXON
            termios.tcsetattr(self._terminal, termios.TCSANOW, settings)
        self._pending[:] = _ENTER
        self._flush()
        self.changed = True

    def _restore(self) -> None:
        # Pending bytes may end within a sequence; the beginning of the next one terminates it.
        self._pending[:] = _LEAVE
        self._flush()
        deadline = time.monotonic() + _LEAVE_SECONDS
        # Later answers would appear as input of the shell.
        while not self._gone and (self._pending or (self._answers and self._questions)):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            writes = [self._terminal] if self._pending else []
            readable, writable, _ = select.select([self._terminal], writes, [], left)
            if readable:
                list(self._keys())
            if writable:
                self._flush()
        self._questions.clear()
        with suppress(termios.error):
            termios.tcflush(self._terminal, termios.TCIFLUSH)
            termios.tcsetattr(self._terminal, termios.TCSANOW, self._settings)

    def _suspend(self) -> None:
        self._suspended = False
        self._restore()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)
        self._set_up()

    def _end(self, _signal: int, _frame: FrameType | None) -> None:
        self._ended = True

    def _resize(self, _signal: int, _frame: FrameType | None) -> None:
        self.changed = True

    def _stop(self, _signal: int, _frame: FrameType | None) -> None:
        self._suspended = True

    def _continue(self, _signal: int, _frame: FrameType | None) -> None:
        self._continued = True


class _HeldErrors:
    """Redirects standard error to a file until `show`, if it is a terminal."""

    def __init__(self) -> None:
        self._stderr = os.dup(2) if os.isatty(2) else None
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        if self._stderr is not None:
            os.dup2(self._file.fileno(), 2)

    def show(self) -> None:
        if self._stderr is not None:
            sys.stderr.flush()
            os.dup2(self._stderr, 2)
            os.close(self._stderr)
            self._file.seek(0)
            with suppress(OSError):
                os.write(2, self._file.read())
        self._file.close()


class Rectangle(NamedTuple):
    """A part of a grid of cells."""

    row: int
    column: int
    rows: int
    columns: int


class Cells:
    """A grid of cells with a character, its colour and the colour behind it. Initially black."""

    def __init__(self, rows: int, columns: int) -> None:
        self.characters = np.full((rows, columns), _SPACE, np.uint32)
        self.front = np.zeros((rows, columns, 3), np.uint8)
        self.back = np.zeros((rows, columns, 3), np.uint8)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.characters.shape
        return rows, columns

    def picture(self, frame: npt.NDArray[np.uint8], at: Rectangle) -> None:
        """Draw a frame uint8 [height, width, 3] over a rectangle, two pixels to a cell: one above the other."""
        place = slice(at.row, at.row + at.rows), slice(at.column, at.column + at.columns)
        # Each pixel is the mean of its area, so that small things are dimmed, and do not flicker.
        resized = Image.fromarray(frame).resize((at.columns, 2 * at.rows), Image.Resampling.BOX)
        pixels = np.asarray(resized).reshape(at.rows, 2, at.columns, 3)
        self.characters[place] = _UPPER_HALF
        self.front[place], self.back[place] = pixels[:, 0], pixels[:, 1]

    def text(self, row: int, column: int, text: str, colour: Colour) -> None:
        """Write a line, clipped at the edges, and keep the colours behind it."""
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
    """Computes the bytes that change a terminal from one grid of cells to the next.

    Args:
        colours: of the terminal. `none` draws pictures with characters.
    """

    def __init__(self, colours: Colours) -> None:
        self._colours = colours
        self._shown: tuple[npt.NDArray[np.uint32], ...] | None = None

    def clear(self) -> bytes:
        """Bytes that clear the terminal. The next `paint` sends all cells."""
        self._shown = None
        return b"\x1b[0m\x1b[2J"

    def paint(self, cells: Cells) -> bytes:
        """Bytes that show `cells`, for those that have changed."""
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
        """Characters, front and back colours as numbers of the terminal: uint32 [rows, columns] each."""
        if self._colours == "none":
            nothing = np.zeros(cells.shape, np.uint32)
            return _without_colours(cells), nothing, nothing
        as_number = _in_256 if self._colours == "256" else _in_24_bits
        characters, front, back = cells.characters, as_number(cells.front), as_number(cells.back)
        # A half block on its own colour is sent as a space, which needs one colour less.
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
