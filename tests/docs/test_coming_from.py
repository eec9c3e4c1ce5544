"""The tasks of the table beside Stable-Baselines3 are done by the code that stands there."""

import functools
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from waiting import UNTIL_FRAMES

import tributary_rl as tributary
from launch.cli import main

DOCS = Path(__file__).parents[2] / "docs"
# These need further packages, and have tests of their own (trackers, sweeps).
ELSEWHERE = {"W&B", "sweep"}
SMALL = f"--executor inline --actors 1 {UNTIL_FRAMES}"
# Options that shorten a task, or raise the frames of a run that continues.
SHORT = {
    "evaluate": "--episodes 2",
    "resume": "--total-frames 1_200",
    "frame stack": f"{SMALL} --actor.environments 1 --actor.unroll-length 8 --total-frames 8",
    "masks": f"{SMALL} --total-frames 2_000",
}


def tasks() -> dict[str, str]:
    """The code of each task: the first in the second column."""
    table = (DOCS / "coming-from.md").read_text().split("\n\n")[3]
    rows = re.findall(r"^\| ([^|]+) \| [^`|]*`([^`]+)`", table, re.M)
    return dict(rows)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_task_is_done_by_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(DOCS / "examples")
    quick = {"executor": "inline", "actors": 1, "stop_measure": "training", "evaluation.every_frames": 0}
    train = functools.partial(tributary.train, progress=False, settings=quick)
    names: dict[str, Any] = {
        "tributary": SimpleNamespace(train=train, load=tributary.load),
        "observation": np.zeros(4, np.float32),
    }
    found = tasks()
    assert len(found) == 14
    for task, code in found.items():
        if task in ELSEWHERE:
            continue
        if code.startswith("tributary "):
            default = f"{SMALL} --total-frames 600" if " train " in code else ""
            assert main([*shlex.split(code)[1:], *SHORT.get(task, default).split()]) == 0, task
        else:
            exec(code.replace("300_000", "600"), names)
    assert names["action"] in (0, 1)
    monkeypatch.delitem(sys.modules, "own_network", raising=False)
