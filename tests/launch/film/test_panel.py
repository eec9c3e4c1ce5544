"""What is shown beside the picture, in windows of any size."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from screen_reader import ScreenReader

from launch.film.terminal import Cells, Painter
from launch.film.watch import Panel, compose

FRAME = np.full((210, 160, 3), 99, np.uint8)
FRAME[::2] = 33
NAMES = ("NOOP", "FIRE", "RIGHT", "LEFT", "RIGHTFIRE", "LEFTFIRE")
PONG = Panel(
    agent="zoo:pong",
    environment_id="ALE/Pong-v5",
    episode=4,
    score=-3.0,
    value=0.5,
    returns=[20.0, 21.0, 19.0, 18.0],
    action_names=NAMES,
    preferences=np.array([0.05, 0.05, 0.1, 0.1, 0.2, 0.5], np.float32),
    preferences_are="probability",
    action=np.int32(4),
    speed="×2",
)


def shown(cells: Cells) -> str:
    reader = ScreenReader()
    reader.feed(Painter("true").paint(cells))
    return reader.text


@pytest.mark.parametrize("size", [(24, 80), (60, 200), (50, 50)])
def test_score_value_and_probabilities_are_shown(size: tuple[int, int]) -> None:
    text = shown(compose(size, FRAME, 12 / 7, PONG))
    words = {" ".join(line.replace("▀", " ").split()) for line in text.splitlines()}
    assert words >= {"zoo:pong", "ALE/Pong-v5", "score -3", "value +0.50", "episode 4", "speed ×2"}
    assert words >= {"earlier 21, 19, 18", "probability", "NOOP 0.05", "›RIGHTFIRE 0.20", "LEFTFIRE 0.50"}
    assert any(line.startswith("q quit") for line in words)


def test_bars_are_as_long_as_the_probabilities() -> None:
    cells = compose((24, 80), FRAME, 12 / 7, PONG)
    rows = [row for row in range(24) if "FIRE" in "".join(map(chr, cells.characters[row]))]
    bars = [int((cells.back[row, 60:] != 0).any(-1).sum()) for row in rows]
    # FIRE, RIGHTFIRE and LEFTFIRE: 0.05, 0.2 and 0.5 of 20 columns.
    assert bars == [1, 4, 10]


def test_of_many_actions_the_most_probable_are_shown_in_their_order() -> None:
    names = tuple(f"ACTION{i}" for i in range(18))
    preferences = np.linspace(0.01, 0.1, 18).astype(np.float32)
    text = shown(compose((18, 80), FRAME, 12 / 7, PONG._replace(action_names=names, preferences=preferences)))
    found = [i for i in range(18) if f"ACTION{i} " in text]
    assert found == list(range(18 - len(found), 18))
    assert 3 < len(found) < 18


def test_action_values_and_vectors_of_actions_have_numbers_of_their_own() -> None:
    values = PONG._replace(preferences=np.array([-2.0, 4.0, 1.0, 1.0, 1.0, 1.0], np.float32))
    text = shown(compose((24, 80), FRAME, 1.0, values._replace(preferences_are="action value")))
    assert "action value" in text
    assert "-2.00" in text
    vector = PONG._replace(preferences=None, action_names=("0", "1"), action=np.array([-0.25, 1.5], np.float32))
    text = shown(compose((24, 80), FRAME, 1.0, vector))
    assert "-0.25" in text
    assert "+1.50" in text
    assert "+0.00" in shown(compose((24, 80), FRAME, 1.0, vector._replace(action=None)))


def test_a_small_window_has_lines_below_the_picture() -> None:
    text = shown(compose((16, 40), FRAME, 12 / 7, PONG))
    lines = text.splitlines()
    assert lines[-1].startswith("q quit")
    assert "score -3" in text
    assert "›RIGHTFIRE 0.20" in text


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), st.integers(1, 90), st.sampled_from([1.0, 12 / 7]), st.booleans())
def test_no_window_is_too_small(rows: int, columns: int, aspect: float, discrete: bool) -> None:
    seen = PONG if discrete else PONG._replace(preferences=None, action_names=("0",), action=np.ones(1))
    cells = compose((rows, columns), FRAME, aspect, seen)
    assert cells.shape == (rows, columns)
    # There is a picture in it.
    assert (cells.characters == ord("▀")).any()
