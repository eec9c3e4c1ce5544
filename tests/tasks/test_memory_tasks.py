"""What only a memory can do: a cue that is asked for later, and CartPole whose speeds are not shown."""

import json
from pathlib import Path

import memory_tasks
import pytest

from launch.cli import main

_LEARNING = (
    "--executor inline --actors 1 --actor.environments 32 --actor.epochs 4 --actor.minibatches 4 "
    "--method.standardise-advantages"
)
CUE = f"{_LEARNING} --environment.id Cue-v0 --stop-at-return 0.95"
POSITIONS = (
    f"{_LEARNING} --environment.id CartPolePositions-v0 --environment.reward-scale 0.05 --optimizer.learning-rate 1e-3 "
    "--network.observation-scaling running --method.discount 0.98 --method.return-lambda 0.9"
)
LSTM = "--network.recurrent lstm"


def trained(arguments: str, run: Path) -> dict:
    """The summary of a run of the preset cartpole with these settings."""
    assert main(["train", "cartpole", "--run-dir", str(run), *arguments.split()]) == 0
    return json.loads((run / "summary.json").read_text())


def evaluations(run: Path) -> list[float]:
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [evaluation["mean_return"] for row in rows for evaluation in row["evaluations"]]


SEEDS = [pytest.param(1, marks=pytest.mark.slow), *(pytest.param(s, marks=pytest.mark.tasks) for s in (2, 3))]


@pytest.mark.parametrize("seed", SEEDS)
def test_with_an_lstm_a_cue_is_remembered_for_20_steps(seed: int, tmp_path: Path) -> None:
    assert memory_tasks.DELAY == 20
    summary = trained(f"{CUE} {LSTM} --seed {seed} --total-frames 1m", tmp_path / "run")
    assert summary["status"] == "return_reached"
    assert evaluations(tmp_path / "run")[-1] >= 0.95


@pytest.mark.tasks
def test_without_a_memory_the_cue_stays_at_chance(tmp_path: Path) -> None:
    summary = trained(f"{CUE} --seed 1 --total-frames 300k", tmp_path / "run")
    assert summary["status"] == "frames_reached"
    # 100 games: a standard error of 0.1 about 0.
    assert max(map(abs, evaluations(tmp_path / "run"))) < 0.4


@pytest.mark.parametrize("seed", SEEDS)
def test_with_an_lstm_positions_are_enough_to_balance_a_pole(seed: int, tmp_path: Path) -> None:
    summary = trained(f"{POSITIONS} {LSTM} --seed {seed} --total-frames 2m", tmp_path / "run")
    assert summary["status"] == "return_reached"
    assert evaluations(tmp_path / "run")[-1] >= 475


@pytest.mark.tasks
def test_without_a_memory_positions_are_not_enough(tmp_path: Path) -> None:
    trained(f"{POSITIONS} --seed 1 --total-frames 300k", tmp_path / "run")
    assert max(evaluations(tmp_path / "run")) < 100
