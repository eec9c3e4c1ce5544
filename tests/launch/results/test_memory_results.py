"""A run with a memory, evaluated and recorded."""

import json
from pathlib import Path

import pytest

from launch.cli import main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("memory") / "run"
    settings = (
        "--executor inline --actors 1 --total-frames 3000 --network.recurrent lstm --network.recurrent-units 5 "
        "--evaluation.every-frames 0 --stop-measure training --stop-at-return None"
    )
    assert main(["train", "cartpole", "--run-dir", str(folder), *settings.split()]) == 0
    return folder


def test_it_is_evaluated_and_recorded(run: Path, tmp_path: Path) -> None:
    figures = tmp_path / "evaluation.json"
    assert main(f"evaluate {run} --episodes 3 --policy greedy --json {figures}".split()) == 0
    assert json.loads(figures.read_text())["episodes"] == 3
    assert main(f"record {run} --output {tmp_path / 'film.gif'} --episodes 1".split()) == 0
    assert (tmp_path / "film.gif").stat().st_size > 1_000
