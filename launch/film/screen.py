"""The whole terminal as a screen to draw on, and its keys. Whatever ends the program, the terminal is as it was."""

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
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType

# The alternate screen, no cursor, no wrapping at the last column; and back.
_ENTER = b"\x1b[?1049h\x1b[?25l\x1b[?7l"
_LEAVE = b"\x1b[?2026l\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
# Where is the cursor? The answer comes when all that was sent before has been taken in.
_QUESTION = b"\x1b[6n"
_ANSWER = re.compile(rb"\x1b\[\d+;\d+R")
_ARROWS = {b"\x1b[C": "right", b"\x1b[D": "left", b"\x1bOC": "right", b"\x1bOD": "left"}
_SEQUENCE = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO.|\x1b")
_UNFINISHED = re.compile(rb"\x1b(\[[0-?]*[ -/]*|O)?$")

# On their way to the terminal, beside one frame. Over a slow connection there are then fewer frames, but none is old.
_MOST_BYTES_UNDER_WAY = 16_384
_ANSWER_SECONDS = 1.0
_LEAVE_SECONDS = 1.0


class Screen:
    """The terminal of this process. Use as a context, call `wait` all the time, and go by what it sets.

    No signal interrupts what goes on: see `interrupted`. `changed` says that all is to be drawn anew, since the window
    has another size or the program was suspended; who draws resets it. What is written to standard error meanwhile is
    shown at the end.

    Raises:
        OSError: this process has no terminal.
    """

    def __init__(self) -> None:
        # Opened anew: that it is not waited for must not become a property of the shell's.
        self._terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        self._settings = termios.tcgetattr(self._terminal)
        self._pending = bytearray()
        self._read = b""
        # When, and of how many bytes before it.
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
        # A process that ignores a signal from its start, as under nohup, goes on ignoring it.
        self._before = {kind: signal.getsignal(kind) for kind in handlers}
        for kind, before in self._before.items():
            if before != signal.SIG_IGN:
                signal.signal(kind, handlers[kind])
        self._errors = _HeldErrors()
        self._set_up()
        return self

    def __exit__(self, *_: object) -> None:
        # Signals that come now are taken note of, and interrupt nothing.
        self._restore()
        os.close(self._terminal)
        self._errors.show()
        for kind, before in self._before.items():
            signal.signal(kind, before)

    @property
    def interrupted(self) -> bool:
        """Whether a signal has asked for the end, or the terminal is gone."""
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
        """Whether the terminal has taken in so much that it can be sent more."""
        if self._questions and time.monotonic() - self._questions[0][0] > _ANSWER_SECONDS:
            # One that has never answered does not know the question.
            self._answers = self._answers or False
            self._questions.clear()
        return not self._pending and sum(size for _, size in self._questions) <= _MOST_BYTES_UNDER_WAY

    def send(self, data: bytes) -> None:
        """Send bytes. Nothing waits until the terminal takes them."""
        if data:
            self._pending += data
            if self._answers is not False:
                self._questions.append((time.monotonic(), len(data)))
                self._pending += _QUESTION
            self._flush()

    def wait(self, seconds: float) -> list[str]:
        """Wait so long, or until keys are typed: characters, and the words left and right."""
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
            # Ctrl-S would hold the output back, and with it the way out.
            settings = termios.tcgetattr(self._terminal)
            settings[0] &= ~termios.IXON
            termios.tcsetattr(self._terminal, termios.TCSANOW, settings)
        self._pending[:] = _ENTER
        self._flush()
        self.changed = True

    def _restore(self) -> None:
        # What is cut off in the midst of a sequence is ended by the beginning of the next one.
        self._pending[:] = _LEAVE
        self._flush()
        deadline = time.monotonic() + _LEAVE_SECONDS
        # Answers that come later would be typed into the shell.
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
    """Standard error goes to a file from here on, if it would be seen on the screen, until it is shown."""

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
