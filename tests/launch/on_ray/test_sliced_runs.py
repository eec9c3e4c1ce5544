"""Real processes of slices: what they compute, and what becomes of a run that loses one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from accounts import account_of
from watched_processes import actor_processes, rows

pytestmark = pytest.mark.slow

# Enough parameters for four slices.
SMALL = (
    "train cartpole --actor.environments 4 --actor.unroll-length 10 --stop-at-return None --stop-measure training "
    "--network.hidden-sizes 64 64 --checkpoint.every-seconds 1 --log-every-seconds 0.5"
)
_DEADLINE_SECONDS = 180


def command(arguments: str, run: Path, *, resume: bool = False) -> list[str]:
    where = ["train", "--resume", str(run)] if resume else [*SMALL.split(), "--run-dir", str(run)]
    return [sys.executable, "-P", "-m", "launch.cli", *where, *arguments.split()]


def train(arguments: str, run: Path, *, resume: bool = False) -> dict[str, Any]:
    done = subprocess.run(
        command(arguments, run, resume=resume), capture_output=True, text=True, timeout=_DEADLINE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return account_of(run)


def tensors(run: Path) -> dict[str, bytes]:
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(run / "checkpoints")))
    names = [name for name in reader.get_variable_to_shape_map() if name.startswith("variables/")]
    return {name: np.asarray(reader.get_tensor(name)).tobytes() for name in names}


@pytest.mark.parametrize(
    ("settings", "shards"),
    [
        ("--learner.gradients-per-update 3 --optimizer.max-gradient-norm 0.05", 4),
        ("--method.name q_learning --method.target-interval-agent-steps 200 --actor.calls-in-flight 2", 2),
        ("--network.observation-scaling running --actor.epochs 2 --learner.staleness inverse", 2),
    ],
)
def test_in_lockstep_slices_compute_what_the_inline_executor_does(settings: str, shards: int, tmp_path: Path) -> None:
    settings = f"{settings} --actors 2 --total-frames 4k --evaluation.every-frames 0"
    train(f"{settings} --lockstep --learner.shards {shards}", tmp_path / "cut")
    train(f"{settings} --executor inline", tmp_path / "whole")
    assert tensors(tmp_path / "cut") == tensors(tmp_path / "whole")


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str], run: Path) -> None:
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, log_of(run)
        time.sleep(0.1)


def log_of(run: Path) -> str:
    return (run / "log.txt").read_text() if (run / "log.txt").is_file() else ""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts a run in `tmp_path / "run"`."""
    processes: list[subprocess.Popen[str]] = []

    def start(arguments: str) -> subprocess.Popen[str]:
        line = command(arguments, tmp_path / "run")
        processes.append(subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


def test_a_run_that_loses_a_slice_goes_on_from_its_checkpoint_and_then_in_other_slices(
    tmp_path: Path, started: Callable[[str], subprocess.Popen[str]]
) -> None:
    """And an actor that is killed costs no more than its rollout."""
    run = tmp_path / "run"
    settings = "--actors 2 --learner.shards 2 --learner.gradients-per-update 2 --total-frames 100M"
    evaluations = "--evaluation.every-frames 20k --evaluation.episodes 2"
    process = started(f"{settings} {evaluations}")

    def updates() -> int:
        return rows(run)[-1]["updates"] if rows(run) else 0

    def progress() -> None:
        before = updates()
        # Down is progress too: a learner that has died goes on from its checkpoint.
        wait_for(lambda: updates() != before, process, run)

    progress()
    os.kill(actor_processes(process.pid)[0], signal.SIGKILL)
    wait_for(lambda: " replaces actor " in log_of(run), process, run)
    wait_for(lambda: "evaluation of update" in log_of(run), process, run)
    wait_for(lambda: len(list((run / "checkpoints").glob("*.index"))) > 1, process, run)
    slices = actor_processes(process.pid, b"ray::SliceProcess")
    assert len(slices) == 2
    os.kill(slices[1], signal.SIGKILL)
    wait_for(lambda: "goes on from its checkpoint" in log_of(run), process, run)
    progress()
    wait_for(lambda: len(actor_processes(process.pid, b"ray::SliceProcess")) == 2, process, run)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=_DEADLINE_SECONDS)[0]
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert "learner: slice " in output
    assert "of 2: its process died" in output
    summary = account_of(run)
    assert summary["learner_restarts"] == 1
    assert summary["gradients_applied"] == 2 * summary["updates"]
    for shards in (1, 4):
        frames, before = summary["frames"] + 2000, summary["updates"]
        summary = train(f"--learner.shards {shards} --total-frames {frames}", run, resume=True)
        assert summary["status"] == "frames_reached"
        assert summary["updates"] > before
        assert summary["learner_restarts"] == 1


def test_too_many_slices_cost_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        command("--actors 1 --learner.shards 50", tmp_path / "run"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stdout
    assert "error: --learner.shards 50: the " in done.stderr
    assert "Traceback" not in done.stderr
