"""One run that meets every fault there is, from a seeded schedule, and finishes with an exact account."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from accounts import account_of
from chaos_run import ChaosRun, common_faults, dropped_report

pytestmark = pytest.mark.chaos

SETTINGS = "--actors 3 --learner.max-policy-lag 100000 --supervision.hang-seconds 4 --supervision.start-seconds 120"
_SEED = 11


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ChaosRun]:
    made = ChaosRun(tmp_path, {"Actor": 3, "Learner": 1}, deadline_seconds=400)
    yield made
    made.end()


@pytest.mark.timeout(1800)
def test_a_run_meets_every_fault_and_finishes_with_an_exact_account(run: ChaosRun) -> None:
    random_state = random.Random(_SEED)
    common = common_faults(run, "Actor", random_state)
    faults = [
        # Two more kills.
        *(*common, common[0], common[0]),
        lambda: dropped_report(run, "stale_report", "too_old"),
        lambda: run.signal_one("Learner", signal.SIGKILL, random_state),
    ]
    run.meet(faults, random_state, SETTINGS)
    run.wait_for(lambda: "learner: " in run.log(), "the learner's line")

    # The newest checkpoint is damaged, and the one before it used.
    run.wait_for(lambda: len(run.checkpoints()) >= 2, "two checkpoints")
    run.resume_without_newest_checkpoint()
    summary = account_of(run.path)
    frames = str(summary["frames"] + 2_000)
    run.start("--resume", str(run.path), "--total-frames", frames)
    output = run.wait_for_end()
    assert run.driver.returncode == 0, output
    assert "Traceback" not in output

    summary = account_of(run.path)
    assert summary["status"] == "frames_reached"
    assert summary["rollouts_lost_with_actors"] >= 1
    run.wait_until_gone()
    assert set(Path("/dev/shm").iterdir()) <= run.segments


@pytest.mark.timeout(1200)
def test_a_kill_during_a_save_never_costs_a_complete_checkpoint(tmp_path: Path) -> None:
    script = Path(__file__).with_name("killed_saves.py")
    command = [sys.executable, str(script), str(tmp_path), "200", str(_SEED)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("0 of 200 kills lost a complete checkpoint")
    # Kills that met no save under way would show nothing.
    assert int(result.stdout.split("; ")[1].split()[0]) > 20
