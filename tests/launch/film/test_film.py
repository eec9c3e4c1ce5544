"""Episodes with their pictures, values and preferences; `tributary watch` and `record`."""

import json
import re
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console
from rich.style import Style
from terminal import Terminal
from untrained_runs import untrained

from actors.policy import PolicyOutput
from launch.cli import main
from launch.film.record import VideoWriter
from launch.film.stage import AtariStage, Performance, PlayedStep, make_stage
from launch.film.watch import compose, fit, panel
from launch.results.evaluate import PlayArguments
from shared.config import EnvironmentConfig
from shared.errors import ConfigurationError

FRAME = np.full((210, 160, 3), 99, np.uint8)
FRAME[::2] = 33
NAMES = ("NOOP", "FIRE", "RIGHT", "LEFT", "RIGHTFIRE", "LEFTFIRE")

PONG = PlayedStep(
    frames=[],
    episode_return=-3.0,
    value=0.5,
    preferences=np.array([0.05, 0.05, 0.1, 0.1, 0.2, 0.5], np.float32),
    action=np.int32(4),
)


def cells(
    size: tuple[int, int],
    step: PlayedStep = PONG,
    names: Sequence[str] = NAMES,
    are: str = "probability",
    *,
    frame: np.ndarray = FRAME,
    aspect: float = 12 / 7,
) -> list[list[tuple[str, Style]]]:
    """The characters of a window's lines, with their styles."""
    rows, columns = size
    console = Console(width=columns, height=rows, force_terminal=True, color_system="truecolor")
    side = panel(["zoo:pong"], {"score": "-3", "earlier": ""}, step, names, are, rows)
    lines = console.render_lines(compose((columns, rows), frame, aspect, side), pad=False)
    return [[(character, part.style) for part in line for character in part.text] for line in lines]


def shown(size: tuple[int, int], *what: Any) -> list[str]:
    """The lines beside the picture, with single spaces."""
    lines = ("".join(character for character, _ in line) for line in cells(size, *what))
    return [" ".join(line.replace("▀", " ").split()) for line in lines]


def test_action_values_and_vectors_have_numbers_of_their_own() -> None:
    # An action that is not allowed has no value.
    values = np.array([np.nan, 0.25, np.nan, 1.5, -2.0, 0.5], np.float32)
    of_values = set(shown((60, 200), PONG._replace(preferences=values), NAMES, "action value"))
    assert of_values >= {"action value", "NOOP -", "FIRE 0.25", "RIGHT -", "LEFT 1.50", "zoo:pong", "score -3"}
    assert "earlier" not in of_values
    vector = PONG._replace(preferences=None, action=np.array([-0.25, 1.5], "f4"))
    assert set(shown((24, 80), vector, "01")) >= {"action", "0 -0.25", "1 1.50"}
    assert "0 -0.25" not in shown((24, 80), vector._replace(action=None), "01")


def test_a_picture_fills_the_window_and_loses_no_pixel() -> None:
    frame = np.zeros((4, 4, 3), np.uint8)
    frame[:2, :, 0], frame[2:, :, 1] = 200, 100
    # A single bright pixel among four.
    frame[0, 0] = (200, 255, 255)
    row = cells((1, 5), frame=frame, aspect=1.0)[0]
    found = [(character, style.color.triplet, style.bgcolor.triplet) for character, style in row[:2]]
    assert found == [("▀", (200, 64, 64), (0, 100, 0)), ("▀", (200, 0, 0), (0, 100, 0))]
    sizes = [fit(4, 3, 23, 200), fit(4, 3, 100, 80), fit(1, 1, 10, 10), fit(4, 3, 1, 1)]
    assert sizes == [(23, 61), (30, 80), (5, 10), (1, 1)]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(4, 90), st.sampled_from([1.0, 12 / 7]), st.booleans())
def test_the_picture_is_seen_in_small_windows(rows: int, columns: int, aspect: float, discrete: bool) -> None:
    step = PONG if discrete else PONG._replace(preferences=None, action=np.ones(6))
    lines = cells((rows, columns), step, aspect=aspect)
    assert "▀" in {character for line in lines for character, _ in line}
    assert max(map(len, lines)) <= columns


WATCH = [sys.executable, "-m", "launch.cli", "watch"]


def test_pong_is_played_by_default_and_keys_pause_and_quit() -> None:
    with Terminal(WATCH) as terminal:
        settings = terminal.settings()
        terminal.until(lambda: all(word in terminal.screen for word in ("score 0", "RIGHTFIRE", "probability")))
        assert "zoo:pong" in terminal.output
        assert "q quit, space pause" in terminal.output
        terminal.type(" ")
        # What was drawn before the key.
        terminal.until(terminal.is_quiet)
        terminal.type(" ")
        terminal.until(lambda: not terminal.is_quiet())
        terminal.type("q")
        assert terminal.read_to_the_end() == 0
        assert terminal.is_plain()
        assert terminal.settings() == settings
        assert "to record a video of this agent: tributary record zoo:pong" in terminal.output


def test_an_interrupt_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "watched.json"
    with Terminal([*WATCH, "zoo:cartpole", "--json", str(file)]) as terminal:
        settings = terminal.settings()
        terminal.until(lambda: "score 3" in terminal.screen)
        terminal.type("\x03")
        assert terminal.read_to_the_end() == 130
        assert terminal.is_plain()
        assert terminal.settings() == settings
    watched = json.loads(file.read_text())
    assert (watched["interrupted"], watched["environment"], watched["returns"]) == (True, "CartPole-v1", [])


@pytest.mark.parametrize("recurrent", ["none", "lstm"])
def test_a_step_has_the_action_and_the_output_of_the_network(recurrent: str, tmp_path: Path) -> None:
    run = untrained(tmp_path / "run", "cartpole", **{"network.recurrent": recurrent})
    performance = Performance(PlayArguments(run=run), 1)
    policy = performance.policy
    given: list[tuple[np.ndarray, tuple]] = []
    after = [policy.first_state(1)]

    def act(observations: np.ndarray, memory: tuple) -> PolicyOutput:
        given.append((observations.copy(), memory))
        acted = policy.greedy(observations, memory)
        after.append(acted.state)
        return acted

    performance.act = act
    first, *steps = performance.play([0])
    performance.stage.close()
    assert first.action is None
    for step, (observations, memory), before in zip(steps, given, after, strict=False):
        # A memory begins with zeros, and goes from step to step.
        assert all(map(np.array_equal, memory, before))
        assert step.action == np.argmax(step.preferences)
        np.testing.assert_allclose(step.preferences, policy.preferences(observations, memory)[0])
        assert step.value == policy.values(observations, memory)[0]
    assert [step.ended for step in steps] == [False] * (len(steps) - 1) + [True]
    assert steps[-1].episode_return == len(steps) == len(given) > 5


class Blind(CartPoleEnv):
    """Takes every mode, and draws nothing."""

    def render(self) -> None:
        return None


class Headless(CartPoleEnv):
    def render(self) -> None:
        raise RuntimeError("no display")


@pytest.mark.filterwarnings("error", "ignore:.*RGB-array rendering")
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Blind, "cannot be shown: render() gave None, where uint8 [height, width, 3] is expected"),
        (Headless, "cannot be shown: render() raised RuntimeError: no display"),
        # It has no constructor of its own.
        (
            gymnasium.Env,
            "takes no render_mode, by which it would draw; add render_mode to its constructor, and rgb_arr",
        ),
    ],
)
def test_what_cannot_be_filmed_is_one_line(kind: type, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = gymnasium.envs.registration.EnvSpec("Unseen-v0", entry_point=kind)
    monkeypatch.setitem(gymnasium.registry, "Unseen-v0", spec)
    # Another test may have imported it, after which stages are in processes, where this environment is not registered.
    monkeypatch.delitem(sys.modules, "mujoco", raising=False)
    with pytest.raises(ConfigurationError, match=f"^--environment.id Unseen-v0: {re.escape(why)}"):
        make_stage(EnvironmentConfig(id="Unseen-v0", frame_skip=1)).reset(1)


def test_what_is_shown_stays_in_step_with_what_the_agent_plays() -> None:
    config = EnvironmentConfig(id="ALE/Pong-v5", sticky_action_probability=0.25, max_episode_frames=1_200)
    stage = AtariStage(config)
    generator = np.random.default_rng(0)
    stage.reset(7)
    frames, ended = 0, False
    while not ended:
        # It raises where rewards or ends differ.
        _, _, ended, shown = stage.step(generator.integers(0, 6, 1, np.int32))
        frames += len(shown)
        assert shown[0].shape == (210, 160, 3)
    stage.close()
    assert frames > 1_000


def test_a_video_has_every_frame_of_the_episode_and_its_provenance(pong_run: Path, tmp_path: Path) -> None:
    video, result = tmp_path / "pong.mp4", tmp_path / "pong.json"
    assert main(f"record {pong_run} --overlay --output {video} --json {result}".split()) == 0
    made = json.loads(result.read_text())
    with av.open(str(video)) as container:
        stream = container.streams.video[0]
        assert stream.average_rate == 60
        pictures = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        comment = json.loads(container.metadata["comment"])
    # An episode is 300 frames, of which the no-ops before it are not shown.
    assert len(pictures) == made["frames"]
    assert 250 <= made["frames"] <= 301
    assert comment.keys() >= {"command", "created", "revision", "versions", "hardware"}
    assert comment["protocol"]["frames_per_agent_step"] == 4
    # In colour, and moving; the caption's bar is below the picture.
    assert np.ptp(pictures[150].astype(int), axis=2).max() > 50
    assert np.abs(pictures[150].astype(int) - pictures[240]).max() > 50
    assert pictures[150].shape[0] > 630
    assert not list(tmp_path.glob("*part*"))


def test_a_gif_is_written_picture_by_picture(tmp_path: Path) -> None:
    file = tmp_path / "film.gif"
    noise = np.random.default_rng(0)
    frames = [noise.integers(0, 2, (100, 100, 1), np.uint8) * np.uint8((200, 40, 6 * i)) for i in range(40)]
    # The last two are equal.
    frames.append(frames[-1])
    sizes = []
    with VideoWriter(file, Fraction(25), comment="made so") as writer:
        for frame in frames:
            writer.add(frame)
            (part,) = tmp_path.glob("*part*")
            sizes.append(part.stat().st_size)
    # What is on disk need not be in memory.
    assert sizes[-1] > sizes[20] > 0
    with Image.open(file) as film:
        assert (film.n_frames, film.info["loop"], film.info["comment"]) == (41, 0, b"made so")
        for i, frame in enumerate(frames):
            film.seek(i)
            assert film.info["duration"] == 40
            np.testing.assert_array_equal(np.asarray(film.convert("RGB")), frame)


@pytest.mark.parametrize(("rate", "seconds"), [(Fraction(60), 1.0), (Fraction(30), 2.0), (Fraction(5, 2), 24.0)])
def test_a_gif_keeps_the_pace(rate: Fraction, seconds: float, tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "film.gif", rate, comment="") as writer:
        for i in range(60):
            writer.add(np.full((8, 8, 3), i, np.uint8))
    with Image.open(tmp_path / "film.gif") as film:
        milliseconds = [film.seek(i) or film.info["duration"] for i in range(film.n_frames)]
    assert sum(milliseconds) == 1000 * seconds
