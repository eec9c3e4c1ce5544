"""A sweep on the real Ray Tune and Optuna: it loses no trial, whichever of its processes is killed."""

import csv
import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from accounts import account_of
from sweeping import sweeping

from launch.cli import main
from launch.run.folder import holder_of
from launch.sweep.book import TrialBook

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(1800)]

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


def test_all_trials_end_though_one_of_their_processes_and_the_driver_are_killed(tmp_path: Path) -> None:
    file, folder = tmp_path / "cartpole.toml", tmp_path / "sweep"
    file.write_text(FILE)
    with sweeping(file, folder) as sweep:
        sweep.kill_a_trial()
        sweep.wait_for(lambda: went_on(folder), "a trial that was killed, going on")
        sweep.wait_for(lambda: len(sweep.ended()) >= 3 and sweep.training(), "three trials that have ended")
        sweep.process.kill()
        sweep.process.wait()
        before = sweep.ended()
        settings = {number: trial.settings for number, trial in TrialBook(folder).trials.items()}
        finished = {number: account_of(folder / f"trial-{number:02}") for number in before}
    assert 3 <= len(before) < TRIALS
    with sweeping(file, folder) as sweep:
        sweep.end(0)
    trials = TrialBook(folder).trials
    assert [(number, trial.ended) for number, trial in trials.items()] == [(n, "done") for n in range(TRIALS)]
    assert {number: trials[number].settings for number in settings} == settings
    for number, trial in trials.items():
        # What had ended was not trained again.
        summary = account_of(folder / trial.name)
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


def went_on(folder: Path) -> bool:
    # A process says so when it starts, and the log of a trial is that of all its processes.
    return any(log.read_text().count("run folder:") > 1 for log in folder.glob("trial-*.log"))


def test_ctrl_c_saves_what_runs_and_more_trials_can_be_asked_for(tmp_path: Path) -> None:
    """With ASHA, a trial that was stopped stays so when the sweep goes on."""
    file, folder = tmp_path / "cartpole.toml", tmp_path / "sweep"
    asha = "asha = { grace_frames = 10_000, reduction_factor = 2 }"
    text = FILE.replace("40_000", "100_000").replace('"optuna"', '"random"')
    file.write_text(text.replace("trials = 12", f"trials = 4\n{asha}"))
    with sweeping(file, folder) as sweep:
        run = sweep.wait_for(sweep.training, "a trial that trains")
        holder = holder_of(run)
        assert holder is not None
        assert holder.pid is not None
        # It would otherwise reach its frames while Tune ends. The system wakes it where its parent goes before it.
        os.kill(holder.pid, signal.SIGSTOP)
        sweep.process.send_signal(signal.SIGINT)
        sweep.wait_for(lambda: "to be saved" in sweep.log() or holder_of(run) is None, "the trial that is asked to end")
        with suppress(ProcessLookupError):
            os.kill(holder.pid, signal.SIGCONT)
        sweep.end(130)
        assert holder_of(run) is None
        assert account_of(run)["status"] == "interrupted"
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
