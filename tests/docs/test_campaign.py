"""docs/studies/atari/campaign.py: the order of its runs, one revision, and a run that goes on."""

import importlib.util
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch.output import EXIT_INTERRUPTED
from launch.run.folder import RunFolder
from shared.errors import ConfigurationError

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "studies" / "atari" / "campaign.py"
_SPEC = importlib.util.spec_from_file_location("campaign_script", SCRIPT)
campaign = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(campaign)


def test_the_first_seeds_of_all_games_come_before_the_further_seeds():
    runs = campaign.plan()
    assert runs[:6] == [(game, 1) for game in campaign.SIX]
    assert [seed for _, seed in runs] == [1] * 10 + [2] * 6 + [3] * 6
    assert campaign.plan(games=["Qbert"], seeds=[3, 1]) == [("Qbert", 1), ("Qbert", 3)]


def test_all_runs_are_of_one_commit(tmp_path):
    with pytest.raises(ConfigurationError, match="commit the changed files"):
        campaign.check_revision(tmp_path, "0123456-dirty")
    (tmp_path / "pong-seed-1").mkdir()
    (tmp_path / "pong-seed-1" / "manifest.json").write_text('{"revision": "0123456"}')
    campaign.check_revision(tmp_path, "0123456")
    with pytest.raises(ConfigurationError, match="is of revision 0123456, this is 89abcde"):
        campaign.check_revision(tmp_path, "89abcde")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_that_was_stopped_goes_on_and_is_stored(tmp_path):
    stored, runs = tmp_path / "stored", tmp_path / "runs"
    stored.mkdir()
    small = ["--executor", "inline", "--actors", "1", "--actor.environments", "2", "--log-every-seconds", "0.5"]

    def carry_out():
        campaign.carry_out("Breakout", 2, frames=12_000, settings=small, episodes=2, runs=runs, stored=stored)

    new = ["atari", "--environment.id", "ALE/Breakout-v5", "--seed", "2", "--total-frames", "12000", *small]
    run = runs / "breakout-seed-2"
    first = subprocess.Popen([sys.executable, "-m", "launch.cli", "train", *new, "--run-dir", run], cwd=ROOT)
    while not RunFolder(run).metrics.exists() and first.poll() is None:
        time.sleep(0.1)
    first.send_signal(signal.SIGINT)
    assert first.wait() == EXIT_INTERRUPTED
    carry_out()
    names = {file.name for file in (stored / "breakout-seed-2").iterdir()}
    assert {"config.json", "metrics.jsonl", "evaluation-noop.json", "evaluation-machado.json"} <= names
    assert "best.npz" not in names
    command = json.loads((stored / "breakout-seed-2" / "manifest.json").read_text())["command"]
    assert str(tmp_path) not in command
    # A stored run is left alone.
    (stored / "breakout-seed-2" / "summary.json").unlink()
    carry_out()
    assert not (stored / "breakout-seed-2" / "summary.json").exists()
