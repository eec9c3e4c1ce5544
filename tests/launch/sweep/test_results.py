"""The results of a sweep whose trials have no return, or none that is finite."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launch.results.curves import EVALUATION_RETURN
from launch.sweep.command import best_of, trials_of, write
from launch.sweep.file import read_sweep

FILE = """
preset = "cartpole"
actors = 1
total_frames = 40_000

[sweep]
search = "random"
trials = 5
space = { method.discount = [0.98, 0.99] }
"""


def trial(number: int, row: dict[str, Any]) -> Any:
    """A result of Tune's with its last row."""
    metrics = {"frames": 40_000, "done": True, "ended": "done"} | row
    return SimpleNamespace(path=f"trial-{number:02}", config={"method.discount": 0.98}, metrics=metrics, error=None)


@pytest.mark.filterwarnings("error")
def test_a_trial_whose_return_is_not_finite_is_listed_without_one_and_never_the_best(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(FILE)
    scores = (float("nan"), -3.0, None, float("inf"))
    trials = [trial(number, {EVALUATION_RETURN: score}) for number, score in enumerate(scores)]
    plan = read_sweep(tmp_path / "sweep.toml")
    found = trials_of(plan, [*trials, trial(4, {})], EVALUATION_RETURN)
    assert [trial.score for trial in found] == [None, -3.0, None, None, None]
    assert best_of(found) == found[1]
    write(plan, tmp_path, found, best_of(found), None)
    written = json.loads((tmp_path / "sweep.json").read_text(), parse_constant=pytest.fail)
    assert [trial["score"] for trial in written["trials"]] == [None, -3.0, None, None, None]
    assert written["best"] == 1
