"""bench learner: the ceiling, and one small measurement of each way that gradients travel."""

import json
from pathlib import Path

import pytest

from launch.bench.learner import sender_counts, summarise
from launch.cli import main


def test_senders_double_up_to_the_most() -> None:
    assert [sender_counts(n) for n in (1, 2, 3, 8, 15)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 8], [1, 2, 4, 8, 15]]


def test_the_ceiling_is_that_of_the_cheapest_gradient() -> None:
    rows = {
        1: {"gradients_per_second": 100.0, "bytes_per_second": 1.0, "cpu_seconds_per_gradient": 0.005},
        2: {"gradients_per_second": 150.0, "bytes_per_second": 2.0, "cpu_seconds_per_gradient": 0.004},
    }
    found = summarise(rows, agent_steps=640)
    assert found["gradients_per_second"] == 150.0
    assert found["ceiling_gradients_per_second"] == pytest.approx(250.0)
    assert found["ceiling_agent_steps_per_second"] == pytest.approx(160_000.0)


def test_a_learner_takes_in_sums_through_ray(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = tmp_path / "learner.json"
    common = f"bench learner --actors 1 --gradients-per-update 2 --seconds 0.5 --json {file}"
    assert main([*common.split(), "--aggregation", "node"]) == 0
    found = json.loads(file.read_text())
    row = found["senders"]["1"]
    assert row["parameters"] == 677_943
    assert row["gradients_per_second"] > 0
    assert row["updates_per_second"] == pytest.approx(row["gradients_per_second"] / 2, rel=0.2)
    assert row["bytes_per_second"] == pytest.approx(row["gradients_per_second"] / 2 * 4 * 677_943, rel=0.2)
    assert found["agent_steps_per_gradient"] == 640
    assert found["aggregation"] == "node"
    assert "gradients/s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("--gradients-per-update 0", "must be between 1 and 1,000,000"),
        ("--seconds -1", "must be greater than 0"),
        ("--aggregation node", "needs --learner.gradients-per-update of 2 or more"),
    ],
)
def test_mistakes(settings: str, problem: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["bench", "learner", *settings.split()]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert problem in err
