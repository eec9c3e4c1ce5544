"""The batch file for Slurm, on Slurm: a run is saved before its time limit and goes on; a cancelled one is saved."""

import json
import os
import re
import secrets
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from accounts import account_of
from waiting import UNTIL_FRAMES, wait_for
from watched_processes import output_of
from watched_processes import rows as rows_of

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
SETTINGS = f"{UNTIL_FRAMES} --log-every-seconds 0.5 --actor.environments 4 --actor.unroll-length 10 --total-frames"


# The address of all nodes, on the namespace's loopback device; like a node's, it is not 127.0.0.1.
_ADDRESS = "10.177.1.1"


class Slurm:
    """A cluster of Slurm whose nodes `node1` and so on are all this machine, each with `cpus`, however many there are.

    Use as a context: at its end no process of it is left. No Slurm and no munge that runs here already is touched.
    """

    def __init__(self, folder: Path, nodes: int, cpus: int) -> None:
        self._folder = folder
        self._names = [f"node{number}" for number in range(1, nodes + 1)]
        host = socket.gethostname().partition(".")[0]
        described = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr={_ADDRESS} Port={7000 + number} CPUs={cpus} RealMemory=16000"
            for number, name in enumerate(self._names)
        )
        (folder / "slurm.conf").write_text(
            f"""
ClusterName=tributary
SlurmctldHost={host}({_ADDRESS})
SlurmUser=root
# A job that was requeued waits until its credential has expired, two minutes by default.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/%n.pid
# No control groups: a container may have none.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
# Seconds to save in after a SIGTERM, 30 by default: this machine may be slow.
KillWait=60
{described}
PartitionName=all Nodes=ALL Default=YES
"""
        )
        (folder / "munge.key").touch(mode=0o600)
        (folder / "munge.key").write_bytes(secrets.token_bytes(64))
        (folder / "state").mkdir()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Slurm":
        munge = f"{self._folder}/munge"
        script = (
            f"ip link set lo up && ip address add {_ADDRESS}/32 dev lo; "
            f"munged --foreground --force --socket={munge}.socket --key-file={munge}.key --pid-file={munge}.pid "
            f"--seed-file={munge}.seed --log-file={munge}.log & "
            f"until [ -S {munge}.socket ]; do sleep 0.1; done; slurmctld -D & "
            + "".join(f"slurmd -D -N {name} & " for name in self._names)
            # It waits for the end of the pipe, which comes however this process ends; and as the first one of its
            # process namespace it takes all others with it.
            + "read"
        )
        with (self._folder / "daemons.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "bash", "-c", script],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment(),
                start_new_session=True,
            )
        idle = ["idle"] * len(self._names)
        log_file = self._folder / "daemons.log"
        wait_for(lambda: self.states() == idle, "idle nodes", process=self._process, shown=log_file.read_text)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait()

    def run(self, *command: str) -> str:
        return output_of("nsenter", f"--target={self._process.pid}", "--net", *command, env=self._environment())

    def states(self) -> list[str]:
        with suppress(AssertionError):
            return self.run("sinfo", "--noheader", "--Node", "--format=%t").split()
        return []

    def job(self, number: int) -> dict[str, str]:
        return dict(re.findall(r"(\w+)=(\S*)", self.run("scontrol", "show", "job", str(number))))

    def _environment(self) -> dict[str, str]:
        return os.environ | {"SLURM_CONF": str(self._folder / "slurm.conf")}


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
        node = ("--cpus-per-task=1", "--mem-per-cpu=4G")
        options = ("--parsable", f"--chdir={folder}", f"--output={folder}/output", *node, *options)
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
