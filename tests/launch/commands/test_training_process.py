"""A run in a process of its own, and who asked for it."""

import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from terminal import DEADLINE_SECONDS

from launch.presets import PRESETS
from launch.run.folder import RunFolder


def frames_of(line: str) -> int:
    """What a line of progress tells; of another line 0."""
    found = re.search(r"\| frames ([\d,]+) ", line)
    return int(found[1].replace(",", "")) if found else 0


def test_a_run_that_is_interrupted_and_then_left_alone_is_saved(tmp_path: Path) -> None:
    """Its second signal is not a second Ctrl-C, which would leave at once."""
    settings, run = RunFolder(tmp_path / "settings"), tmp_path / "run"
    config = replace(PRESETS["cartpole"].config, executor="inline", actors=1, stop_at_return=None)
    # A clean end waits for the evaluation under way.
    evaluation = replace(config.evaluation, every_frames=5000, episodes=4000)
    settings.path.mkdir()
    settings.write_config(replace(config, evaluation=evaluation, log_every_seconds=0.2))
    command = [sys.executable, "-m", "launch.commands.training_process", str(settings.path), str(run), "cartpole"]
    process = subprocess.Popen(
        [*command, "new", "", "tributary", "train"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        next(line for line in process.stdout if frames_of(line) > 5000)
        process.send_signal(signal.SIGINT)
        next(line for line in process.stdout if "finishing the rollouts under way" in line)
        process.stdin.close()
        process.stdout.read()
        assert process.wait(DEADLINE_SECONDS) == 130
    finally:
        process.kill()
    assert json.loads((run / "summary.json").read_text())["status"] == "interrupted"
