"""A run that a limit has ended has nothing to do until the limit is another one."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from launch.cli import main
from launch.run.status import reached_limit, why_it_goes_on
from shared.config import RunConfig

CONFIG = RunConfig(total_frames=1_000_000, stop_at_return=18.0, stop_after_seconds=600.0)
SUMMARY = {"status": "interrupted", "frames": 500_000, "wall_seconds": 300.0, "mean_return_100": 12.0}


@pytest.mark.parametrize(
    ("ended", "limit", "says"),
    [
        ({"frames": 1_000_320, "status": "frames_reached"}, {"total_frames": 2_000_000}, "--total-frames"),
        ({"wall_seconds": 600.4, "status": "time_reached"}, {"stop_after_seconds": 900.0}, "--stop-after-seconds"),
        ({"mean_return_100": 18.2, "status": "return_reached"}, {"stop_at_return": 19.0}, "--stop-at-return"),
        (
            {"evaluation": {"mean_return": 18.2}, "status": "return_reached"},
            {"stop_at_return": None},
            "--stop-at-return",
        ),
    ],
)
def test_a_limit_holds_until_it_is_changed(ended: dict, limit: dict, says: str) -> None:
    summary = SUMMARY | ended
    reached = reached_limit(CONFIG, summary)
    assert reached is not None
    assert says in reached
    assert "\n" not in reached
    further = replace(CONFIG, **limit)
    assert reached_limit(further, summary) is None
    goes_on = why_it_goes_on(further, summary)
    assert goes_on is not None
    assert f"goes on to {further.total_frames:,} total frames" in goes_on


def test_a_run_that_no_limit_has_ended_goes_on_without_a_word() -> None:
    for summary in ({}, SUMMARY, SUMMARY | {"mean_return_100": 19.0, "evaluation": None}):
        assert reached_limit(CONFIG, summary) is None
        assert why_it_goes_on(CONFIG, summary) is None


def test_resuming_a_finished_run_trains_nothing_and_says_which_limit_it_has_reached(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run, result = tmp_path / "run", tmp_path / "result.json"
    small = "--executor inline --total-frames 1,000 --actor.environments 4 --evaluation.every-frames 0"
    assert main(f"train cartpole {small} --stop-measure training --run-dir {run}".split()) == 0
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    frames = json.loads((run / "summary.json").read_text())["frames"]
    capsys.readouterr()

    assert main(f"train --resume {run} --json {result}".split()) == 0
    said = f"nothing to do: the run has {frames:,} of 1,000 total frames; it goes further with --total-frames N\n"
    assert capsys.readouterr().out == said
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before
    assert json.loads(result.read_text())["frames"] == frames

    assert main(f"train --resume {run} --total-frames=2k".split()) == 0
    assert f"ended at {frames:,} frames, as it had reached its total frames; it goes on to 2,000 total frames" in (
        capsys.readouterr().out
    )
    assert json.loads((run / "summary.json").read_text())["frames"] >= 2_000
