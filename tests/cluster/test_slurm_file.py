"""The batch file for Slurm, with stand-ins for what it calls: when it saves, resumes, requeues, and how it ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
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
        given = {
            "SLURM_JOB_ID": "17",
            "SLURM_JOB_NUM_NODES": "1",
            "SLURM_CPUS_PER_TASK": "2",
            "SLURMD_NODENAME": "node1",
        }
        given |= {"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}
        self.file("training").unlink(missing_ok=True)
        return subprocess.Popen(
            ["bash", str(FILE)],
            cwd=self.folder,
            env=os.environ | given | variables | {"BEHAVIOUR": behaviour},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def signalled(self, number: signal.Signals, behaviour: str, restarts: int = 0, **variables: str) -> tuple[int, str]:
        """Code and output of a job that gets this signal while it trains."""
        process = self.start(behaviour, restarts, **variables)
        self.wait_for(self.file("training").exists, process)
        process.send_signal(number)
        output, _ = process.communicate(timeout=DEADLINE_SECONDS)
        return process.returncode, output

    def wait_for(self, condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
        wait_for(condition, "the training", process=process)

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

    process = job.start("0", restarts=1)
    output, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0, output
    assert job.said("arguments") == f"train --resume {run} --address 10.0.0.1:1234"


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_run_that_ends_by_itself_ends_the_job(job: Job, code: int) -> None:
    process = job.start(str(code))
    output, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == code, output
    assert not job.file("requeued").exists()


def test_a_run_that_learns_nothing_within_its_time_is_not_started_forever(job: Job) -> None:
    code, output = job.signalled(signal.SIGUSR1, "idles")
    assert code == 1
    assert "nothing was learned within the time limit" in output
    assert not job.file("requeued").exists()


def test_a_job_that_is_cancelled_saves_and_stays_cancelled(job: Job) -> None:
    code, output = job.signalled(signal.SIGTERM, "learns")
    assert code == 130, output
    assert len(list(job.file("runs/slurm-17/checkpoints").glob("update-*.index"))) == 1
    assert not job.file("requeued").exists()


def test_a_job_of_an_array_has_its_seed_its_folder_and_its_name(job: Job) -> None:
    """The number alone may be that of the whole array."""
    array = {"SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3"}
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
        process = job.start("0", restarts)
        process.communicate(timeout=DEADLINE_SECONDS)
        assert "--run-dir" in job.said("arguments")
        assert job.file("runs/slurm-17.empty-1/config.json").exists() == moved
