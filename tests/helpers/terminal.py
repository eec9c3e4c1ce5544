"""A command at a terminal of its own, which can be typed at and closed; and as much of a screen as our output needs."""

import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from fcntl import ioctl

DEADLINE_SECONDS = 120

# Makes its standard input the controlling terminal of its session: who closes that sends SIGHUP.
_AT_THE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)


class Terminal:
    """Runs a command as the foreground of a new terminal. Use as a context: what still runs then is killed.

    Signals of `ignoring` are ignored from the start, as nohup ignores SIGHUP; None in `environment` unsets a variable.
    """

    def __init__(
        self,
        command: list[str],
        ignoring: tuple[signal.Signals, ...] = (),
        columns: int = 80,
        rows: int = 24,
        *,
        environment: Mapping[str, str | None] | None = None,
    ) -> None:
        self._master, terminal = pty.openpty()
        self.resize(columns, rows)
        # pytest-xdist gives its processes a size in their environment, which would come before that of the terminal.
        own = {"TERM": "xterm-256color", "COLUMNS": None, "LINES": None}
        variables: dict[str, str | None] = {**os.environ, **own, **(environment or {})}
        setup = "import signal; " + "".join(f"signal.signal({int(kind)}, signal.SIG_IGN); " for kind in ignoring)
        self.process = subprocess.Popen(
            [sys.executable, "-c", setup + _AT_THE_TERMINAL, *command],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            env={name: value for name, value in variables.items() if value is not None},
        )
        os.close(terminal)
        self.output = ""
        self.screen = ScreenReader()

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            self._read(0.1)

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        read = os.read(self._master, 65536)
        self.output += read.decode(errors="replace")
        self.screen.feed(read)
        return True

    def resize(self, columns: int, rows: int) -> None:
        ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def settings(self) -> list:
        return termios.tcgetattr(self._master)

    def type(self, keys: str) -> None:
        """Type at it: `\\x03` is Ctrl-C."""
        os.write(self._master, keys.encode())

    def close(self) -> None:
        """Close the window: the command gets SIGHUP, and what it prints from now on fails."""
        os.close(self._master)

    def wait(self) -> int:
        return self.process.wait(DEADLINE_SECONDS)

    def read_to_the_end(self) -> int:
        """Read what the command prints until it ends. Its exit code."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            assert time.monotonic() < deadline, self.output
            ended = self.process.poll() is not None
            try:
                if not self._read(0.1) and ended:
                    return self.process.returncode
            except OSError:
                # There is nothing left, and nobody has the terminal open any more.
                return self.wait()


_TOKEN = re.compile(r"\x1b\[([0-?]*)[ -/]*([@-~])|(\x1b.?)|([^\x1b])", re.DOTALL)
# 38 and 48 are followed by 2 and three parts, or by 5 and a number.
_COLOUR = re.compile(r"(?P<layer>[34])8;(?P<colour>2(?:;\d+){3}|5;\d+)|\d+")
# Cut off at the end of what was read.
_UNFINISHED = re.compile(r"\x1b(\[[0-?]*[ -/]*)?$")

Cell = tuple[str, str, str]
_EMPTY: Cell = (" ", "", "")


class ScreenReader:
    """Takes in bytes, and has the cells that they draw, and its modes. `drawn` counts characters."""

    def __init__(self) -> None:
        self.cells: dict[tuple[int, int], Cell] = {}
        self.modes: dict[str, bool] = {}
        self.drawn = 0
        self._row = self._column = 0
        self._front = self._back = ""
        self._left = b""

    def feed(self, data: bytes) -> None:
        data = self._left + data
        text = data.decode(errors="ignore")
        unfinished = _UNFINISHED.search(text)
        end = len(text) if unfinished is None else unfinished.start()
        # A character whose bytes have not all come is left for later, too.
        self._left = data[len(text[:end].encode()) :]
        for token in _TOKEN.finditer(text[:end]):
            if token[4] is not None:
                self._character(token[4])
            elif token[2] is not None:
                self._control(token[1], token[2])

    def line(self, row: int) -> str:
        columns = [column for at, column in self.cells if at == row]
        return "".join(self.cells.get((row, column), _EMPTY)[0] for column in range(max(columns, default=-1) + 1))

    @property
    def text(self) -> str:
        return "\n".join(self.line(row) for row in range(max((row for row, _ in self.cells), default=-1) + 1))

    def _character(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._row += 1
        else:
            self.cells[self._row, self._column] = (character, self._front, self._back)
            self._column += 1
            self.drawn += 1

    def _control(self, parameters: str, kind: str) -> None:
        if kind == "H":
            row, _, column = parameters.partition(";")
            self._row, self._column = int(row or 1) - 1, int(column or 1) - 1
        elif kind == "J":
            self.cells.clear()
        elif kind == "m":
            for colour in _COLOUR.finditer(parameters or "0"):
                if colour[0] == "0":
                    self._front = self._back = ""
                elif colour["layer"] == "3":
                    self._front = colour["colour"]
                elif colour["layer"] == "4":
                    self._back = colour["colour"]
        elif kind in "hl" and parameters.startswith("?"):
            self.modes[parameters[1:]] = kind == "h"
            if parameters == "?1049":
                self.cells.clear()
