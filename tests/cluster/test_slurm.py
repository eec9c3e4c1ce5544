"""The batch file for Slurm, on Slurm: a run is saved before its time limit and goes on; a cancelled one is saved."""

import json
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from accounts import account_of
from slurm import Slurm
from waiting import UNTIL_FRAMES, wait_for
from watched_processes import rows as rows_of

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
SETTINGS = f"{UNTIL_FRAMES} --log-every-seconds 0.5 --actor.environments 4 --actor.unroll-length 10 --total-frames"


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    assert os.geteuid() == 0, "make cluster-test makes namespaces, and so needs root"
    folder = tmp_path / "slurm"
    folder.mkdir()
    before = ray_folders()
    with Slurm(folder, nodes=2, cpus=2) as made:
        yield made
    for left in ray_folders() - before:
        shutil.rmtree(left)


def ray_folders() -> set[Path]:
    """What Ray has in /tmp for jobs of Slurm."""
    return set(Path("/tmp").glob("ray.*"))


class Job:
    """The file that ships, as a user edits it, in a folder of the user's."""

    def __init__(self, slurm: Slurm, folder: Path, *options: str) -> None:
        self.slurm, self.folder = slurm, folder
        folder.mkdir()
        text = (ROOT / "launch" / "clusters" / "slurm.sh").read_text()
        for line, edited in {
            "start=(pong)": "start=(cartpole)",
            # Read again when the job is started again.
            "settings=()": "settings=($(< settings))",
            "source .venv/bin/activate": f"export PATH={Path(sys.prefix) / 'bin'}:$PATH PYTHONPATH={ROOT}",
        }.items():
            assert text.count(line) == 1
            text = text.replace(line, edited)
        (folder / "my-slurm.sh").write_text(text)
        self.set_total_frames(10**9)
        options = ("--parsable", f"--chdir={folder}", f"--output={folder}/output", "--cpus-per-task=1", *options)
        self.number = int(slurm.run("sbatch", *options, str(folder / "my-slurm.sh")))
        self.run = folder / "runs" / f"slurm-{self.number}"

    def set_total_frames(self, frames: int) -> None:
        (self.folder / "settings").write_text(f"{SETTINGS} {frames}")

    def state(self) -> str:
        return self.slurm.job(self.number)["JobState"]

    def output(self) -> str:
        file = self.folder / "output"
        return file.read_text() if file.exists() else ""

    def rows(self) -> list[dict[str, Any]]:
        return rows_of(self.run)

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        def shown() -> str:
            logs = [file.read_text()[-2000:] for file in self.run.parent.glob("*.ray/*.log")]
            return f"{self.slurm.job(self.number)}\n{self.output()}\n{logs}"

        wait_for(condition, what, shown=shown)

    def wait_for_actors(self, count: int) -> None:
        def at_work() -> bool:
            assert self.state() in ("PENDING", "CONFIGURING", "RUNNING"), self.output()
            return any(row["actors_alive"] == count and row["updates"] > 0 for row in self.rows())

        self.wait_for(at_work, f"{count} actors at work")


@pytest.mark.timeout(600)
def test_jobs_of_slurm(slurm: Slurm, tmp_path: Path) -> None:
    before = ray_folders()
    job = Job(slurm, tmp_path / "first", "--nodes=2", "--time=60")
    job.wait_for_actors(2)
    places = [line for line in job.output().splitlines() if line.endswith("GiB)")]
    assert ["learner + 1 actor" in line for line in places] == [True, False], job.output()
    assert "1 actor " in places[1]
    token = job.run.with_name(f"{job.run.name}.ray") / "token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600

    # Another job beside it, on its first node; one of an array, with its own seed.
    other = Job(slurm, tmp_path / "other", "--nodes=1", "--nodelist=node1", "--array=3")
    other.run /= "seed-3"
    # Two to three minutes of the time limit are left: the signal is due.
    _, minutes, _ = slurm.job(job.number)["RunTime"].split(":")
    slurm.run("scontrol", "update", f"JobId={job.number}", f"TimeLimit={int(minutes) + 3}")
    job.wait_for(lambda: "back to the queue" in job.output(), "the signal before the time limit")
    saved = account_of(job.run)
    assert saved["status"] == "interrupted"
    rows = len(job.rows())
    job.set_total_frames(saved["frames"] + 20_000)
    slurm.run("scontrol", "update", f"JobId={job.number}", "TimeLimit=60")

    other.wait_for_actors(1)
    slurm.run("scancel", str(other.number))
    other.wait_for(lambda: "ended with code 130" in other.output(), "the other job saved")
    assert account_of(other.run)["status"] == "interrupted"
    assert json.loads((other.run / "config.json").read_text())["seed"] == 3

    job.wait_for(lambda: job.state() == "COMPLETED", "the job started again and ended")
    assert "Traceback" not in job.output() + other.output()
    told = slurm.job(job.number)
    assert (told["Restarts"], told["ExitCode"]) == ("1", "0:0")
    finished = account_of(job.run)
    assert finished["status"] == "frames_reached"
    assert saved["frames"] + 20_000 <= finished["frames"]
    frames = [row["frames"] for row in job.rows()]
    assert frames == sorted(frames)
    assert frames[rows] >= saved["frames"]
    assert max(row["actors_alive"] for row in job.rows()[rows:]) == 2

    other.wait_for(lambda: other.state() == "CANCELLED" and slurm.states() == ["idle"] * 2, "all nodes free")
    assert not token.exists()
    assert ray_folders() == before
