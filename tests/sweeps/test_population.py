"""Population-based training on the real Ray Tune: who takes whose weights is written down, and each is taken once."""

import json
import re
from pathlib import Path

import pytest
from accounts import account_of
from sweeping import sweeping

from launch.sweep.book import TrialBook

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(1800)]

TRIALS, FRAMES, INTERVAL = 2, 160_000, 40_000
# One that learns nothing is the worse one before long.
FILE = f"""
preset = "cartpole"
total_frames = {FRAMES}
actors = 1
executor = "inline"
log_every_seconds = 0.2
evaluation.every_frames = 0
network.hidden_sizes = [32]

[sweep]
search = "grid"
pbt = {{ interval_frames = {INTERVAL}, quantile = 0.5 }}

[sweep.space]
"optimizer.learning_rate" = [1e-9, 3e-3]
"""


def taken(run: Path) -> list[int]:
    """The numbers of the exploits that a run says it has taken, in their order."""
    log = (run / "log.txt").read_text() if (run / "log.txt").is_file() else ""
    return [int(number) for number in re.findall(r"exploit (\d+): goes on with the weights of trial-", log)]


def test_a_population_loses_nothing_though_a_trial_and_the_driver_are_killed(tmp_path: Path) -> None:
    file, folder = tmp_path / "population.toml", tmp_path / "sweep"
    file.write_text(FILE)
    with sweeping(file, folder) as sweep:
        # Nobody is killed before: a trial that starts anew may come when the other one has ended.
        sweep.wait_for(lambda: TrialBook(folder).exploits, "a trial that goes on with another one's weights")
        sweep.kill_a_trial(1_000)
        sweep.process.kill()
        sweep.process.wait()
    before = TrialBook(folder)
    assert {trial.ended for trial in before.trials.values()} <= {None, "done"}
    with sweeping(file, folder) as sweep:
        sweep.end(0)
    book = TrialBook(folder)
    assert [(number, trial.ended) for number, trial in book.trials.items()] == [(n, "done") for n in range(TRIALS)]
    assert book.exploits[: len(before.exploits)] == before.exploits
    for trial in book.trials.values():
        run = folder / trial.name
        # Its frames are those that it played itself, whosever weights it played them with.
        summary = account_of(run)
        assert FRAMES <= summary["frames"] == trial.frames < FRAMES + INTERVAL
        # One that died before it had saved them takes them again.
        assert sorted(set(taken(run))) == list(range(1, trial.exploits + 1))
        assert taken(run) == sorted(taken(run))
        assert summary["exploits"] == trial.exploits
        assert (
            json.loads((run / "config.json").read_text())["optimizer"]["learning_rate"]
            == trial.settings["optimizer.learning_rate"]
        )
    for exploit in book.exploits:
        assert exploit.source_score >= exploit.score
        assert exploit.frames < FRAMES
    result = json.loads((folder / "sweep.json").read_text())
    assert len(result["exploits"]) == len(book.exploits)
    assert result["importances"] is None
    assert (folder / "population.png").is_file()
    assert "see trials.jsonl" in (folder / "best.toml").read_text()
