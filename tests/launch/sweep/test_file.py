"""The file of a sweep: what cannot be is one line, before any trial starts; and results without a finite return."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launch.results.curves import EVALUATION_RETURN
from launch.sweep.command import best_of, trials_of, write
from launch.sweep.file import Asha, Pbt, Range, read_sweep
from shared.errors import ConfigurationError

GOOD = """
preset = "cartpole"
actors = 1
total_frames = 40_000

[optimizer]
epsilon = 1e-4

[sweep]
search = "random"
trials = 3
asha = { grace_frames = 5_000 }

[sweep.space]
"optimizer.learning_rate" = { low = 1e-4, high = 1e-2, log = true }
actor.unroll_length = { low = 5, high = 20 }
method.discount = [0.98, 0.99]
"""


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "sweep.toml"
    file.write_text(text)
    return file


def test_settings_are_of_the_preset_and_the_file_and_trials_end_by_their_frames(tmp_path: Path) -> None:
    sweep = read_sweep(written(tmp_path, GOOD))
    assert (sweep.preset, sweep.trials, sweep.plan.search) == ("cartpole", 3, "random")
    assert (sweep.base.environment.id, sweep.base.optimizer.epsilon) == ("CartPole-v1", 1e-4)
    assert sweep.base.stop_at_return is None
    stops = read_sweep(written(tmp_path, GOOD.replace("actors = 1", "actors = 1\nstop_at_return = 400.0")))
    assert stops.base.stop_at_return == 400.0
    stops = read_sweep(written(tmp_path, GOOD.replace("actors = 1", "actors = 1\nstop_at_return = 400.0")))
    assert stops.base.stop_at_return == 400.0
    assert sweep.plan.asha == Asha(5_000, 3)
    assert sweep.space == {
        "optimizer.learning_rate": Range(1e-4, 1e-2, log=True),
        "actor.unroll_length": Range(5, 20, whole=True),
        "method.discount": [0.98, 0.99],
    }


POPULATION = GOOD.replace("trials = 3", "trials = 4").replace(
    "asha = { grace_frames = 5_000 }",
    'pbt = { interval_frames = 5_000, mutable = ["optimizer.learning-rate"], quantile = 0.5 }',
)


def test_a_population_draws_at_random_unless_a_grid_is_requested(tmp_path: Path) -> None:
    sweep = read_sweep(written(tmp_path, POPULATION))
    assert sweep.plan.pbt == Pbt(5_000, ("optimizer.learning_rate",), 0.5)
    assert sweep.mutable == ["optimizer.learning_rate"]
    grid = '[sweep]\nsearch = "grid"\n[sweep.space]\nseed = [1, 2, 3]\nmethod.discount = [0.9, 0.99]'
    assert read_sweep(written(tmp_path, f'preset = "cartpole"\nactors = 1\n{grid}')).trials == 6
    every = read_sweep(written(tmp_path, POPULATION.replace('mutable = ["optimizer.learning-rate"], ', "")))
    assert every.mutable == list(every.space)
    assert read_sweep(written(tmp_path, POPULATION.replace('search = "random"', ""))).plan.search == "random"
    assert read_sweep(written(tmp_path, GOOD.replace('search = "random"', ""))).plan.search == "optuna"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("trials = 4", "trials = 4\nasha = { grace_frames = 5_000 }", "asha and pbt: one of them decides"),
        ('"random"', '"optuna"', "its trials start together"),
        ("trials = 4", "trials = 1", "trials 1: pbt compares trials"),
        ("interval_frames = 5_000", "interval_frames = 40_000", "above 0 and below total_frames 40000"),
        ('"optimizer.learning-rate"', '"optimizer.epsilon"', "optimizer.epsilon: is not in [sweep.space]"),
        (
            "[0.98, 0.99]",
            "[0.98, 0.99]\nnetwork.layer_norm = [true, false]",
            "[sweep.space] network.layer_norm: with pbt",
        ),
    ],
)
def test_what_a_population_cannot_be_is_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in POPULATION
    with pytest.raises(ConfigurationError, match=r"sweep.toml") as raised:
        read_sweep(written(tmp_path, POPULATION.replace(old, new)))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_setting_that_has_an_effect_in_some_trials_may_be_searched(tmp_path: Path) -> None:
    space = '[0.98, 0.99]\noptimizer.name = ["rmsprop", "adam"]\noptimizer.decay = { low = 0.9, high = 0.99 }'
    sweep = read_sweep(
        written(tmp_path, GOOD.replace("[0.98, 0.99]", space).replace("epsilon", "name = 'adam'\nepsilon"))
    )
    assert sweep.space["optimizer.decay"] == Range(0.9, 0.99)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[sweep", "[swep", "no table"),
        ('preset = "cartpole"', 'preset = "cartpol"', "preset cartpol: name one, did you mean cartpole?"),
        ('"random"', '"annealing"', "annealing"),
        ("trials = 3", "", "trials None: must be a number"),
        ('"random"', '"grid"', "optimizer.learning_rate has a range: give it a list"),
        ("low = 1e-4", "low = 1e-1", "low 0.1 must be below high 0.01"),
        ("optimizer.learning_rate", "optimizer.learning_rat", "did you mean"),
        ("[0.98, 0.99]", "0.98", "must be a list of choices"),
        ("grace_frames = 5_000", "grace_frames = 50_000", "above 0 and below total_frames 40000"),
        ("trials = 3", 'trials = 3\nmaximise = "evaluation"', "needs evaluation.every_frames"),
        ("actors = 1", 'actors = 1\nstorage = "s3://bucket/run"', "--storage s3://bucket/run: is of one run"),
        ("actors = 1", 'actors = 1\naddress = "auto"', "tributary sweep FILE --address"),
        ("actors = 1", "", "actors auto: set a number"),
        ("[0.98, 0.99]", "[0.98, 0.99]\nenvironment.max_noops = [1, 2]", "--environment.max-noops 30: is for Atari"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = GOOD.replace(old, new).replace("evaluation.every_frames = 0", "")
    if "evaluation" in new:
        text = text.replace("actors = 1", "actors = 1\nevaluation.every_frames = 0\nstop_measure = 'training'")
    with pytest.raises(ConfigurationError, match=r"sweep.toml") as raised:
        read_sweep(written(tmp_path, text))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[[str], str]) -> None:
    monkeypatch.setattr("launch.sweep.file.find_spec", lambda _name: None)
    assert "pip install 'tributary-rl[tune]'" in refused(f"sweep {written(tmp_path, GOOD)}")


def trial(number: int, row: dict[str, Any]) -> Any:
    """A result of Tune's with its last row."""
    metrics = {"frames": 40_000, "done": True, "ended": "done"} | row
    settings = {"optimizer.learning_rate": 1e-3, "actor.unroll_length": 5, "method.discount": 0.98}
    return SimpleNamespace(path=f"trial-{number:02}", config=settings, metrics=metrics, error=None)


@pytest.mark.filterwarnings("error")
def test_a_trial_whose_return_is_not_finite_is_listed_without_one_and_never_the_best(tmp_path: Path) -> None:
    scores = (float("nan"), -3.0, None, float("inf"))
    trials = [trial(number, {EVALUATION_RETURN: score}) for number, score in enumerate(scores)]
    plan = read_sweep(written(tmp_path, GOOD))
    found = trials_of(plan, [*trials, trial(4, {})], EVALUATION_RETURN)
    assert [trial.score for trial in found] == [None, -3.0, None, None, None]
    assert best_of(found) == found[1]
    write(plan, tmp_path, found, best_of(found), None)
    result = json.loads((tmp_path / "sweep.json").read_text(), parse_constant=pytest.fail)
    assert [trial["score"] for trial in result["trials"]] == [None, -3.0, None, None, None]
    assert result["best"] == 1
