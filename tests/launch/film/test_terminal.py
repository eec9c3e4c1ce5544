"""A terminal shows the cells that were drawn, with few bytes, and is left as it was."""

import itertools
import re
import signal
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from screen_reader import ScreenReader
from terminal import Terminal

from launch.film.terminal import Cells, Painter, Rectangle
from launch.film.watch import fit

ROWS, COLUMNS = 4, 7

_LEVELS = (0, 95, 135, 175, 215, 255)

PALETTE = {16 + i: rgb for i, rgb in enumerate(itertools.product(_LEVELS, repeat=3))}


def random_cells(seed: int) -> Cells:
    """Cells of few colours and characters, so that some stay as they are from one to the next."""
    generator, cells = np.random.default_rng(seed), Cells(ROWS, COLUMNS)
    colours = np.array([(0, 0, 0), (250, 10, 3)], np.uint8)
    cells.characters[:] = generator.choice([ord(character) for character in " ▀a"], cells.shape)
    cells.front[:], cells.back[:] = (colours[generator.integers(0, 2, cells.shape)] for _ in range(2))
    return cells


def looks_of(cells: Cells) -> dict[tuple[int, int], tuple[str, str, str]]:
    """How each cell looks."""
    looks = {}
    for at in itertools.product(range(ROWS), range(COLUMNS)):
        front, back = (";".join(["2", *map(str, colours[at].tolist())]) for colours in (cells.front, cells.back))
        looks[at] = look(chr(cells.characters[at]), front, back)
    return looks


def look(character: str, front: str, back: str) -> tuple[str, str, str]:
    """The two colours of a cell: upper and lower half of a space or half block; letter and background otherwise."""
    if character == "a":
        return "a", front, back
    return "halves", back if character == " " else front, back


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 2**31), min_size=1, max_size=4))
def test_the_terminal_shows_what_was_drawn_last(seeds: list[int]) -> None:
    painter, reader = Painter(True), ScreenReader()
    for cells in map(random_cells, seeds):
        reader.feed(painter.paint(cells))
        wanted = looks_of(cells)
        assert {at: look(*cell) for at, cell in reader.cells.items()} == wanted
        assert painter.paint(cells) == b""


def test_what_has_not_changed_is_not_sent() -> None:
    painter, cells = Painter(True), Cells(24, 80)
    cells.picture(np.full((210, 160, 3), 90, np.uint8), Rectangle(0, 0, 23, 60))
    assert len(painter.paint(cells)) > 24 * 80
    cells.text(5, 70, "+0.53", (255, 255, 255))
    changes = painter.paint(cells)
    assert "\x1b[6;71H" in changes.decode()
    assert len(changes) < 80
    # After a clearing all of it is sent.
    assert painter.clear().endswith(b"\x1b[2J")
    assert len(painter.paint(cells)) > 24 * 80


def test_a_picture_has_two_pixels_in_a_cell_and_nothing_in_it_is_lost() -> None:
    frame = np.zeros((4, 4, 3), np.uint8)
    frame[:2, :, 0], frame[2:, :, 1] = 200, 100
    # A single bright pixel among four.
    frame[0, 0] = (200, 255, 255)
    cells = Cells(1, 4)
    cells.picture(frame, Rectangle(0, 1, 1, 2))
    assert [chr(c) for c in cells.characters[0]] == [" ", "▀", "▀", " "]
    np.testing.assert_array_equal(cells.front[0, 1:3], [(200, 64, 64), (200, 0, 0)])
    np.testing.assert_array_equal(cells.back[0, 1:3], [(0, 100, 0)] * 2)


@settings(max_examples=50, deadline=None)
@given(st.tuples(*[st.integers(0, 255)] * 3))
def test_256_colours_are_the_nearest_ones(colour: tuple[int, int, int]) -> None:
    cells, reader = Cells(1, 1), ScreenReader()
    cells.fill(Rectangle(0, 0, 1, 1), colour)
    reader.feed(Painter(False).paint(cells))
    kind, _, number = reader.cells[0, 0][2].partition(";")
    assert kind == "5"

    def distance(other: tuple[int, ...]) -> int:
        return sum((a - b) ** 2 for a, b in zip(colour, other, strict=True))

    assert distance(PALETTE[int(number)]) == min(map(distance, PALETTE.values()))


def test_a_window_of_another_size_is_drawn_whole() -> None:
    painter, reader = Painter(True), ScreenReader()
    reader.feed(painter.paint(Cells(2, 3)))
    reader.feed(painter.paint(Cells(3, 4)))
    assert len(reader.cells) == 12


@pytest.mark.parametrize(
    ("size", "rows", "columns", "fitted"),
    [
        ((4, 3), 23, 200, (23, 61)),
        ((4, 3), 100, 80, (30, 80)),
        ((1, 1), 10, 10, (5, 10)),
        ((4, 3), 1, 1, (1, 1)),
    ],
)
def test_a_picture_is_as_large_as_there_is_room(
    size: tuple[int, int], rows: int, columns: int, fitted: tuple[int, int]
) -> None:
    assert fit(*size, rows, columns) == fitted


# Shows its size, and each key; q ends it, x is a mistake in it.
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
            screen.send(f"<{key}>".encode())
sys.exit(130)
"""

# Sends frames while the terminal is ready, 30 or as many as 2 seconds allow, and prints their number and the seconds.
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
def test_the_terminal_is_restored_after_any_end(end: str | signal.Signals, code: int, answers: bool) -> None:
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


def test_keys_are_separated_from_replies_of_the_terminal() -> None:
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


def test_ctrl_z_does_not_leave_the_display_behind() -> None:
    with Terminal(program(SCRIPT)) as terminal:
        terminal.until(lambda: STARTED in terminal.screen.text)
        terminal.type("\x1aq")
        assert terminal.read_to_the_end() == 0
        assert terminal.output.count("\x1b[?1049h") == 1


@pytest.mark.parametrize("answers", [True, False])
def test_a_terminal_that_does_not_answer_any_more_is_sent_little(answers: bool) -> None:
    with Terminal([*program(FLOOD), str(answers)], answers=answers) as terminal:
        terminal.until(lambda: "1049" in terminal.screen.modes)
        # An answer, which says that it knows the question, and a key.
        terminal.type("\x1b[1;1Rg")
        assert terminal.read_to_the_end() == 0
        sent, seconds = map(float, re.findall(r"sent (\d+) times in ([\d.]+) seconds", terminal.output)[0])
        # Two frames are under way at most; after a second without a reply as many again.
        assert sent == 30 if answers else sent <= 2 * (int(seconds) + 1)
