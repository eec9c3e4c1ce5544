"""What a lag study makes of its rows: means, intervals, the best rate, and what a correction gains."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from launch.bench.arrival_model import ArrivalModel
from launch.bench.lag_result import Mean, bootstrapped, markdown, result_of, show, summarise, write
from launch.bench.lag_study import LagStudy
from launch.presets import PRESETS

CONFIG = PRESETS["cartpole"].config


def row(actors: int, correction: str, rate: float, seed: int, returned: float | None, k: int = 1) -> dict[str, Any]:
    return {
        "actors": actors,
        "gradients_per_update": k,
        "correction": correction,
        "rate": rate,
        "seed": seed,
        "evaluation_mean_return": returned,
        "mean_return_100": 9.0,
        "curve": [None, 10.0, 30.0],
        "policy_lag_mean": (actors - 1) / k,
        "policy_lag_max": 2 * actors,
        "learning_rate": 2e-3 * rate,
        "failure": None if returned is not None else "3 gradients in a row were not finite",
    }


def test_an_interval_is_of_resampled_seeds() -> None:
    assert bootstrapped([np.array([4.0])]) == Mean(4.0, None, None)
    assert bootstrapped([np.array([4.0, 4.0])]) == Mean(4.0, 4.0, 4.0)
    # Two seeds: a quarter of the resamples has one of them twice.
    assert bootstrapped([np.array([0.0, 10.0])]) == Mean(5.0, 0.0, 10.0)
    values = np.random.default_rng(0).normal(3.0, 2.0, 400)
    found = bootstrapped([values])
    assert (found.low, found.high) == pytest.approx((values.mean() - 0.196, values.mean() + 0.196), abs=0.02)
    # Strata are drawn from apart: what differs between them does not widen the interval.
    far = bootstrapped([values, values + 1000.0])
    assert far.mean == pytest.approx(503.0, abs=0.2)
    assert far.high - far.low == pytest.approx(0.39 / np.sqrt(2), abs=0.03)


def test_the_best_rate_counts_and_gains_are_of_the_same_seeds() -> None:
    rows = [
        *(row(8, "none", 1.0, seed, 100.0 + seed) for seed in (1, 2, 3)),
        *(row(8, "none", 2.0, seed, 50.0) for seed in (1, 2, 3)),
        *(row(8, "gap", 1.0, seed, 100.0) for seed in (1, 2)),
        *(row(8, "gap", 2.0, seed, 110.0 + 3 * seed) for seed in (1, 2)),
        # As good in the end, and later.
        *(row(8, "gap", 0.5, seed, 110.0 + 3 * seed) | {"curve": [9.0]} for seed in (1, 2)),
        # One seed of a rate that is not done yet.
        row(8, "gap", 1.5, 1, 500.0),
        row(8, "clipped", 2.0, 1, None),
    ]
    result = summarise(rows)
    assert [(cell["correction"], cell["rate"]) for cell in result["best"]] == [
        ("none", 1.0), ("gap", 2.0), ("clipped", 2.0)
    ]  # fmt: skip
    none, gap, clipped = result["best"]
    assert none["return"]["mean"] == 102.0
    assert none["return_over_the_run"]["mean"] == 20.0
    assert "gain_of_return" not in none
    # 113 - 101 and 116 - 102.
    assert gap["gain_of_return"] == {"mean": 13.0, "low": 12.0, "high": 14.0}
    # Weights that are not finite play no evaluation.
    assert (clipped["return"]["mean"], clipped["failed"]) == (9.0, 1)
    assert clipped["gain_of_return"] == {"mean": -92.0, "low": None, "high": None}
    assert result["by_actors"][0] == {
        "correction": "gap",
        "actors": 8,
        "of": "return",
        "mean": 13.0,
        "low": 12.0,
        "high": 14.0,
    }
    table = markdown(CONFIG, result).splitlines()
    assert table[0] == "| K | actors | policy lag | none | gap | clipped |"
    assert table[2] == "| 1 | 8 | 7 | 102 (101 to 103) ×1 | 114 (113 to 116) ×2 ↑ | 9 ×2, 1 failed |"
    assert (
        "CartPole-v1, 2,000,000 frames; the last weights play 100 episodes, greedy actions. Seeds 1, 2, 3." in table[4]
    )
    assert table[10] == "| 1 | 8 | 7 | 20 (20 to 20) ×1 | 20 (20 to 20) ×2 | 20 ×2, 1 failed |"


def test_what_has_no_return_is_in_no_mean_and_counted() -> None:
    nothing: dict[str, Any] = {"mean_return_100": None, "curve": [None]}
    rows = [
        row(8, "none", 1.0, 2, 100.0),
        row(8, "gap", 1.0, 1, 110.0),
        row(8, "gap", 1.0, 2, 120.0),
        row(8, "gap", 1.0, 3, None) | nothing,
        row(8, "inverse", 1.0, 1, None) | nothing,
    ]
    none, gap = summarise(rows)["best"]
    assert (gap["return"]["mean"], gap["seeds"], gap["failed"]) == (115.0, 2, 1)
    # Only the second seed has both.
    assert gap["gain_of_return"]["mean"] == 20.0
    assert (none["failed"], none["seeds"]) == (0, 1)
    table = markdown(CONFIG, summarise(rows)).splitlines()
    assert table[2] == "| 1 | 8 | 7 | 100 ×1 | 115 (110 to 120) ×1, 1 failed |"


def test_how_far_the_policy_was_is_told_where_rollouts_are_differentiated_again(tmp_path: Path) -> None:
    far = [{"ratio_deviation": 0.1, "clipped_share": 0.04, "approximate_kl": 2e-3}, {}]
    far.append({name: 3 * value for name, value in far[0].items()})
    rows = [row(1, "clipped", 1.0, 1, 500.0, k=32) | far[0], row(8, "none", 1.0, 1, 9.0)]
    rows += [row(8, "clipped", 1.0, seed, 100.0) | drift for seed, drift in enumerate(far)]
    study = LagStudy(tmp_path, CONFIG, ArrivalModel())
    for made in rows:
        study.add(made)
    result = result_of(study)
    text = markdown(CONFIG, result)
    table = text[text.index("| K | actors | policy lag | distance of r from 1") :].splitlines()
    # The row of an earlier study does not tell.
    assert table[2:4] == ["| 1 | 8 | 7 | 0.200 | 8.0% | 0.0040 |", "| 32 | 1 | 0 | 0.100 | 4.0% | 0.0020 |"]
    console = Console(file=StringIO(), width=150)
    show(console, result, tmp_path)
    assert "0.200     8.0%" in console.file.getvalue()
    assert "distance of r" not in markdown(CONFIG, summarise(rows[1:2]))


def test_one_actor_stands_for_all_that_corrects_lag(tmp_path: Path) -> None:
    study = LagStudy(tmp_path, CONFIG, ArrivalModel())
    for made in (row(1, "none", 1.0, 1, 500.0), row(8, "none", 1.0, 1, 450.0), row(8, "inverse", 1.0, 1, 470.0)):
        study.add(made)
    result = result_of(study)
    write(study, result)
    page = (tmp_path / "lag.md").read_text()
    assert "| 1 | 1 | 0 | 500 ×1 | as none |" in page
    assert "| 1 | 8 | 7 | 450 ×1 | 470 ×1 |" in page
    assert result["command"] in page
    assert json.loads((tmp_path / "lag.json").read_text())["best"][2]["gain_of_return"]["mean"] == 20.0
    assert (tmp_path / "lag.svg").read_text().endswith("</svg>\n")
