"""An agent plays at a terminal: what is shown, what the keys do, and what is left when it ends."""

import json
import signal
import sys
from pathlib import Path

import pytest
from terminal import Terminal

from launch.cli import main

WATCH = [sys.executable, "-m", "launch.cli", "watch"]
PLAIN = {"1049": False, "25": True, "7": True, "2026": False}


def shows(terminal: Terminal, *words: str) -> bool:
    return all(word in " ".join(terminal.screen.text.split()) for word in words)


def test_pong_is_played_where_nothing_is_named_and_keys_change_how() -> None:
    with Terminal(WATCH, answers=True, environment={"COLORTERM": "truecolor", "NO_COLOR": None}) as terminal:
        settings = terminal.settings()
        terminal.until(
            lambda: shows(terminal, "zoo:pong", "ALE/Pong-v5", "score 0", "episode 1", "RIGHTFIRE", "speed ×1")
        )
        # It says what takes its time, before the screen is taken.
        told = terminal.output.partition("\x1b[?1049h")[0]
        assert "zoo:pong plays ALE/Pong-v5: TensorFlow" in told
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
        terminal.until(lambda: terminal.screen.line(39).startswith("q quit"))
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


@pytest.mark.parametrize("command", ["watch", "watch zoo:cartpole"])
def test_without_a_terminal_it_says_how_to_record(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"tributary record {command.partition(' ')[2] or 'zoo:pong'} writes a video" in line


def test_a_terminal_that_cannot_draw_is_none() -> None:
    with Terminal(WATCH, environment={"TERM": "dumb"}) as terminal:
        assert terminal.read_to_the_end() == 2
        assert "writes a video" in " ".join(terminal.output.split())
        assert "\x1b[" not in terminal.output
