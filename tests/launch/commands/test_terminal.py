"""What a run shows on a terminal or in a pipe; and a run whose terminal or output goes."""

import io
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from accounts import account_of
from rich.console import Console
from terminal import DEADLINE_SECONDS, Terminal
from waiting import UNTIL_FRAMES
from watched_processes import rows

from launch.commands.display import Display, progress_line, progress_table, summary_lines
from launch.presets import PRESETS
from launch.run.events import Preparing, Progress, Started, Stopped
from launch.run.folder import RunFolder
from shared.config import RunConfig

TRIBUTARY = [sys.executable, "-m", "launch.cli"]
SMALL = f"train cartpole --actors 1 --actor.environments 4 --log-every-seconds 0.2 {UNTIL_FRAMES}"


def command(executor: str, run: Path, more: str = "--total-frames 100M") -> list[str]:
    return [*TRIBUTARY, *f"{SMALL} --executor {executor} --run-dir {run} {more}".split()]


def saved_account(run: Path) -> dict[str, Any]:
    """The account of a run that is saved at its end."""
    account = account_of(run)
    assert (run / "checkpoints" / f"update-{account['updates']}.index").is_file()
    return account


@pytest.mark.parametrize(
    ("executor", "vectorization"), [("inline", "async"), pytest.param("ray", "sync", marks=pytest.mark.slow)]
)
def test_a_run_whose_terminal_is_closed_is_saved_and_ends(executor: str, vectorization: str, tmp_path: Path) -> None:
    """Its environments too may be processes at that terminal."""
    run, more = tmp_path / "run", f"--total-frames 100M --environment.vectorization {vectorization}"
    with Terminal(command(executor, run, more)) as terminal:
        terminal.until(lambda: bool(rows(run)) and rows(run)[-1]["updates"] > 0)
        terminal.close()
        # A shell passes the signal on to the whole job: to the run a second one, which is no second Ctrl-C.
        os.killpg(terminal.process.pid, signal.SIGHUP)
        assert terminal.wait() == 130
    assert saved_account(run)["status"] == "interrupted"


@pytest.mark.parametrize("executor", ["inline", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_run_whose_output_is_cut_off_trains_to_its_end(executor: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    # Standard error goes the same way, and the pipe is gone before training starts: `tributary train … 2>&1 | head -1`.
    # Inline it has messages to print. On Ray the driver prints its lines, and an evaluator would be one process more.
    messages = "--evaluation.every-frames 1500 --evaluation.episodes 2" if executor == "inline" else ""
    process = subprocess.Popen(
        command(executor, run, f"--total-frames 4k {messages}"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert b"run folder" in process.stdout.readline()
    process.stdout.close()
    assert process.wait(DEADLINE_SECONDS) == 0
    summary = saved_account(run)
    assert summary["status"] == "frames_reached"
    assert rows(run)[-1]["frames"] == summary["frames"]
    assert executor == "ray" or "evaluation of update" in (run / "log.txt").read_text()


# The training environments are made before the first checkpoint, those of the evaluator when it begins. One of these
# hangs, so that the first Ctrl-C cannot end the run before the second one comes.
WATCHED = """
from pathlib import Path
from threading import Event
import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

HERE = Path(__file__).parent

class Watched(CartPoleEnv):
    def __init__(self, **options):
        super().__init__(**options)
        self.evaluates = (HERE / "run" / "checkpoints" / "update-0.index").exists()

    def step(self, action):
        if self.evaluates:
            (HERE / "hangs").touch()
            Event().wait()
        return super().step(action)

gymnasium.register("Watched-v0", entry_point=Watched, max_episode_steps=500)
"""


def test_the_second_ctrl_c_leaves_at_once(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (tmp_path / "watched.py").write_text(WATCHED)
    endless = "--total-frames 100M --evaluation.every-frames 500 --environment.id watched:Watched-v0"
    path = os.pathsep.join([str(tmp_path), *sys.path])
    with Terminal(command("inline", run, endless), environment={"PYTHONPATH": path}) as terminal:
        terminal.until((tmp_path / "hangs").exists)
        terminal.type("\x03")
        terminal.until(lambda: "Ctrl-C again leaves at once" in terminal.output)
        assert terminal.process.poll() is None
        terminal.type("\x03")
        assert terminal.read_to_the_end() == 130
    assert f"to continue from the last checkpoint: tributary train --resume {run} --trust-imports" in terminal.output
    assert not RunFolder(run).summary.exists()
    assert (run / "checkpoints" / "update-0.index").is_file()


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


COUNTS = ("wall_seconds", "startup_seconds", "frames", "agent_steps_sampled", "agent_steps_per_second", "updates")
SUMMARY = {"status": "failed", "episodes": 0, **dict.fromkeys(COUNTS, 1)}
SUMMARY |= dict.fromkeys(("evaluation", "first_crossing", "confirmed_crossing", "mean_return_100"))


def screen(columns: int = 80, *, terminal: bool = True) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=columns, color_system=None)


def shown_by(console: Console) -> str:
    return console.file.getvalue()


LABELS = ("policy lag mean/max", "dropped agent steps", "synchronise + wait", "evaluation return")
VALUES = ("12,468", "39,999,999 (100.0 %)", "too_old 12,345, unfinished_update 123", "57 µs", "12.34 ms", "20.0%")


@pytest.mark.parametrize("columns", [80, 79, 50])
def test_narrow_terminals_show_whole_numbers(columns: int) -> None:
    console = screen(columns)
    # The preset ends at a return, most often long before its frames.
    console.print(progress_table(LARGE, replace(PRESETS["pong"].config, total_frames=40_000_000), columns))
    assert "…" not in shown_by(console)
    assert [part for part in (*LABELS, *VALUES, "left at most") if part not in shown_by(console)] == []


def test_the_table_until_it_stays_on_the_screen(cartpole: RunConfig) -> None:
    console, config = screen(80), replace(cartpole, total_frames=10**9)

    with Display(config, console) as display:
        display.show(Started("run", config, 1))
        display.update(LARGE)
        # The last interval of a run has no rollout: the numbers of the one before stay.
        dropped = LARGE.agent_steps_dropped
        empty = Progress(frames=40_000_004, elapsed_seconds=36_001.0, policy_lag_max=7, learning_rate=1e-4)
        display.update(replace(empty, agent_steps_dropped=dropped))
        # It would have hours left, by its frames.
        display.show(Stopped("run", SUMMARY | {"status": "return_reached"}))
    last = shown_by(console).rpartition("CartPole-v1")[2].splitlines()
    for value in ("40,000,004", "57 µs", "1234 µs", "12.34 ms", "0.123", "20.0%", "0.00 / 7", "1.00e-04"):
        assert value in " ".join(last)
    assert not any("left" in line for line in last)
    # The terminal's own ^C is echoed at the cursor, and the table is drawn again by moving up from there.
    (caption,) = (line for line in last if "unfinished_update" in line)
    assert len(caption) + len("^C") <= console.width


def test_a_slow_interval_does_not_change_the_time_left(cartpole: RunConfig) -> None:
    """As one in which actors play a confirmation."""
    slow = Progress(elapsed_seconds=600.0, frames=300_000, frames_per_second=5.0)
    config = replace(cartpole, total_frames=1_200_000)
    assert progress_line(slow, config).endswith(" 0:30:00")
    # Nor do the first calls give one, as slow as they are.
    assert progress_line(replace(slow, elapsed_seconds=2.0, frames=241), config).endswith(" -")


@pytest.mark.parametrize(
    ("actors", "fresh", "words"),
    [(1, False, "starting 1 actor…"), (64, True, "starting 64 actors; each first plays up to 1,020 agent steps,")],
)
def test_no_table_of_zeros_before_the_actors_report(
    actors: int, fresh: bool, words: str, cartpole: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.commands.display.time", SimpleNamespace(monotonic=lambda: 7.0))
    console = screen()
    config = replace(cartpole, actor=replace(cartpole.actor, fresh_gradients=fresh))
    with Display(config, console) as display:
        for event in (Preparing("starting Ray"), Started("run", config, actors), Preparing("building networks")):
            display.show(event)
        # A resumed run has what was played before.
        display.update(Progress(frames=500, agent_steps=125))
        before = shown_by(console)
        display.update(replace(LARGE, frames=1000))
        display.show(Preparing("too late"))
    assert "starting Ray… 0 s" in before
    assert words in before
    assert "building networks… 0 s" in before
    assert "frames" not in before
    # Each is written over the lines of the one before it.
    assert before.count("\n") == fresh, "one line is wider than the screen"
    assert "1,000 (1.0 %)" in shown_by(console)
    assert "too late" not in shown_by(console)


def test_a_dumb_terminal_has_lines_like_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    console = screen()
    with Display(PONG, console) as display:
        display.show(Started("runs/a", PONG, 2))
        display.update(LARGE)
    assert "starting 2 actors" in shown_by(console)
    assert "agent steps" in shown_by(console)


def expectations(preset: str, config: RunConfig, *updates: Progress) -> list[str]:
    """The lines of a run about what to expect, after these updates."""
    console = screen(terminal=False)
    with Display(config, console, preset) as display:
        for progress in updates:
            display.update(progress)
    return [line for line in shown_by(console).splitlines() if "usually" in line]


PONG, USUAL = PRESETS["pong"].config, PRESETS["pong"].usual_agent_steps
TAKES = f"a return of 18 usually takes {USUAL:,} agent steps"


def test_after_ten_seconds_a_run_says_what_to_expect_once() -> None:
    reported = Progress(agent_steps=USUAL - 720_000, agent_steps_per_second=1_000.0)
    at = [replace(reported, elapsed_seconds=seconds) for seconds in (10.0, 11.0, 12.0)]
    assert expectations("pong", PONG, at[0]) == []
    # In the first interval after ten seconds no rollout may end.
    empty = Progress(elapsed_seconds=10.5)
    reached = ": at 1,000 a second it is reached in about 0:12:00, plus confirmations; seeds differ by a factor of 3"
    assert expectations("pong", replace(PONG, seed=7), at[0], empty, *at[1:]) == [TAKES + reached]
    # Its evaluations are no confirmations.
    begun = (replace(progress, agent_steps=0) for progress in at)
    (line,) = expectations("cartpole", PRESETS["cartpole"].config, *begun)
    assert line.endswith("it is reached in about 0:03:23")
    short = replace(PONG, total_frames=4 * USUAL - 1)
    assert expectations("pong", short, *at) == [f"{TAKES}, and --total-frames {4 * USUAL - 1} ends the run before that"]


@pytest.mark.parametrize(
    ("preset", "changed", "progress"),
    [
        ("pong", {"stop_at_return": 10.0}, {}),
        ("pong", {"environment": replace(PONG.environment, frame_skip=2)}, {}),
        ("pong", {}, {"agent_steps": 10**9}),
        ("pong", {}, {"agent_steps_per_second": 0.0}),
        ("vectors", {}, {}),
        ("", {}, {}),
    ],
    ids=["another target", "another task", "beyond it", "no rollout yet", "nothing known", "no preset"],
)
def test_nothing_is_expected_of(preset: str, changed: dict[str, Any], progress: dict[str, Any]) -> None:
    config = replace(PRESETS[preset or "pong"].config, **changed)
    known = {"elapsed_seconds": 11.0, "agent_steps": 10, "agent_steps_per_second": 1_000.0}
    assert expectations(preset, config, Progress(**known | progress)) == []


def test_a_pipe_gets_a_line_every_ten_seconds(cartpole: RunConfig) -> None:
    console = screen(terminal=False)
    with Display(cartpole, console) as display:
        display.show(Preparing("starting Ray"))
        display.show(Started("run", cartpole, 2))
        for seconds in (0, 4, 9, 10, 19, 21):
            display.update(replace(LARGE, agent_steps_per_second=100.0 * seconds, elapsed_seconds=float(seconds)))
    lines = shown_by(console).splitlines()
    assert lines[0] == "starting 2 actors…"
    assert [line.partition(" | ")[0] for line in lines[1:]] == ["0:00:04", "0:00:19"]


@pytest.mark.parametrize(
    ("status", "more", "imports", "trust"),
    [
        ("frames_reached", " --total-frames N", (), ""),
        ("return_reached", " --stop-at-return N", ("sides",), " --trust-imports"),
        ("failed", "", (), ""),
    ],
)
def test_the_last_lines_are_commands(
    status: str, more: str, imports: tuple[str, ...], trust: str, cartpole: RunConfig, tmp_path: Path
) -> None:
    console, summary = screen(1_000, terminal=False), SUMMARY | {"status": status}
    config = replace(cartpole, environment=replace(cartpole.environment, imports=imports))
    with Display(config, console) as display:
        display.show(Started(str(tmp_path), config, 1))
        display.show(Stopped(str(tmp_path), summary))
    resume = f"continue:     tributary train --resume {tmp_path}{trust}{more}"
    shown = shown_by(console).splitlines()
    assert shown[-3:] == [
        f"evaluate:     tributary evaluate {tmp_path}{trust}",
        f"video, page:  tributary record {tmp_path}{trust}; tributary report {tmp_path}",
        resume,
    ]
    # No curve without a return, and nothing to look at before the first rollout.
    assert shown[-4] == f"curves:       tensorboard --logdir {tmp_path}"
    assert f"tributary plot {tmp_path}" in summary_lines(summary | {"episodes": 1}, str(tmp_path), "")[-4]
    untrained = summary_lines(summary | {"frames": 0}, str(tmp_path), trust)
    assert untrained[-2:] == [f"run folder:   {tmp_path}", resume]
