"""A sweep on the real Ray Tune and Optuna: it loses no trial, whichever of its processes is killed."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from launch.cli import main
from launch.run.lock import holder_of
from launch.run.standing import last_row, standing
from launch.sweep.book import TrialBook

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(1800)]

_DEADLINE_SECONDS = 900
TRIALS = 12
FILE = """
preset = "cartpole"
total_frames = 40_000
actors = 1
executor = "inline"
log_every_seconds = 0.5
evaluation.every_frames = 0
checkpoint.every_seconds = 2.0
network.hidden_sizes = [32]

[sweep]
search = "optuna"
trials = 12

[sweep.space]
"optimizer.learning_rate" = { low = 1e-4, high = 1e-2, log = true }
"actor.unroll_length" = [5, 10, 20]
"""


class Command:
    """`tributary sweep`, watched from outside."""

    def __init__(self, file: Path, folder: Path) -> None:
        self.folder = folder
        self._log = folder.with_suffix(".log")
        with self._log.open("a") as log:
            command = [sys.executable, "-m", "launch.cli", "sweep", str(file), "--output", str(folder)]
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def wait_for(self, condition: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while not (found := condition()):
            assert self.process.poll() is None, f"{what}: the sweep ended\n{self._log.read_text()}"
            assert time.monotonic() < deadline, f"{what} was not seen\n{self._log.read_text()}"
            time.sleep(0.2)
        return found

    def end(self, code: int) -> None:
        assert self.process.wait(_DEADLINE_SECONDS) == code, self._log.read_text()

    def ended(self) -> set[int]:
        """The numbers of the trials that have ended."""
        return {number for number, trial in TrialBook(self.folder).trials.items() if trial.ended is not None}

    def training(self) -> Path | None:
        """The folder of a trial that has a checkpoint, and trains."""
        for run in self.folder.glob("trial-*/config.json"):
            learned = last_row(standing(run.parent).folder).get("frames", 0) > 5_000
            if learned and holder_of(run.parent) is not None:
                return run.parent
        return None


@contextmanager
def sweeping(file: Path, folder: Path) -> Iterator[Command]:
    """Use as a context: what still runs then is killed."""
    command = Command(file, folder)
    try:
        yield command
    finally:
        command.process.kill()
        command.process.wait()


def summary_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())


def test_all_trials_end_though_one_of_their_processes_and_the_driver_are_killed(tmp_path: Path) -> None:
    file, folder = tmp_path / "cartpole.toml", tmp_path / "sweep"
    file.write_text(FILE)
    with sweeping(file, folder) as sweep:
        victim = sweep.wait_for(sweep.training, "a trial that trains")
        holder = holder_of(victim)
        assert holder is not None
        assert holder.pid is not None
        os.kill(holder.pid, signal.SIGKILL)
        sweep.wait_for(lambda: "goes on" in resumed(victim), "the trial that was killed, going on")
        sweep.wait_for(lambda: len(sweep.ended()) >= 3 and sweep.training(), "three trials that have ended")
        sweep.process.kill()
        sweep.process.wait()
        before = sweep.ended()
        settings = {number: trial.settings for number, trial in TrialBook(folder).trials.items()}
        finished = {number: summary_of(folder / f"trial-{number:02}") for number in before}
    assert 3 <= len(before) < TRIALS
    with sweeping(file, folder) as sweep:
        sweep.end(0)
    trials = TrialBook(folder).trials
    assert [(number, trial.ended) for number, trial in trials.items()] == [(n, "done") for n in range(TRIALS)]
    assert {number: trials[number].settings for number in settings} == settings
    for number, trial in trials.items():
        summary = summary_of(folder / trial.name)
        # Nothing is lost from the account, and what had ended was not trained again.
        dropped = sum(summary["agent_steps_dropped"].values())
        assert summary["agent_steps_sampled"] == summary["agent_steps_applied"] + dropped
        assert summary["frames"] == trial.frames >= 40_000
        assert finished.get(number, summary) == summary
        assert json.loads((folder / trial.name / "config.json").read_text())["stop_at_return"] is None
    result = json.loads((folder / "sweep.json").read_text())
    best = max(trials.values(), key=lambda trial: trial.score or 0.0)
    assert result["best"] == best.number
    assert sum(result["importances"].values()) == pytest.approx(1.0)
    rows = list(csv.DictReader((folder / "trials.csv").read_text().splitlines()[1:]))
    assert [float(row["optimizer.learning_rate"]) for row in rows] == [
        trial.settings["optimizer.learning_rate"] for trial in trials.values()
    ]
    assert (folder / "importance.png").is_file()

    # The best settings train, by the command that the sweep names.
    run = tmp_path / "best"
    assert main(f"train --config {folder / 'best.toml'} --total-frames 2000 --run-dir {run}".split()) == 0
    config = json.loads((run / "config.json").read_text())
    assert config["optimizer"]["learning_rate"] == best.settings["optimizer.learning_rate"]
    assert config["actor"]["unroll_length"] == best.settings["actor.unroll_length"]


def resumed(run: Path) -> str:
    log = run.with_name(f"{run.name}.log")
    # Its process says so when it starts a second time.
    return "goes on" if log.read_text().count("run folder:") > 1 else ""


def test_ctrl_c_saves_what_runs_and_more_trials_can_be_asked_for(tmp_path: Path) -> None:
    """With ASHA, a trial that was stopped stays so when the sweep goes on."""
    file, folder = tmp_path / "cartpole.toml", tmp_path / "sweep"
    asha = "asha = { grace_frames = 10_000, reduction_factor = 2 }"
    text = FILE.replace("40_000", "30_000").replace('"optuna"', '"random"')
    file.write_text(text.replace("trials = 12", f"trials = 4\n{asha}"))
    with sweeping(file, folder) as sweep:
        run = sweep.wait_for(sweep.training, "a trial that trains")
        sweep.process.send_signal(signal.SIGINT)
        sweep.end(130)
        assert holder_of(run) is None
        assert summary_of(run)["status"] == "interrupted"
        assert sweep.ended() != set(range(4))
    with sweeping(file, folder) as sweep:
        sweep.end(0)
    first = TrialBook(folder).trials
    assert {trial.ended for trial in first.values()} <= {"done", "stopped"}
    file.write_text(text.replace("trials = 12", f"trials = 5\n{asha}"))
    with sweeping(file, folder) as sweep:
        sweep.end(0)
    after = TrialBook(folder).trials
    assert len(after) == 5
    assert {number: after[number] for number in first} == first
