"""The runs that the scores of docs/scores.md are of are kept, and say what it says."""

import json
from pathlib import Path

import pytest

from launch.presets import PRESETS
from launch.results.curves import read_rows
from launch.run.folder import RunFolder
from shared.config import flat_settings

ROOT = Path(__file__).parents[3]
RUNS = sorted((ROOT / "launch" / "results" / "reference_runs").glob("*/config.json"))


@pytest.mark.parametrize("config", RUNS, ids=lambda file: file.parent.name)
def test_a_reference_run_is_kept_with_how_it_was_made(config: Path) -> None:
    folder = RunFolder(config.parent)
    settings = folder.read_config()
    manifest = json.loads((config.parent / "manifest.json").read_text())
    assert manifest.keys() >= {"command", "revision", "versions", "hardware", "environment_protocol"}
    assert manifest["seeds"]["run"] == settings.seed
    summary = json.loads(folder.summary.read_text())
    assert read_rows(folder)[-1]["frames"] == summary["frames"]
    scores = (ROOT / "docs" / "scores.md").read_text()
    # Evaluations are kept only beside weights with which they can be made again.
    assert not list(config.parent.glob("evaluation-*.json"))
    if settings.environment.id == "ALE/Pong-v5":
        reached = summary["confirmed_crossing"]
        minutes, millions = reached["seconds"] / 60, reached["agent_steps"] / 1e6
        row = f"| {settings.seed} | {minutes:.1f} | {millions:.2f} M | {reached['frames'] / 1e6:.2f} M | "
        row += f"{reached['agent_steps'] / reached['seconds']:,.0f} |"
        assert f"| {reached['evaluation_mean_return']:.2f} |" in scores[scores.index(row) :].splitlines()[0]
        assert summary["status"] == "return_reached"
    else:
        row = f"{summary['agent_steps_sampled'] / 1e6:.2f} M agent steps, {summary['frames'] / 1e6:.1f} M frames"
    assert row in scores


def test_the_runs_of_pong_are_of_the_preset_that_they_speak_for() -> None:
    preset = flat_settings(PRESETS["pong"].config)
    runs = [
        flat_settings(RunFolder(config.parent).read_config()) for config in RUNS if config.parent.name[:4] == "pong"
    ]
    assert len(runs) == 5
    for run in runs:
        assert run == preset | {"seed": run["seed"]}


def test_there_are_reference_runs() -> None:
    assert len(RUNS) >= 4


def test_evaluations_are_as_they_are_told() -> None:
    kept = json.loads((ROOT / "launch" / "results" / "reference_runs" / "evaluations.json").read_text())["runs"]
    scores = (ROOT / "docs" / "scores.md").read_text()
    for runs in kept.values():
        for run in runs:
            evaluation = run["evaluation"]
            assert evaluation["episodes"] == evaluation["distinct_games"] == 100
            digits = 2 if evaluation["protocol"] != "training" else 1
            mean, error = (f"{evaluation[name]:.{digits}f}" for name in ("mean_return", "standard_error"))
            assert f"{mean} ± {error}" in scores
            steps = run["agent_steps"]
            assert f"{steps:,}" in scores or f"{steps / 1e6:.2f} M agent steps" in scores
