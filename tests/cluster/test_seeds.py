"""Several seeds at a time on a cluster: each a Ray job on its share, of which one is killed, and all go on."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from accounts import account_of
from head import DEADLINE_SECONDS, SMALL, Head, has_rows, wait_for

from launch.run.job_note import note_of
from launch.run.lock import holder_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    """Two nodes of a core each."""
    made = Head(tmp_path, cores=(1, 1))
    yield made
    made.process.communicate(timeout=240)


def config_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "config.json").read_text())


def test_each_seed_has_cores_of_its_own_and_one_that_is_killed_stops_no_other(head: Head, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    seeds = {seed: runs / f"seed-{seed}" for seed in (1, 2, 3)}
    settings = SMALL.replace("--actors 1 ", "")
    line = f"train cartpole {settings} --seeds 1-3 --address {head.address} --run-dir {runs} --side-by-side"
    assert "--side-by-side 3: the 2 free cores of 2 nodes have room for 2 runs at a time" in head.run(
        f"{line} 3", code=2
    )
    assert not runs.exists()

    driver = head.start(f"{line} 2")
    wait_for(lambda: has_rows(seeds[1]) and has_rows(seeds[2]), "two seeds at work")
    assert not seeds[3].exists()
    shares = [config_of(seeds[seed])["nodes"] for seed in (1, 2)]
    assert [share.partition("=")[2] for (share,) in shares] == ["1", "1"]
    assert shares[0] != shares[1]
    for seed in (1, 2):
        note = note_of(seeds[seed])
        assert note is not None
        assert head.status(note) == "RUNNING"
    # There is no room for anybody else.
    said = head.run(line.replace("runs", "others") + " 2", code=2)
    assert "the 0 free cores of 2 nodes have room for no runs" in said

    holder = holder_of(seeds[1])
    assert holder is not None
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    wait_for(lambda: has_rows(seeds[3]), "the third seed, on the share of the first")
    assert config_of(seeds[3])["nodes"] == shares[0]
    assert holder_of(seeds[2]) is not None
    driver.send_signal(signal.SIGINT)
    output, _ = driver.communicate(timeout=DEADLINE_SECONDS)
    assert driver.returncode == 130, output
    assert "seed 1: ended with exit code 1\n" in output
    assert "Traceback" not in output
    before = {seed: account_of(seeds[seed])["frames"] for seed in (2, 3)}
    summary = json.loads((runs / "summary.json").read_text())["seeds"]
    assert [summary[seed]["status"] for seed in "123"] == ["not run", "interrupted", "interrupted"]

    frames = min(before.values()) + 500
    again = f"train --resume {runs} --side-by-side 2 --total-frames {frames}"
    output = head.run(again)
    assert all(account_of(run)["frames"] >= frames for run in seeds.values()), output
    assert account_of(seeds[1])["status"] == "frames_reached"
    assert "3 of 3 seeds are done" in head.run(again)
