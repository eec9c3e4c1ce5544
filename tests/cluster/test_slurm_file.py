"""The batch file for Slurm, with stand-ins for what it calls: when it saves, resumes, requeues, and how it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import DEADLINE_SECONDS, wait_for

FILE = Path(__file__).parents[2] / "launch" / "clusters" / "slurm.sh"
# `srun` runs here what it is given, `ray` stays until it is killed, and a run learns until it is asked to end, learns
# nothing, or ends by itself with a code, as BEHAVIOUR has it.
STAND_INS = {
    "scontrol": '[[ $1 == requeue ]] && echo "$2" > requeued; echo "NodeName=node1 NodeAddr=10.0.0.1 Port=7000"',
    "srun": 'while [[ $1 != bash ]]; do shift; done; exec "$@"',
    "ray": """
echo "$@" > ray_arguments
stat --format=%a "$RAY_AUTH_TOKEN_PATH" > token_mode
echo "ray start --address='10.0.0.1:1234'"
echo "Ray runtime started."
exec sleep 600
""",
    "tributary": """
trap 'kill -KILL $!; touch "$run/checkpoints/$asked"; exit 130' HUP
echo "$@" > arguments
run=$(sed 's/.*--\\(run-dir\\|resume\\) \\([^ ]*\\).*/\\2/' arguments)
mkdir -p "$run/checkpoints"
[[ $BEHAVIOUR == [0-9]* ]] && exit "$BEHAVIOUR"
[[ $BEHAVIOUR == learns ]] && asked=update-$$.index || asked=.
touch training
sleep 600 & wait
""",
}


class Job:
    """The batch file in a folder of its own, started as slurmd would start it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        programs = folder / "programs"
        programs.mkdir()
        for name, text in STAND_INS.items():
            (programs / name).write_text(f"#!/usr/bin/env bash\n{text}")
            (programs / name).chmod(0o755)
        (folder / ".venv" / "bin").mkdir(parents=True)
        (folder / ".venv" / "bin" / "activate").write_text(f"PATH={programs}:{Path(sys.executable).parent}:$PATH\n")

    def start(self, behaviour: str, restarts: int = 0, **variables: str) -> subprocess.Popen[str]:
        given = {"JOB_ID": "17", "JOB_NUM_NODES": "1", "CPUS_PER_TASK": "2"} | variables
        given |= {"RESTART_COUNT": str(restarts)} if restarts else {}
        slurm = {f"SLURM_{name}": value for name, value in given.items()} | {"SLURMD_NODENAME": "node1"}
        self.file("training").unlink(missing_ok=True)
        return subprocess.Popen(
            ["bash", str(FILE)],
            cwd=self.folder,
            env=os.environ | slurm | {"BEHAVIOUR": behaviour},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def ended(self, behaviour: str, restarts: int = 0) -> int:
        process = self.start(behaviour, restarts)
        process.communicate(timeout=DEADLINE_SECONDS)
        return process.returncode

    def signalled(self, number: signal.Signals, behaviour: str, restarts: int = 0, **variables: str) -> tuple[int, str]:
        """Code and output of a job that gets this signal while it trains."""
        process = self.start(behaviour, restarts, **variables)
        wait_for(self.file("training").exists, "the training", process=process)
        process.send_signal(number)
        output, _ = process.communicate(timeout=DEADLINE_SECONDS)
        return process.returncode, output

    def file(self, name: str) -> Path:
        return self.folder / name

    def said(self, name: str) -> str:
        return self.file(name).read_text().strip()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_it_saves_before_the_time_limit_goes_back_to_the_queue_and_goes_on(job: Job) -> None:
    code, output = job.signalled(signal.SIGUSR1, "learns")
    assert code == 0, output
    run = job.file("runs/slurm-17")
    assert job.said("arguments") == f"train pong --run-dir {run} --address 10.0.0.1:1234"
    assert job.said("requeued") == "17"
    assert job.said("token_mode") == "600"
    assert not job.file("runs/slurm-17.ray/token").exists()
    (temporary,) = (word.partition("=")[2] for word in job.said("ray_arguments").split() if "--temp-dir" in word)
    assert not Path(temporary).parent.exists()

    assert job.ended("0", restarts=1) == 0
    assert job.said("arguments") == f"train --resume {run} --address 10.0.0.1:1234"


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_run_that_ends_by_itself_ends_the_job(job: Job, code: int) -> None:
    assert job.ended(str(code)) == code
    assert not job.file("requeued").exists()


@pytest.mark.parametrize(
    ("number", "behaviour", "code", "line", "checkpoints"),
    [
        # A run that learns nothing within its time is not started forever.
        (signal.SIGUSR1, "idles", 1, "nothing was learned within the time limit", 0),
        # A job that is cancelled saves and stays cancelled.
        (signal.SIGTERM, "learns", 130, "", 1),
    ],
)
def test_a_job_that_is_not_to_go_on_is_not_queued_again(
    job: Job, number: signal.Signals, behaviour: str, code: int, line: str, checkpoints: int
) -> None:
    ended, output = job.signalled(number, behaviour)
    assert (ended, line in output) == (code, True), output
    assert len(list(job.file("runs/slurm-17/checkpoints").glob("update-*.index"))) == checkpoints
    assert not job.file("requeued").exists()


def test_a_job_of_an_array_has_its_seed_its_folder_and_its_name(job: Job) -> None:
    """The number alone may be that of the whole array."""
    array = {"ARRAY_JOB_ID": "17", "ARRAY_TASK_ID": "3"}
    code, output = job.signalled(signal.SIGUSR1, "learns", **array)
    assert code == 0, output
    assert job.said("arguments").endswith("--seed 3")
    assert list(job.file("runs/slurm-17/seed-3/checkpoints").iterdir())
    assert job.said("requeued") == "17_3"


def test_a_start_that_saved_nothing_is_put_aside(job: Job) -> None:
    """As after a node was lost in the first minute. A folder that somebody else named is not touched."""
    empty = job.file("runs/slurm-17")
    empty.mkdir(parents=True)
    (empty / "config.json").touch()
    for restarts, moved in ((0, False), (1, True)):
        job.ended("0", restarts)
        assert "--run-dir" in job.said("arguments")
        assert job.file("runs/slurm-17.empty-1/config.json").exists() == moved
