"""Population-based training on the real Ray Tune: a bad trial continues from the checkpoint of a good one."""

import json
from pathlib import Path

import pytest
from accounts import account_of
from sweeping import sweeping

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(1800)]

FRAMES, INTERVAL = 160_000, 40_000
# A trial with the lower learning rate learns nothing, and is soon the worse one.
FILE = f"""
preset = "cartpole"
total_frames = {FRAMES}
actors = 1
executor = "inline"
log_every_seconds = 0.2
evaluation.every_frames = 0
network.hidden_sizes = [32]

[sweep]
search = "grid"
pbt = {{ interval_frames = {INTERVAL}, quantile = 0.5 }}

[sweep.space]
"optimizer.learning_rate" = [1e-9, 3e-3]
"""


def test_a_bad_trial_continues_from_a_good_one_though_a_trial_and_the_driver_are_killed(tmp_path: Path) -> None:
    file, folder = tmp_path / "population.toml", tmp_path / "sweep"
    file.write_text(FILE)
    with sweeping(file, folder) as sweep:
        sweep.wait_for(lambda: learning_rate(folder / "trial-00") == 3e-3, "a trial with the settings of the other")
        sweep.kill_a_trial(1_000)
        sweep.kill()
    with sweeping(file, folder) as sweep:
        sweep.end(0)
    result = json.loads((folder / "sweep.json").read_text())
    assert [trial["ended"] for trial in result["trials"]] == ["done", "done"]
    for trial in result["trials"]:
        run = folder / f"trial-{trial['number']:02}"
        assert FRAMES <= account_of(run)["frames"] == trial["frames"] < FRAMES + INTERVAL
        assert learning_rate(run) == trial["settings"]["optimizer.learning_rate"]
        assert trial["score"] > 25.0


def learning_rate(run: Path) -> float | None:
    file = run / "config.json"
    return json.loads(file.read_text())["optimizer"]["learning_rate"] if file.is_file() else None
