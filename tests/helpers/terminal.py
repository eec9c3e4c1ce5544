"""A command at a terminal of its own, which can be typed at and closed."""

import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from fcntl import ioctl

DEADLINE_SECONDS = 120
_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")

# Makes its standard input the controlling terminal of its session: who closes that sends SIGHUP.
_AT_THE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)


class Terminal:
    """Runs a command as the foreground of a new terminal. Use as a context: what still runs then is killed."""

    def __init__(self, command: list[str], environment: Mapping[str, str] | None = None) -> None:
        self._master, terminal = pty.openpty()
        ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        # pytest-xdist gives its processes a size in their environment, which would come before that of the terminal.
        inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _AT_THE_TERMINAL, *command],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            env=inherited | {"TERM": "xterm-256color"} | (environment or {}),
        )
        os.close(terminal)
        self.output = ""

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
        self.output += os.read(self._master, 65536).decode(errors="replace")
        return True

    def is_quiet(self, seconds: float = 1.0) -> bool:
        """Whether the command prints nothing within some seconds."""
        return not self._read(seconds)

    @property
    def screen(self) -> str:
        """The words since the display was last drawn from its top, with single spaces."""
        return " ".join(_SEQUENCE.sub("", self.output.rpartition("\x1b[H")[2]).split())

    def is_plain(self) -> bool:
        """Whether the command has left the alternate screen, and shows the cursor."""
        last = self.output.rfind
        return last("\x1b[?1049l") >= last("\x1b[?1049h") and last("\x1b[?25h") >= last("\x1b[?25l")

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
