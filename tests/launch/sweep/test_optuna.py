"""The search by Optuna's sampler, what it is told, and that it goes on from our own lines."""

import math
from pathlib import Path
from typing import Any

import pytest

from launch.presets import PRESETS
from launch.presets.written import read_config_file
from launch.sweep.book import Trial, TrialBook
from launch.sweep.file import Plan, Range, Settings, Space, Sweep
from launch.sweep.outcome import outcome
from launch.sweep.results import values, write
from launch.sweep.search import OptunaSearch

# It is installed by `make sweep-test`.
pytestmark = pytest.mark.sweep

SPACE: Space = {
    "optimizer.learning_rate": Range(1e-5, 1e-1, log=True),
    "actor.unroll_length": Range(1, 30, whole=True),
    "network.activation": ["tanh", "relu"],
}
SWEEP = Sweep("cartpole", PRESETS["cartpole"].config, Plan(space={}), SPACE, 12)


def ended(number: int, settings: Settings, score: float | None, how: Any = "done") -> Trial:
    return Trial(number, settings, how, 1000, score)


def good(settings: Settings) -> float:
    """Best at a learning rate of 1e-3 and short rollouts."""

    return -abs(math.log10(float(settings["optimizer.learning_rate"])) + 3) - 0.02 * int(
        settings["actor.unroll_length"]
    )


def test_it_finds_better_settings_than_it_began_with() -> None:
    search = OptunaSearch(SWEEP, [])
    scores = []
    for number in range(60):
        settings = search.suggest(number)
        assert isinstance(settings["actor.unroll_length"], int)
        assert settings["network.activation"] in ("tanh", "relu")
        scores.append(good(settings))
        search.report(number, 1000, scores[-1])
        search.ended(ended(number, settings, scores[-1]))
    assert sum(scores[40:]) / 20 > sum(scores[:10]) / 10


def test_it_goes_on_from_trials_as_if_it_had_not_stopped() -> None:
    first = OptunaSearch(SWEEP, [])
    before = []
    for number in range(12):
        settings = first.suggest(number)
        if number == 10:
            before.append(Trial(number, settings))
        else:
            how = "stopped" if number % 3 == 0 else "done"
            trial = ended(number, settings, None if number == 5 else good(settings), "failed" if number == 5 else how)
            if trial.score is not None:
                first.report(number, trial.frames, trial.score)
            first.ended(trial)
            before.append(trial)
    again = OptunaSearch(SWEEP, before)
    assert {number: trial.params for number, trial in again._running.items()} == {
        10: first._running[10].params,
    }
    study = [(t.state, t.params, t.value) for t in again._study.trials]
    assert sorted(study, key=str) == sorted(((t.state, t.params, t.value) for t in first._study.trials), key=str)
    assert again.suggest(12) == first.suggest(12)
    again.ended(before[10]._replace(ended="done", score=1.0))
    assert again._study.best_value == 1.0


def test_what_a_sweep_leaves_says_what_mattered(tmp_path: Path) -> None:
    book, search = TrialBook(tmp_path), OptunaSearch(SWEEP, [])
    for number in range(12):
        settings = search.suggest(number)
        book.start(number, settings)
        book.end(ended(number, settings, good(settings), "stopped" if number == 3 else "done"))
    # One that was stopped is the best only where none has played to its end.
    book.trials[3] = book.trials[3]._replace(score=100.0)
    found = outcome(SWEEP, tmp_path, book)
    assert found.best is not None
    assert found.best.score == max(t.score for n, t in book.trials.items() if n != 3 and t.score is not None)
    assert found.importances is not None
    assert next(iter(found.importances)) == "optimizer.learning_rate"
    assert {file.name for file in write(found)} == {"trials.csv", "sweep.json", "importance.png", "best.toml"}
    assert values(found)["best"] == found.best.number
    file = read_config_file(tmp_path / "best.toml")
    assert file.preset == "cartpole"
    assert file.over(PRESETS["cartpole"].config) == SWEEP.config(found.best.settings)
    few = TrialBook(tmp_path / "few")
    few.trials = {n: t for n, t in book.trials.items() if n < 5}
    assert outcome(SWEEP, tmp_path, few).importances is None
