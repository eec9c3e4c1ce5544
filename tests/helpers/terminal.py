"""A command at a terminal of its own, which can be typed at and closed."""

import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from fcntl import ioctl

DEADLINE_SECONDS = 120

# Makes its standard input the controlling terminal of its session: who closes that sends SIGHUP.
_AT_THE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)


class Terminal:
    """Runs a command as the foreground of a new terminal. Use as a context: what still runs then is killed.

    Args:
        command: and its arguments.
        ignoring: signals that are ignored from the start, as nohup ignores SIGHUP.
        columns: of the terminal.
    """

    def __init__(self, command: list[str], ignoring: tuple[signal.Signals, ...] = (), columns: int = 80) -> None:
        self._master, terminal = pty.openpty()
        ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        setup = "import signal; " + "".join(f"signal.signal({int(kind)}, signal.SIG_IGN); " for kind in ignoring)
        self.process = subprocess.Popen(
            [sys.executable, "-c", setup + _AT_THE_TERMINAL, *command],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color"},
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
        """Read what the command prints until a condition holds."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            if select.select([self._master], [], [], 0.1)[0]:
                self.output += os.read(self._master, 65536).decode(errors="replace")

    def type(self, keys: str) -> None:
        """Type at it: `\\x03` is Ctrl-C."""
        os.write(self._master, keys.encode())

    def close(self) -> None:
        """Close the window: the command gets SIGHUP, and what it prints from now on fails."""
        os.close(self._master)

    def wait(self) -> int:
        """The exit code of the command, once it has ended."""
        return self.process.wait(DEADLINE_SECONDS)
