"""What a run shows: the table on a terminal, lines in a pipe, and nothing that could end it."""

import io
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from launch.cli import main
from launch.commands.display import Display, progress_line, progress_table
from launch.output import write_json
from launch.presets import PRESETS
from launch.run.events import Progress, Started
from shared.config import RunConfig

LARGE = Progress(
    frames=39_999_999,
    agent_steps=9_999_999,
    updates=1_234_567,
    episodes=12_345,
    elapsed_seconds=36_000.0,
    mean_return_100=-20.12,
    frames_per_second=12_345.0,
    agent_steps_per_second=3_086.0,
    updates_per_second=1_234.5,
    policy_lag_mean=12.34,
    policy_lag_max=123,
    agent_steps_dropped={"too_old": 12_345, "unfinished_update": 123},
    actors_alive=12,
    actor_restarts=3,
    stage_microseconds={"environment": 1234.0, "acting": 123.0, "gradient": 345.0, "synchronise": 12.0, "wait": 45.0},
    learner_milliseconds=12.34,
    learning_rate=5e-4,
    gradient_norm=0.123,
    evaluation_return=18.12,
    statistics={"explained_variance": 0.9, "entropy": 0.3, "dead_units": 0.2, "mean_action_value": -12.3},
)


def screen(columns: int = 80) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=columns, color_system=None)


def shown_by(console: Console) -> str:
    return console.file.getvalue()


LABELS = ("policy lag mean/max", "dropped agent steps", "synchronise + wait", "evaluation return")
VALUES = ("12,468", "39,999,999 (100.0 %)", "too_old 12,345, unfinished_update 123", "57 µs", "12.34 ms", "20.0%")


@pytest.mark.parametrize(("columns", "parts"), [(80, (*LABELS, *VALUES, "time left at most")), (70, LABELS)])
def test_80_columns_show_every_number_whole_and_fewer_break_values_before_labels(
    columns: int, parts: tuple[str, ...]
) -> None:
    console = screen(columns)
    # The preset ends at a return, most often long before its frames.
    console.print(progress_table(LARGE, replace(PRESETS["pong"].config, total_frames=40_000_000)))
    text = shown_by(console)
    assert "…" not in text
    assert [part for part in parts if part not in text] == []


def test_a_run_that_ends_at_a_return_says_at_most_how_long_it_takes() -> None:
    ends_early = PRESETS["pong"].config
    ends_late = replace(ends_early, stop_at_return=None)
    assert "left at most 0:" in progress_line(LARGE, ends_early)
    assert "at most" not in progress_line(LARGE, ends_late)
    assert progress_line(Progress(), ends_early).endswith("left -")
    console = screen()
    console.print(progress_table(LARGE, ends_late))
    assert "time left" in shown_by(console)
    assert "at most" not in shown_by(console)


@pytest.mark.parametrize(("actors", "words"), [(1, "starting 1 actor…"), (2, "starting 2 actors…")])
def test_no_table_of_zeros_before_the_actors_report(actors: int, words: str, cartpole: RunConfig) -> None:
    console = screen()
    with Display(cartpole, console) as display:
        display.show(Started("run", cartpole, actors))
        display.update(Progress())
        # A resumed run has what was played before.
        display.update(Progress(frames=500, agent_steps=125))
        before = shown_by(console)
        display.message("hello")
        display.update(replace(LARGE, frames=1000))
    assert words in before
    assert "frames" not in before
    assert "hello" in shown_by(console)
    assert "1,000 (1.0 %)" in shown_by(console)


def test_a_pipe_gets_a_line_every_ten_seconds(cartpole: RunConfig) -> None:
    console = Console(file=io.StringIO(), width=80)
    with Display(cartpole, console) as display:
        display.show(Started("run", cartpole, 2))
        for seconds in (0, 4, 9, 10, 19, 21):
            display.update(replace(LARGE, agent_steps_per_second=100.0 * seconds, elapsed_seconds=float(seconds)))
    lines = shown_by(console).splitlines()
    assert lines[0] == "starting 2 actors…"
    assert [line.partition(" | ")[0] for line in lines[1:]] == ["0:00:04", "0:00:19"]


@pytest.mark.parametrize(
    ("status", "more"),
    [("frames_reached", " --total-frames N"), ("return_reached", " --stop-at-return N"), ("failed", "")],
)
@pytest.mark.parametrize(("imports", "trust"), [((), ""), (("sides",), " --trust-imports")])
def test_the_commands_for_a_run_name_the_limit_that_ended_it_and_trust_its_modules(
    status: str, more: str, imports: tuple[str, ...], trust: str, cartpole: RunConfig, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    numbers = dict.fromkeys(("wall_seconds", "frames", "agent_steps_sampled", "agent_steps_per_second", "updates"), 1)
    nothing = dict.fromkeys(("evaluation", "first_crossing", "confirmed_crossing"))
    config = replace(cartpole, environment=replace(cartpole.environment, imports=imports))
    # A process of its own has written it.
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(config))
    write_json(tmp_path / "summary.json", {"status": status, "episodes": 0, **numbers, **nothing})
    assert main(["attach", str(tmp_path)]) == (1 if status == "failed" else 0)
    *_, evaluate, film, resume = capsys.readouterr().out.splitlines()
    assert evaluate == f"evaluate:     tributary evaluate {tmp_path}{trust}"
    assert film == f"video, page:  tributary record {tmp_path}{trust}; tributary report {tmp_path}"
    assert resume == f"continue:     tributary train --resume {tmp_path}{trust}{more}"


class Broken(io.StringIO):
    """What no write reaches."""

    def write(self, _text: str) -> int:
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize("terminal", [True, False])
def test_a_display_that_fails_is_named_once_and_ends_nothing(
    terminal: bool, cartpole: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = io.StringIO()
    monkeypatch.setattr(sys, "stderr", errors)
    with Display(cartpole, Console(file=Broken(), force_terminal=terminal, width=80)) as display:
        display.show(Started("run", cartpole, 1))
        for _ in range(3):
            display.message("hello")
            display.update(LARGE)
    assert errors.getvalue().count("progress cannot be shown any more") == 1
