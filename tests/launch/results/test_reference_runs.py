"""The runs that the scores of docs/scores.md are of are kept, and say what it says."""

import json
import re
from pathlib import Path

import pytest

from launch.presets import PRESETS
from launch.results.curves import read_rows
from launch.run.folder import RunFolder
from launch.zoo import FOLDER
from shared.config import flat_settings

ROOT = Path(__file__).parents[3]
RUNS = sorted((ROOT / "launch" / "results" / "reference_runs").glob("*/config.json"))


SCORES = (ROOT / "docs" / "scores.md").read_text()


@pytest.mark.parametrize("config", RUNS, ids=lambda file: file.parent.name)
def test_a_reference_run_is_kept_with_how_it_was_made(config: Path) -> None:
    folder = RunFolder(config.parent)
    seed, summary = folder.read_config().seed, json.loads(folder.summary.read_text())
    manifest = json.loads(folder.manifest.read_text())
    assert manifest.keys() >= {"command", "revision", "versions", "hardware", "environment_protocol"}
    assert manifest["seeds"]["run"] == seed
    assert read_rows(folder)[-1]["frames"] == summary["frames"]
    # Evaluations are kept only beside weights with which they can be made again.
    assert not list(config.parent.glob("evaluation-*.json"))
    reached = summary["confirmed_crossing"]
    minutes, millions = reached["seconds"] / 60, reached["agent_steps"] / 1e6
    row = f"| {seed} | {minutes:.1f} | {millions:.2f} M | {reached['frames'] / 1e6:.2f} M | "
    row += f"{reached['agent_steps'] / reached['seconds']:,.0f} |"
    assert row in SCORES
    assert f"| {reached['evaluation_mean_return']:.2f} |" in SCORES[SCORES.index(row) :].splitlines()[0]
    assert summary["status"] == "return_reached"


def test_the_runs_of_pong_are_of_the_preset_that_they_speak_for() -> None:
    preset = flat_settings(PRESETS["pong"].config)
    runs = [flat_settings(RunFolder(config.parent).read_config()) for config in RUNS]
    assert len(runs) == 5
    for run in runs:
        # They had two actors, which share nothing, and are older than the setting.
        assert run == preset | {"seed": run["seed"], "actor.steps_in_flight": run["actor.steps_in_flight"]}


def test_evaluations_are_as_they_are_told() -> None:
    kept = json.loads((ROOT / "launch" / "results" / "reference_runs" / "evaluations.json").read_text())["runs"]
    for runs in kept.values():
        for run in runs:
            evaluation = run["evaluation"]
            assert evaluation["episodes"] == evaluation["distinct_games"] == 100
            digits = 2 if evaluation["protocol"] != "training" else 1
            mean, error = (f"{evaluation[name]:.{digits}f}" for name in ("mean_return", "standard_error"))
            assert f"{mean} ± {error}" in SCORES
            steps = run["agent_steps"]
            assert f"{steps:,}" in SCORES or f"{steps / 1e6:.2f} M agent steps" in SCORES


_SCORE = re.compile(r"([\d,.]+) ± ([\d,.]+)")


def as_written(number: str, value: float) -> bool:
    """Whether a number is `value`, rounded to as many digits as it is written with."""
    return number == f"{value:,.{len(number.partition('.')[2])}f}"


@pytest.mark.parametrize("game", ["Pong", "Breakout", "Beam Rider", "Q*bert", "Seaquest", "Space Invaders"])
def test_agents_that_ship_have_the_scores_that_are_told(game: str) -> None:
    agent = re.sub(r"[^a-z]", "", game.lower())
    (in_scores,) = re.findall(rf"^\| {re.escape(game)} \| .* ± .*$", SCORES, re.MULTILINE)
    (in_readme,) = re.findall(rf"^\| `zoo:{agent}` \| noop .*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    told = _SCORE.findall(in_scores) + _SCORE.findall(in_readme)
    for protocol, (mean, error) in zip(("noop", "machado", "noop"), told, strict=True):
        evaluation = json.loads((FOLDER / agent / f"evaluation-{protocol}.json").read_text())
        assert as_written(mean, evaluation["mean_return"])
        assert as_written(error, evaluation["standard_error"])
