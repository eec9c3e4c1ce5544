"""The runs that README's scores are of are kept, whole, and say what README says."""

import json
from pathlib import Path

import pytest

from launch.results.curves import read_rows
from launch.run.folder import RunFolder

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
    readme = (ROOT / "README.md").read_text()
    for protocol in ("noop", "machado"):
        result = json.loads(folder.evaluation(protocol).read_text())
        assert result["protocol"]["name"] == protocol
        assert result["episodes"] == 100
        assert f"{result['mean_return']:.2f} ± {result['standard_error']:.2f}" in readme


def test_there_are_reference_runs() -> None:
    assert len(RUNS) >= 4
