"""A screen leaves its terminal as it was, whatever ends it, and sends no more than the terminal takes."""

import re
import signal
import sys

import pytest
from terminal import Terminal

# Shows its size, and each key; q ends it, x is a mistake in it, w is a warning.
SCRIPT = """
import sys
from launch.film.terminal import Screen

with Screen() as screen:
    while not screen.interrupted:
        keys = screen.wait(0.05)
        if screen.changed:
            screen.changed = False
            screen.send(b"\\x1b[2J\\x1b[1;1Hrows and columns %d %d. " % screen.size)
        for key in keys:
            if key == "q":
                sys.exit(0)
            if key == "x":
                raise RuntimeError("a mistake")
            if key == "w":
                print("a warning", file=sys.stderr)
            screen.send(f"<{key}>".encode())
sys.exit(130)
"""
# Sends what it may in some moments, 30 times where it is answered, and says how often that was, in how many seconds.
FLOOD = """
import sys
import time
from launch.film.terminal import Screen

sent, answers = 0, sys.argv[1] == "True"
with Screen() as screen:
    while not screen.wait(0.05):
        pass
    began = time.monotonic()
    while sent < 30 and (answers or time.monotonic() < began + 2):
        if screen.ready:
            screen.send(b"\x1b[m" * 2_500)
            sent += 1
        screen.wait(0.005)
    took = time.monotonic() - began
print(f"sent {sent} times in {took:.3f} seconds.")
"""
STARTED = "rows and columns 24 80."


def program(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def check_that_it_is_as_before(terminal: Terminal, settings: list) -> None:
    assert terminal.screen.modes == {"1049": False, "25": True, "7": True, "2026": False}
    assert terminal.settings() == settings


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("q", 0),
        ("\x03", 130),
        (signal.SIGTERM, 130),
        (signal.SIGHUP, 130),
        ("x", 1),
    ],
)
def test_whatever_ends_it_the_terminal_is_as_it_was(end: str | signal.Signals, code: int, answers: bool) -> None:
    # From Python 3.13 on tracebacks have colours, in the middle of their last line too.
    with Terminal(program(SCRIPT), answers=answers, environment={"PYTHON_COLORS": "0"}) as terminal:
        settings = terminal.settings()
        terminal.until(lambda: STARTED in terminal.screen.text)
        assert terminal.screen.modes == {"1049": True, "25": False, "7": False}
        # Keys are not shown by the terminal itself.
        assert terminal.settings() != settings
        if isinstance(end, str):
            terminal.type(end)
        else:
            terminal.process.send_signal(end)
        assert terminal.read_to_the_end() == code
        check_that_it_is_as_before(terminal, settings)
        assert ("RuntimeError: a mistake" in terminal.output) == (end == "x")


def test_a_terminal_that_is_closed_ends_it() -> None:
    # The signal is ignored, as under nohup: what is read and written says it, too.
    with Terminal(program(SCRIPT), ignoring=(signal.SIGHUP,)) as terminal:
        terminal.until(lambda: STARTED in terminal.screen.text)
        terminal.close()
        assert terminal.wait() == 130


def test_keys_are_told_from_what_the_terminal_says() -> None:
    with Terminal(program(SCRIPT)) as terminal:
        terminal.until(lambda: STARTED in terminal.screen.text)
        # Arrows in both of their modes, an answer, other keys; one sequence comes in parts.
        terminal.type("a\x1b[C\x1bOD\x1b[24;80R\x1b[15~\x1b[1;5Cb\x1b")
        terminal.until(lambda: "<b>" in terminal.screen.text)
        terminal.type("[")
        terminal.type("D. ")
        terminal.until(lambda: "< >" in terminal.screen.text)
        assert terminal.screen.text.partition(". ")[2] == "<a><right><left><b><left><.>< >"


def test_another_size_is_noticed() -> None:
    with Terminal(program(SCRIPT)) as terminal:
        terminal.until(lambda: STARTED in terminal.screen.text)
        terminal.resize(100, 30)
        terminal.until(lambda: "rows and columns 30 100" in terminal.screen.text)


def test_a_suspended_program_gives_the_terminal_back_meanwhile() -> None:
    with Terminal(program(SCRIPT)) as terminal:
        terminal.until(lambda: STARTED in terminal.screen.text)
        terminal.type("\x1a")
        # It has no shell that it could stop in favour of, and goes on at once.
        terminal.until(lambda: terminal.output.count("\x1b[?1049h") == 2 and STARTED in terminal.screen.text)
        assert terminal.output.index("\x1b[?1049l") < terminal.output.rindex("\x1b[?1049h")
        terminal.type("q")
        assert terminal.read_to_the_end() == 0


def test_warnings_are_shown_at_the_end() -> None:
    with Terminal(program(SCRIPT)) as terminal:
        terminal.until(lambda: STARTED in terminal.screen.text)
        terminal.type("w")
        terminal.until(lambda: "<w>" in terminal.screen.text)
        assert "a warning" not in terminal.output
        terminal.type("q")
        assert terminal.read_to_the_end() == 0
        assert terminal.output.index("\x1b[?1049l") < terminal.output.index("a warning")


@pytest.mark.parametrize("answers", [True, False])
def test_a_terminal_that_does_not_answer_any_more_is_sent_little(answers: bool) -> None:
    with Terminal([*program(FLOOD), str(answers)], answers=answers) as terminal:
        terminal.until(lambda: "1049" in terminal.screen.modes)
        # An answer, which says that it knows the question, and a key.
        terminal.type("\x1b[1;1Rg")
        assert terminal.read_to_the_end() == 0
        sent, seconds = map(float, re.findall(r"sent (\d+) times in ([\d.]+) seconds", terminal.output)[0])
        # Two are on their way at most; after a second without an answer as many again.
        assert sent == 30 if answers else sent <= 3 * (int(seconds) + 1)
