"""Sweeps on the real Ray Tune and Optuna, whose processes are killed, stopped or fail; and `tributary_rl.trainable`."""

import csv
import json
import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from accounts import account_of
from sessions import QUICK
from watched_processes import Watched, output_of

import tributary_rl as tributary
from launch.cli import main
from launch.run.folder import RunFolder, holder_of, last_row
from learner.checkpoint import read_state
from shared.errors import ConfigurationError

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(1800)]

TRIALS = 8
FILE = """
preset = "cartpole"
total_frames = 40_000
actors = 1
executor = "inline"
log_every_seconds = 0.5
evaluation.every_frames = 0
network.hidden_sizes = [32]

[sweep]
search = "optuna"
trials = 8

[sweep.space]
"optimizer.learning_rate" = { low = 1e-4, high = 1e-2, log = true }
"actor.unroll_length" = [5, 10, 20]
"""


class Sweep(Watched):
    """`tributary sweep FILE --output FOLDER`."""

    seconds = 900

    def __init__(self, file: Path, folder: Path) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "launch.cli", "sweep", file, "--output", folder]
        super().__init__(command, folder.with_suffix(".log"))

    def ended(self) -> set[str]:
        """The names of the trials that have ended, by the lines of the command."""
        return set(re.findall(r"^(trial-\d+): (?:done|stopped|refused|failed),", self.printed(), re.MULTILINE))

    def training(self, least_frames: int = 5_000) -> Path | None:
        for config in self.folder.glob("trial-*/config.json"):
            run = config.parent
            if last_row(RunFolder(run)).get("frames", 0) > least_frames and holder_of(run) is not None:
                return run
        return None

    def kill_a_trial(self, least_frames: int = 5_000) -> None:
        """Kill the process of a trial that trains, until Tune has started another try of one."""
        killed = set[int]()

        def another_try() -> bool:
            victim = self.training(least_frames)
            holder = None if victim is None else holder_of(victim)
            if holder is not None and holder.pid is not None and holder.pid not in killed:
                killed.add(holder.pid)
                with suppress(ProcessLookupError):
                    os.kill(holder.pid, signal.SIGKILL)
            return "its process died" in self.printed()

        self.wait_for(another_try, "another try of a trial that was killed")


def trials_of(folder: Path) -> dict[str, dict[str, Any]]:
    return {Path(trial["run"]).name: trial for trial in json.loads((folder / "sweep.json").read_text())["trials"]}


def test_all_trials_end_though_one_of_their_processes_and_the_driver_are_killed(tmp_path: Path) -> None:
    file, folder = tmp_path / "cartpole.toml", tmp_path / "sweep"
    file.write_text(FILE)
    with Sweep(file, folder) as sweep:
        sweep.kill_a_trial()
        sweep.wait_for(lambda: len(sweep.ended()) >= 2 and sweep.training(), "two trials that have ended")
        before = sweep.ended()
        sweep.kill()
        finished = {name: account_of(folder / name) for name in before}
    assert len(before) < TRIALS
    with Sweep(file, folder) as sweep:
        sweep.end(0)
    trials = trials_of(folder)
    assert [(name, trial["ended"]) for name, trial in trials.items()] == [
        (f"trial-{number:02}", "done") for number in range(TRIALS)
    ]
    for name, trial in trials.items():
        summary = account_of(folder / name)
        assert summary["frames"] == trial["frames"] >= 40_000
        # What had ended was not trained again.
        assert finished.get(name, summary) == summary
        config = json.loads((folder / name / "config.json").read_text())
        assert config["stop_at_return"] is None
        assert config["optimizer"]["learning_rate"] == trial["settings"]["optimizer.learning_rate"]
    result = json.loads((folder / "sweep.json").read_text())
    best = max(trials.values(), key=lambda trial: trial["score"])
    assert result["best"] == best["number"]
    rows = list(csv.DictReader((folder / "trials.csv").read_text().splitlines()[1:]))
    assert [float(row["optimizer.learning_rate"]) for row in rows] == [
        trial["settings"]["optimizer.learning_rate"] for trial in trials.values()
    ]

    # The best settings train, by the command that the sweep prints.
    run = tmp_path / "best"
    assert main(f"train --config {folder / 'best.toml'} --total-frames 2000 --run-dir {run}".split()) == 0
    config = json.loads((run / "config.json").read_text())
    assert config["optimizer"]["learning_rate"] == best["settings"]["optimizer.learning_rate"]
    assert config["actor"]["unroll_length"] == best["settings"]["actor.unroll_length"]


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_saves_what_runs_and_the_same_command_continues(kind: signal.Signals, tmp_path: Path) -> None:
    file, folder = tmp_path / "cartpole.toml", tmp_path / "sweep"
    asha = "asha = { grace_frames = 10_000, reduction_factor = 2 }"
    text = FILE.replace("40_000", "60_000").replace('"optuna"', '"random"').replace("trials = 8", f"trials = 3\n{asha}")
    file.write_text(text)
    with Sweep(file, folder) as sweep:
        run = sweep.wait_for(sweep.training, "a trial that trains")
        sweep.process.send_signal(kind)
        sweep.end(130)
        assert holder_of(run) is None
        interrupted = account_of(run)
        assert interrupted["status"] == "interrupted" or interrupted["frames"] >= 60_000
    with Sweep(file, folder) as sweep:
        sweep.end(0)
    trials = trials_of(folder)
    assert list(trials) == ["trial-00", "trial-01", "trial-02"]
    assert {trial["ended"] for trial in trials.values()} <= {"done", "stopped"}
    assert "done" in {trial["ended"] for trial in trials.values()}
    assert account_of(run)["frames"] >= interrupted["frames"]
    file.write_text(text.replace("trials = 3", "trials = 4"))
    with Sweep(file, folder) as sweep:
        sweep.end(2)
        assert "has a sweep with other settings" in sweep.printed()


def test_trials_that_cannot_be_trained_end_with_their_reason(tmp_path: Path) -> None:
    """A learning rate that diverges, and two settings that are invalid together, of which neither is invalid alone."""
    file, folder = tmp_path / "cartpole.toml", tmp_path / "sweep"
    text = FILE.replace("40_000", "4_000").replace('"optuna"\ntrials = 8', '"grid"')
    text = text.replace("{ low = 1e-4, high = 1e-2, log = true }", "[1e-3, 1e30]").replace("[5, 10, 20]", "[32, 5]")
    file.write_text(text + '"actor.minibatches" = [1, 16]\n')
    with Sweep(file, folder) as sweep:
        sweep.end(0)
    trials = {tuple(trial["settings"].values()): trial for trial in trials_of(folder).values()}
    ended = {settings: trial["ended"] for settings, trial in trials.items()}
    assert [ended[1e-3, 32, 1], ended[1e-3, 5, 1], ended[1e-3, 32, 16]] == ["done"] * 3
    assert ended[1e-3, 5, 16] == ended[1e30, 5, 16] == "refused"
    assert ended[1e30, 5, 1] == "failed"
    assert "--actor.minibatches 16: does not divide" in trials[1e-3, 5, 16]["reason"]
    assert "finite" in trials[1e30, 5, 1]["reason"]


FRAMES, INTERVAL = 160_000, 40_000
# A trial with the lower learning rate learns nothing, and is soon the worse one.
POPULATION = (
    FILE.partition("[sweep]")[0].replace("40_000", f"{FRAMES}").replace("seconds = 0.5", "seconds = 0.2")
    + f"""
[sweep]
search = "grid"
pbt = {{ interval_frames = {INTERVAL}, quantile = 0.5 }}

[sweep.space]
"optimizer.learning_rate" = [1e-9, 3e-3]
"""
)


def learning_rate(run: Path) -> float | None:
    file = run / "config.json"
    return json.loads(file.read_text())["optimizer"]["learning_rate"] if file.is_file() else None


def test_a_bad_trial_continues_from_a_good_one_though_a_trial_and_the_driver_are_killed(tmp_path: Path) -> None:
    file, folder = tmp_path / "population.toml", tmp_path / "sweep"
    file.write_text(POPULATION)
    with Sweep(file, folder) as sweep:
        sweep.wait_for(lambda: learning_rate(folder / "trial-00") == 3e-3, "a trial with the settings of the other")
        sweep.kill_a_trial(1_000)
        sweep.kill()
    with Sweep(file, folder) as sweep:
        sweep.end(0)
    result = json.loads((folder / "sweep.json").read_text())
    assert [trial["ended"] for trial in result["trials"]] == ["done", "done"]
    for trial in result["trials"]:
        run = folder / f"trial-{trial['number']:02}"
        assert FRAMES <= account_of(run)["frames"] == trial["frames"] < FRAMES + INTERVAL
        assert learning_rate(run) == trial["settings"]["optimizer.learning_rate"]
        assert trial["score"] > 25.0


PAGE = Path(__file__).parents[2] / "docs" / "sweeps.md"


def test_the_example_of_the_document_finds_settings_and_scores_their_agent(tmp_path: Path) -> None:
    """With fewer frames and trials."""
    (script,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    for long, short in (("40_000", "6_000"), ("10_000", "2_000"), ("num_samples=4", "num_samples=2")):
        assert long in script
        script = script.replace(long, short)
    (tmp_path / "script.py").write_text(f"import os\nos.environ['HOME'] = {str(tmp_path)!r}\n{script}")
    config, score = output_of(sys.executable, "script.py", cwd=tmp_path, timeout=900).splitlines()[-2:]
    assert re.search(r"'optimizer.learning_rate': 0\.\d+.*\} [1-9]\d*\.\d+ [1-9]\d+$", config), config
    assert float(score) > 0


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a trial as Tune does in its worker, with Tune's settings."""
    monkeypatch.setattr("ray.tune.trainable.trainable.DEFAULT_STORAGE_PATH", str(tmp_path))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    trials = []

    def make(config: dict[str, Any], total_frames: int) -> Any:
        kind = tributary.trainable("cartpole", total_frames=total_frames, settings=QUICK)
        trials.append(kind(config))
        return trials[-1]

    yield make
    for trial in trials:
        trial.stop()


def test_a_trial_goes_on_from_the_checkpoint_of_another_one_with_its_own_settings(made: Any, tmp_path: Path) -> None:
    first = made({"optimizer.learning_rate": 1e-3}, 10**9)
    row = first.train()
    while row["frames"] < 2_000:
        row = first.train()
    assert {"agent_steps", "mean_return_100", "evaluation_return"} < row.keys()
    assert row["evaluation_return"] != row["evaluation_return"], "there was none"
    saved = first.save(str(tmp_path / "saved"))
    run = Path(first.logdir) / "run"
    first.stop()
    assert holder_of(run) is None
    assert account_of(run)["status"] == "interrupted"
    assert not list(Path(saved.checkpoint.path).rglob("*.pkl"))
    copy = Path(saved.checkpoint.path)
    assert tributary.Run(copy).rows()[-1]["frames"] >= row["frames"]
    checkpointed = read_state(copy / "checkpoints")["ledger"]["sampled"]

    second = made({"optimizer.learning_rate": 2e-3}, row["frames"] + 4_000)
    second.restore(saved)
    rows = [second.train()]
    while not rows[-1]["done"]:
        rows.append(second.train())
    run = Path(second.logdir) / "run"
    # Its account is that of the copy, from the last checkpoint on, which may be a row older than the last row.
    assert rows[0]["frames"] > checkpointed > 0
    assert account_of(run)["frames"] == rows[-1]["frames"] >= row["frames"] + 4_000
    assert json.loads((run / "config.json").read_text())["optimizer"]["learning_rate"] == 2e-3


def test_a_mistake_is_told_in_the_words_of_the_command_line(made: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"did you mean optimizer\.learning_rate"):
        made({"optimizer.learning_rat": 1e-3}, 1000)
    with pytest.raises(ConfigurationError, match=r"--actors auto: set a number"):
        tributary.trainable("cartpole")
    with pytest.raises(ConfigurationError, match=r"--storage file:///copy: is of one run"):
        tributary.trainable("cartpole", settings={"actors": 1, "storage": "file:///copy"})
    wrong = made({"network.name": "a3c_cnn"}, 1000)
    with pytest.raises(ConfigurationError, match=r"--network.name a3c_cnn"):
        wrong.train()
