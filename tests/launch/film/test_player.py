"""A game goes on at its pace, whatever the terminal takes of it."""

import sys

import pytest
from terminal import Terminal

# No frame is like another. The score is the frame's number.
SCRIPT = """
import sys
import numpy as np
from launch.film.terminal import Painter
from launch.film.watch import Panel
from launch.film.watch import Player
from launch.film.terminal import Screen

frames = np.random.default_rng(0).integers(0, 255, (600, 40, 40, 3), np.uint8)
with Screen() as screen:
    player = Player(screen, Painter("true"), int(sys.argv[1]), 1.0)
    while not screen.wait(0.05):
        pass
    for number, frame in enumerate(frames):
        panel = Panel("me", "Noise-v0", 1, number, 0.0, [], ("0",), np.ones(1, np.float32), "probability", np.int32(0))
        if not player.show(frame, panel):
            break
print(f"ended at {number}, over {player.over}.")
"""
PROGRAM = [sys.executable, "-c", SCRIPT]


@pytest.mark.parametrize("answers", [True, False])
def test_frames_are_left_out_for_a_terminal_that_is_slow_and_the_game_goes_on(answers: bool) -> None:
    with Terminal([*PROGRAM, "300"], answers=answers) as terminal:
        terminal.until(lambda: "1049" in terminal.screen.modes)
        # An answer, which says that it knows the question, and a key.
        terminal.type("\x1b[1;1Rg")
        assert terminal.read_to_the_end() == 0
        assert "ended at 599, over False." in terminal.output
        painted = terminal.output.count("\x1b[?2026h")
        # 60 a second are the most that are shown. One that does not answer gets one in a second.
        assert 1 <= painted < 600
        assert answers or painted <= 30


def test_single_frames_are_shown_one_for_each_key() -> None:
    with Terminal([*PROGRAM, "20"], answers=True) as terminal:
        terminal.until(lambda: "1049" in terminal.screen.modes)
        terminal.type("g")
        terminal.until(lambda: "score" in terminal.screen.text)
        terminal.type(" ")
        terminal.until(lambda: "paused" in terminal.screen.text)
        first = score_of(terminal)
        terminal.type("....")
        terminal.until(lambda: score_of(terminal) == first + 4)
        terminal.type("x.")
        terminal.until(lambda: score_of(terminal) == first + 5)
        assert "paused" in terminal.screen.text
        terminal.type("q")
        assert terminal.read_to_the_end() == 0
        assert f"ended at {first + 6}, over True." in terminal.output


def score_of(terminal: Terminal) -> int:
    (line,) = (line for line in terminal.screen.text.splitlines() if "score" in line)
    return int(line.split()[-1])
