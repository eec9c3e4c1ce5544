"""A run whose terminal or output goes: it is saved and ends, or goes on, and its exit code stays right."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from terminal import DEADLINE_SECONDS, Terminal
from waiting import UNTIL_FRAMES, wait_for
from watched_processes import rows

from launch.cli import main
from launch.presets import PRESETS
from launch.run.folder import RunFolder

TRIBUTARY = [sys.executable, "-m", "launch.cli"]
SMALL = f"train cartpole --actors 1 --actor.environments 4 --log-every-seconds 0.2 {UNTIL_FRAMES}"


def command(executor: str, run: Path, more: str = "--total-frames 100M") -> list[str]:
    return [*TRIBUTARY, *f"{SMALL} --executor {executor} --run-dir {run} {more}".split()]


def trains(run: Path) -> bool:
    return bool(rows(run)) and rows(run)[-1]["updates"] > 0


def summary_of(run: Path) -> dict:
    return json.loads((run / "summary.json").read_text())


def check_that_it_goes_on(run: Path) -> None:
    """Resume the run, and see that it starts where it was saved."""
    before = summary_of(run)
    assert (run / "checkpoints" / f"update-{before['updates']}.index").is_file()
    frames = before["frames"] + 500
    assert main(f"train --resume {run} --executor inline --total-frames {frames}".split()) == 0
    after = summary_of(run)
    assert after["frames"] >= frames
    assert after["updates"] > before["updates"]
    assert after["wall_seconds"] > before["wall_seconds"]
    resumed = [row for row in rows(run) if row["elapsed_seconds"] > before["wall_seconds"]]
    assert resumed[0]["updates"] >= before["updates"]


@pytest.mark.parametrize(
    ("executor", "vectorization"), [("inline", "async"), pytest.param("ray", "sync", marks=pytest.mark.slow)]
)
def test_a_run_whose_terminal_is_closed_is_saved_and_ends(executor: str, vectorization: str, tmp_path: Path) -> None:
    """Its environments too may be processes at that terminal."""
    run, more = tmp_path / "run", f"--total-frames 100M --environment.vectorization {vectorization}"
    with Terminal(command(executor, run, more)) as terminal:
        terminal.until(lambda: trains(run))
        terminal.close()
        # A shell passes the signal on to the whole job: to the run a second one, which is no second Ctrl-C.
        os.killpg(terminal.process.pid, signal.SIGHUP)
        assert terminal.wait() == 130
    assert summary_of(run)["status"] == "interrupted"
    check_that_it_goes_on(run)


def test_a_run_that_ignores_hangups_goes_on_without_its_terminal(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with Terminal(command("inline", run), ignoring=(signal.SIGHUP,)) as terminal:
        terminal.until(lambda: trains(run))
        terminal.close()
        before = rows(run)[-1]
        # The table was written again several times since.
        seconds = before["elapsed_seconds"] + 0.5
        wait_for(lambda: rows(run)[-1]["elapsed_seconds"] >= seconds, "training", process=terminal.process)
        assert rows(run)[-1]["updates"] > before["updates"]
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.wait() == 130
    assert summary_of(run)["status"] == "interrupted"


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
    summary = summary_of(run)
    assert summary["status"] == "frames_reached"
    assert rows(run)[-1]["frames"] == summary["frames"]
    assert executor == "ray" or "evaluation of update" in (run / "log.txt").read_text()
    check_that_it_goes_on(run)


# The training environments are made before the first checkpoint, those of the evaluator when it begins.
WATCHED = """
from pathlib import Path
import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

HERE = Path(__file__).parent

class Watched(CartPoleEnv):
    def __init__(self, **options):
        super().__init__(**options)
        if (HERE / "run" / "checkpoints" / "update-0.index").exists():
            (HERE / "evaluates").touch()

gymnasium.register("Watched-v0", entry_point=Watched, max_episode_steps=500)
"""


def test_the_second_ctrl_c_leaves_at_once(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (tmp_path / "watched.py").write_text(WATCHED)
    # The evaluation under way, which a clean end waits for, takes longer than anybody would.
    endless = "--total-frames 100M --evaluation.episodes 10000000 --stop-at-return 1"
    endless += " --environment.id watched:Watched-v0 --environment.vectorization sync"
    log = run / "log.txt"
    path = os.pathsep.join([str(tmp_path), *sys.path])
    with Terminal(command("inline", run, endless), environment={"PYTHONPATH": path}) as terminal:
        terminal.until(lambda: log.is_file() and "checks it" in log.read_text())
        terminal.until((tmp_path / "evaluates").exists)
        terminal.type("\x03")
        terminal.until(lambda: "Ctrl-C again leaves at once" in terminal.output)
        assert terminal.process.poll() is None
        terminal.type("\x03")
        assert terminal.wait() == 130
    assert not RunFolder(run).summary.exists()
    assert (run / "checkpoints" / "update-0.index").is_file()


@pytest.mark.slow
def test_a_bench_whose_terminal_is_closed_ends_the_process_that_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    settings = RunFolder(tmp_path / "settings")
    settings.path.mkdir()
    settings.write_config(replace(PRESETS["cartpole"].config, executor="inline", actors=1, stop_at_return=None))
    measure = (
        "from pathlib import Path; from launch.bench.throughput import train_for; "
        "from launch.run.folder import RunFolder; "
        f"train_for(RunFolder(Path({str(settings.path)!r})).read_config('settings'), 1e6)"
    )
    with Terminal([sys.executable, "-c", measure]) as terminal:
        children = Path(f"/proc/{terminal.process.pid}/task/{terminal.process.pid}/children")
        terminal.until(lambda: list(tmp_path.glob("tributary-bench-*/run/checkpoints/update-0.index")))
        (training,) = map(int, children.read_text().split())
        terminal.close()
        # It waits for the process that trains, which saves first.
        assert terminal.wait() == -signal.SIGINT
    assert not Path(f"/proc/{training}").exists()


@pytest.mark.parametrize(("line", "code"), [("train pnog", 2), ("presets", 0)])
def test_a_command_keeps_its_exit_code_without_anybody_to_read_it(line: str, code: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    assert subprocess.run([*TRIBUTARY, *line.split()], stdout=writer, stderr=writer, check=False).returncode == code
    os.close(writer)


@pytest.mark.parametrize("closes", ["sys.stdout.close()", "sys.stdout = sys.stderr = None"])
def test_a_command_keeps_its_exit_code_when_an_environment_closes_its_output(closes: str) -> None:
    script = (
        f"import sys; from launch.output import exit_code\ndef command(): {closes}; print('more'); return 3\n"
        "sys.exit(exit_code(command))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (3, "")


def test_help_of_which_only_the_beginning_is_read_says_nothing_of_it() -> None:
    reader = subprocess.Popen(["head", "-1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    command = [*TRIBUTARY, "train", "--help-all"]
    writer = subprocess.run(command, stdout=reader.stdin, stderr=subprocess.PIPE, check=False)
    assert reader.communicate()[0].startswith(b"usage: tributary")
    assert (writer.returncode, writer.stderr) == (0, b"")
