"""`tributary watch`: the panel beside the picture, the pace of the frames, the keys and the end."""

import io
import json
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from terminal import ScreenReader, Terminal
from written_runs import written_run

from launch.film.stage import PlayedStep
from launch.film.watch import Panel, compose, fit
from launch.presets import PRESETS
from shared.config import RunConfig

FRAME = np.full((210, 160, 3), 99, np.uint8)

FRAME[::2] = 33

NAMES = ("NOOP", "FIRE", "RIGHT", "LEFT", "RIGHTFIRE", "LEFTFIRE")

PONG = Panel(
    agent="zoo:pong",
    environment_id="ALE/Pong-v5",
    episode=4,
    returns=[20.0, 21.0, 19.0, 18.0],
    step=PlayedStep(
        frames=[],
        episode_return=-3.0,
        value=0.5,
        preferences=np.array([0.05, 0.05, 0.1, 0.1, 0.2, 0.5], np.float32),
        action=np.int32(4),
    ),
    action_names=NAMES,
    preferences_are="probability",
    speed="×2",
)


def changed(panel: Panel = PONG, **step: Any) -> Panel:
    return panel._replace(step=panel.step._replace(**step))


def screen(
    size: tuple[int, int], panel: Panel = PONG, *, frame: np.ndarray = FRAME, aspect: float = 12 / 7
) -> ScreenReader:
    rows, columns = size
    console = Console(file=io.StringIO(), width=columns, height=rows, force_terminal=True, color_system="truecolor")
    console.print(compose(size, frame, aspect, panel), end="")
    reader = ScreenReader()
    reader.feed(console.file.getvalue().replace("\n", "\r\n").encode())
    return reader


def shown(size: tuple[int, int], panel: Panel = PONG) -> set[str]:
    """The lines beside the picture, with single spaces."""
    return {" ".join(line.replace("▀", " ").split()) for line in screen(size, panel).text.splitlines()}


@pytest.mark.parametrize("size", [(24, 80), (60, 200)])
def test_score_value_and_probabilities_are_shown(size: tuple[int, int]) -> None:
    lines = shown(size)
    assert lines >= {"zoo:pong", "ALE/Pong-v5", "score -3", "value +0.50", "episode 4", "speed ×2"}
    assert lines >= {"earlier 21, 19, 18", "probability", "NOOP 0.05", "›RIGHTFIRE 0.20", "LEFTFIRE 0.50"}
    assert any(line.startswith("q quit") for line in lines)


def test_action_values_and_vectors_of_actions_have_numbers_of_their_own() -> None:
    # An action that is not allowed has no value.
    values = np.array([np.nan, 0.25, np.nan, 1.5, -2.0, 0.5], np.float32)
    q_values = changed(PONG._replace(preferences_are="action value"), preferences=values)
    assert shown((60, 200), q_values) >= {"action value", "NOOP -", "FIRE 0.25", "RIGHT -", "LEFT 1.50"}
    # The bars of the others.
    assert "2;38;62;92" in {back for _, _, back in screen((60, 200), q_values).cells.values()}
    vector = changed(PONG._replace(action_names=("0", "1")), preferences=None, action=np.array([-0.25, 1.5], "f4"))
    assert shown((24, 80), vector) >= {"›0 -0.25", "›1 +1.50"}
    assert "›0 +0.00" in shown((24, 80), changed(vector, action=None))


def test_bars_are_as_long_as_the_probabilities() -> None:
    reader = screen((24, 80))
    rows = [row for row in range(24) if "FIRE" in reader.line(row)]
    bars = [
        sum(reader.cells[row, column][2] in ("2;38;62;92", "2;30;100;60") for column in range(60, 80)) for row in rows
    ]
    # FIRE, RIGHTFIRE and LEFTFIRE: 0.05, 0.2 and 0.5 of 20 columns.
    assert bars == [1, 4, 10]


def test_a_picture_has_two_pixels_in_a_cell_and_nothing_in_it_is_lost() -> None:
    frame = np.zeros((4, 4, 3), np.uint8)
    frame[:2, :, 0], frame[2:, :, 1] = 200, 100
    # A single bright pixel among four.
    frame[0, 0] = (200, 255, 255)
    reader = screen((3, 2), frame=frame, aspect=1.0)
    assert [reader.cells[0, column] for column in range(2)] == [
        ("▀", "2;200;64;64", "2;0;100;0"),
        ("▀", "2;200;0;0", "2;0;100;0"),
    ]


@pytest.mark.parametrize(
    ("size", "rows", "columns", "fitted"),
    [((4, 3), 23, 200, (23, 61)), ((4, 3), 100, 80, (30, 80)), ((1, 1), 10, 10, (5, 10)), ((4, 3), 1, 1, (1, 1))],
)
def test_a_picture_is_as_large_as_there_is_room(
    size: tuple[int, int], rows: int, columns: int, fitted: tuple[int, int]
) -> None:
    assert fit(*size, rows, columns) == fitted


def test_of_many_actions_the_most_probable_are_shown_in_their_order() -> None:
    names = tuple(f"ACTION{i}" for i in range(18))
    preferences = np.linspace(0.01, 0.1, 18).astype(np.float32)
    text = screen((18, 80), changed(PONG._replace(action_names=names), preferences=preferences)).text
    found = [i for i in range(18) if f"ACTION{i} " in text]
    assert found == list(range(18 - len(found), 18))
    assert 3 < len(found) < 18


def test_a_narrow_window_has_a_line_below_the_picture() -> None:
    lines = screen((24, 40)).text.splitlines()
    assert lines[-1].startswith("q quit")
    assert any(line.startswith("score -3  value +0.50") for line in lines)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 90), st.sampled_from([1.0, 12 / 7]), st.booleans())
def test_no_window_is_too_small(rows: int, columns: int, aspect: float, discrete: bool) -> None:
    seen = PONG if discrete else changed(PONG._replace(action_names=("0",)), preferences=None, action=np.ones(1))
    reader = screen((rows, columns), seen, aspect=aspect)
    # There is a picture in it.
    assert "▀" in reader.text
    assert max(column for _, column in reader.cells) < columns


# No frame is like another. The score is the frame's number.
NOISE = """
import sys
import numpy as np
from rich.live import Live
from launch.film.stage import PlayedStep
from launch.film.watch import Keys, Panel, Player

frames = np.random.default_rng(0).integers(0, 255, (600, 40, 40, 3), np.uint8)
with Keys() as keys, Live(screen=True, auto_refresh=False) as live:
    player = Player(live, keys, int(sys.argv[1]), 1.0)
    while not keys.wait(0.05):
        pass
    for number, frame in enumerate(frames):
        step = PlayedStep([frame], number, 0.0, np.ones(1, np.float32), np.int32(0))
        panel = Panel("me", "Noise-v0", 1, [], step, ("0",), "probability")
        if not player.show(frame, panel):
            break
print(f"ended at {number}, over {player.over}.")
"""

NOISE_PLAYER = [sys.executable, "-c", NOISE]


def test_frames_are_left_out_where_drawing_takes_longer_and_the_game_goes_on() -> None:
    with Terminal([*NOISE_PLAYER, "300"]) as terminal:
        terminal.until(lambda: "1049" in terminal.screen.modes)
        terminal.type("g")
        assert terminal.read_to_the_end() == 0
        assert "ended at 599, over False." in terminal.output
        # 60 a second are the most that are shown.
        assert 1 <= terminal.output.count("Noise-v0") < 600


def test_single_frames_are_shown_one_for_each_key() -> None:
    with Terminal([*NOISE_PLAYER, "20"]) as terminal:
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


WATCH = [sys.executable, "-m", "launch.cli", "watch"]

PLAIN = {"1049": False, "25": True}


def shows(terminal: Terminal, *words: str) -> bool:
    return all(word in " ".join(terminal.screen.text.split()) for word in words)


def test_pong_is_played_where_nothing_is_named_and_keys_change_how() -> None:
    with Terminal(WATCH, environment={"COLORTERM": "truecolor", "NO_COLOR": None}) as terminal:
        settings = terminal.settings()
        terminal.until(
            lambda: shows(terminal, "zoo:pong", "ALE/Pong-v5", "score 0", "episode 1", "RIGHTFIRE", "speed ×1")
        )
        before = terminal.output.partition("\x1b[?1049h")[0]
        assert "zoo:pong plays ALE/Pong-v5: TensorFlow" in before
        # In the game's own colours, as wide as there is room beside the panel.
        brown = "2;144;72;17"
        terminal.until(lambda: all(terminal.screen.cells[10, column][2] == brown for column in (5, 30, 55)))
        drawn = terminal.screen.drawn
        terminal.until(lambda: terminal.screen.drawn > drawn + 200)

        terminal.type(" ")
        terminal.until(lambda: shows(terminal, "speed paused"))
        frame = terminal.screen.text
        terminal.type("." * 12)
        terminal.until(lambda: terminal.screen.text != frame)
        assert shows(terminal, "speed paused")
        terminal.type("\x1b[C\x1b[C ")
        terminal.until(lambda: shows(terminal, "speed ×4"))
        terminal.type("-")
        terminal.until(lambda: shows(terminal, "speed ×2"))
        terminal.type("n")
        terminal.until(lambda: shows(terminal, "episode 2", "score 0"))

        terminal.resize(120, 40)
        terminal.until(lambda: terminal.screen.line(38).startswith("q quit"))
        terminal.until(lambda: shows(terminal, "zoo:pong", "episode 2", "LEFTFIRE"))
        terminal.type("q")
        assert terminal.read_to_the_end() == 0
        assert terminal.screen.modes == PLAIN
        assert terminal.settings() == settings
        assert "a video of it: tributary record zoo:pong" in terminal.output


@pytest.mark.parametrize(
    "end", ["\x03", pytest.param(signal.SIGTERM, marks=pytest.mark.slow), pytest.param("close", marks=pytest.mark.slow)]
)
def test_an_interrupt_leaves_the_terminal_as_it_was(end: str | signal.Signals, tmp_path: Path) -> None:
    file = tmp_path / "watched.json"
    with Terminal([*WATCH, "zoo:cartpole", "--json", str(file)], environment={"COLORTERM": None}) as terminal:
        settings = terminal.settings()
        terminal.until(lambda: shows(terminal, "zoo:cartpole", "score 3"))
        # 256 colours are all that is known of this terminal.
        assert "48;5;" in terminal.output
        assert "48;2;" not in terminal.output
        if end == "close":
            terminal.close()
            assert terminal.wait() == 130
        elif isinstance(end, str):
            terminal.type(end)
        else:
            terminal.process.send_signal(end)
        if end != "close":
            assert terminal.read_to_the_end() == 130
            assert terminal.screen.modes == PLAIN
            assert terminal.settings() == settings
    watched = json.loads(file.read_text())
    assert watched["interrupted"] is True
    assert watched["environment"] == "CartPole-v1"
    assert watched["returns"] == []


def test_the_suggested_command_runs_the_modules_of_the_run(tmp_path: Path, refused: Callable[[str], str]) -> None:
    environment = replace(PRESETS["cartpole"].config.environment, imports=("sides",))
    run = written_run(tmp_path / "run", [], RunConfig(environment=environment))
    assert refused(f"watch {run}").endswith(f"tributary record {run} --trust-imports writes a video")


def test_a_terminal_that_cannot_draw_is_none() -> None:
    with Terminal(WATCH, environment={"TERM": "dumb"}) as terminal:
        assert terminal.read_to_the_end() == 2
        assert "writes a video" in " ".join(terminal.output.split())
        assert "\x1b[" not in terminal.output
