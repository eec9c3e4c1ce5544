"""What a lag study makes of its rows: means, intervals, the best rate, and what a correction gains."""

import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from launch.bench.arrival_model import ArrivalModel
from launch.bench.lag_result import markdown, result_of, show, write
from launch.bench.lag_study import LagStudy
from launch.bench.lag_summary import Mean, bootstrapped, summarise
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
        "gradients": 4_000,
        "agent_steps": 1_000,
        "learning_rate": 2e-3 * rate,
        "failure": None if returned is not None else "3 gradients in a row were not finite",
    }


def test_an_interval_is_of_resampled_seeds() -> None:
    assert bootstrapped([np.full(5, 4.0)]) == Mean(4.0, 4.0, 4.0)
    # Of fewer it would be their range, which leaves out 0 too often.
    assert bootstrapped([np.array([4.0, 5.0, 6.0, 5.0])]) == Mean(5.0, None, None)
    values = np.random.default_rng(0).normal(3.0, 2.0, 400)
    found = bootstrapped([values])
    assert (found.low, found.high) == pytest.approx((values.mean() - 0.196, values.mean() + 0.196), abs=0.02)
    # Strata are drawn from apart: what differs between them does not widen the interval.
    far = bootstrapped([values, values + 1000.0])
    assert far.mean == pytest.approx(503.0, abs=0.2)
    assert far.high - far.low == pytest.approx(0.39 / np.sqrt(2), abs=0.03)


def test_the_best_rate_counts_and_gains_are_of_the_same_seeds() -> None:
    seeds = range(1, 6)
    rows = [
        *(row(8, "none", 1.0, seed, 100.0 + seed) for seed in (*seeds, 6)),
        *(row(8, "none", 2.0, seed, 50.0) for seed in (*seeds, 6)),
        *(row(8, "gap", 1.0, seed, 100.0) for seed in seeds),
        *(row(8, "gap", 2.0, seed, 110.0 + 3 * seed) for seed in seeds),
        # As good in the end, and later.
        *(row(8, "gap", 0.5, seed, 110.0 + 3 * seed) | {"curve": [9.0]} for seed in seeds),
        # One seed of a rate that is not done yet.
        row(8, "gap", 1.5, 1, 500.0),
        row(8, "clipped", 2.0, 1, None),
    ]
    result = summarise(rows)
    assert [(cell["correction"], cell["rate"]) for cell in result["best"]] == [
        ("none", 1.0), ("gap", 2.0), ("clipped", 2.0)
    ]  # fmt: skip
    none, gap, clipped = result["best"]
    assert none["return"]["mean"] == 103.5
    assert none["return_over_the_run"]["mean"] == 20.0
    assert "gain_of_return" not in none
    # 113 - 101, 116 - 102 and so on: 12, 14, 16, 18 and 20, but for the sixth seed, which only one of them has.
    gain = gap["gain_of_return"]
    assert (gain["mean"], gain["low"], gain["high"]) == (
        16.0,
        pytest.approx(13.6, abs=0.3),
        pytest.approx(18.4, abs=0.3),
    )
    # Weights that are not finite play no evaluation.
    assert (clipped["return"]["mean"], clipped["failed"]) == (9.0, 1)
    assert clipped["gain_of_return"] == {"mean": -92.0, "low": None, "high": None}
    assert result["by_actors"][0] == {"correction": "gap", "actors": 8, "of": "return", **gain}
    table = markdown(CONFIG, result).splitlines()
    assert table[0] == "| K | actors | policy lag | none | gap | clipped |"
    assert table[2] == "| 1 | 8 | 7 | 104 (102 to 105) ×1 | 119 (115 to 123) ×2 ↑ | 9 ×2, 1 failed |"
    assert "CartPole-v1, 2,000,000 frames; the last weights play 100 episodes, greedy actions. Seeds 1, 2" in table[4]
    assert table[10] == "| 1 | 8 | 7 | 20 (20 to 20) ×1 | 20 (20 to 20) ×2 | 20 ×2, 1 failed |"


def test_what_actors_that_hardly_report_tell_is_not_their_lag(tmp_path: Path) -> None:
    study = LagStudy(tmp_path, CONFIG, ArrivalModel())
    for made in (row(8, "none", 1.0, 1, 500.0), row(1024, "none", 1.0, 1, 450.0), row(2048, "none", 1.0, 1, 450.0)):
        study.add(made)
    result = result_of(study)
    note = "Where there are 1,024 actors or more, each made 3.9 gradients or fewer"
    assert note in markdown(CONFIG, result)
    console = Console(file=StringIO(), width=150)
    show(console, result, tmp_path)
    assert note in console.file.getvalue()
    assert "gradients or fewer" not in markdown(CONFIG, summarise([row(8, "none", 1.0, 1, 500.0)]))


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
    assert table[2] == "| 1 | 8 | 7 | 100 ×1 | 115 ×1, 1 failed |"


def test_what_was_dropped_is_told_and_a_study_without_a_return_is_written(tmp_path: Path) -> None:
    made = row(8, "none", 1.0, 1, 100.0) | {"agent_steps_dropped": {"too_old": 200, "non_finite": 50}}
    assert "| 1 | 8 | 7 | 100 ×1, 25% dropped |" in markdown(CONFIG, summarise([made]))
    study = LagStudy(tmp_path, CONFIG, ArrivalModel())
    study.add(made | {"evaluation_mean_return": None, "mean_return_100": None, "curve": []})
    write(study, result_of(study))
    assert json.loads((tmp_path / "lag.json").read_text())["best"] == []


def test_how_far_the_policy_was_is_told_where_rollouts_are_differentiated_again(tmp_path: Path) -> None:
    far = [{"ratio_deviation": 0.1, "clipped_share": 0.04, "approximate_kl": 2e-3}, {}]
    far.append({name: 3 * value for name, value in far[0].items()})
    rows = [row(1, "clipped", 1.0, 1, 500.0, k=32) | far[0], row(8, "none", 1.0, 1, 9.0)]
    rows += [row(8, "clipped", 1.0, seed, 100.0) | drift for seed, drift in enumerate(far)]
    rows[2]["policy_lag_mean"] = 9.0
    study = LagStudy(tmp_path, CONFIG, ArrivalModel())
    for made in rows:
        study.add(made)
    result = result_of(study)
    text = markdown(CONFIG, result)
    table = text[text.index("| K | actors | rate | seeds | policy lag | distance of r from 1") :].splitlines()
    # The row of an earlier study does not tell.
    assert table[2:4] == [
        "| 1 | 8 | ×1 | 2 | 8 | 0.200 | 8.0% | 0.0040 |",
        "| 32 | 1 | ×1 | 1 | 0 | 0.100 | 4.0% | 0.0020 |",
    ]
    console = Console(file=StringIO(), width=150)
    show(console, result, tmp_path)
    assert re.search(r"0\.200 +8\.0%", console.file.getvalue())
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
