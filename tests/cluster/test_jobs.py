"""Runs that outlive whoever submitted them: `train --detach --address` on a Ray head with a job server and a token."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launch.machine.import_path import project_folder
from launch.run.job_note import JobNote, note_of, write_note
from launch.run.lock import holder_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

_DEADLINE_SECONDS = 600
SMALL = (
    "--actors 1 --actor.environments 4 --actor.unroll-length 10 --network.hidden-sizes 8 --stop-at-return None "
    "--stop-measure training --evaluation.every-frames 0 --log-every-seconds 0.2 --total-frames 1000M"
)
# A head that ends with its standard input. In a process of its own, as Ray reads its token once in a process.
HEAD = """
import sys
from ray.cluster_utils import Cluster
arguments = {"num_cpus": 2, "object_store_memory": 200 * 2**20, "include_dashboard": True}
arguments |= {"dashboard_host": "127.0.0.1", "dashboard_port": int(sys.argv[1])}
cluster = Cluster(initialize_head=True, head_node_args=arguments)
print("address", cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


class Head:
    """A Ray head on this machine, whose job server listens on localhost, and the commands of one who has its token."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.environment = os.environ | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(project_folder()), os.environ.get("PYTHONPATH")])),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", HEAD, str(port)],
            env=self.environment,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.address = next(line.split()[1] for line in self.process.stdout if line.startswith("address "))

    def start(self, line: str, folder: Path | None = None) -> subprocess.Popen[str]:
        # In a session of its own: whoever typed it may go.
        return subprocess.Popen(
            [sys.executable, "-m", "launch.cli", *line.split()],
            env=self.environment,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, line: str, folder: Path | None = None, code: int = 0) -> str:
        process = self.start(line, folder)
        output, _ = process.communicate(timeout=_DEADLINE_SECONDS)
        assert process.returncode == code, output
        return output

    def submit(self, settings: str, run: Path, code: int = 0) -> str:
        line = f"train cartpole {settings} --address {self.address} --detach --run-dir {run.name}"
        return self.run(line, run.parent, code)

    def listed(self, run: Path) -> dict[str, Any]:
        file = run.parent / "runs.json"
        self.run(f"runs {run.parent} --json {file}")
        (found,) = json.loads(file.read_text())["runs"]
        return found

    def status(self, note: JobNote) -> str:
        script = "import sys; from launch.on_ray.jobs import Jobs; print(Jobs(sys.argv[1]).status(sys.argv[2]).status)"
        command = [sys.executable, "-c", script, note.server, note.job]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    made = Head(tmp_path_factory.mktemp("head"))
    yield made
    made.process.communicate(timeout=60)


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} was not seen"
        time.sleep(0.2)
    return found


def has_rows(run: Path) -> bool:
    file = run / "metrics.jsonl"
    return file.is_file() and any(json.loads(line)["frames"] for line in file.read_text().splitlines()[:-1])


def account(run: Path) -> dict[str, Any]:
    summary = json.loads((run / "summary.json").read_text())
    dropped = sum(summary["agent_steps_dropped"].values())
    assert summary["agent_steps_sampled"] == summary["agent_steps_applied"] + dropped
    return summary


def test_a_job_is_listed_watched_stopped_and_saved_by_the_words_of_any_run(head: Head, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "one"
    run.parent.mkdir()
    assert "(Ray job tributary-one-" in head.submit(SMALL, run)
    note = note_of(run)
    assert note is not None
    wait_for(lambda: has_rows(run), "a row")
    found = head.listed(run)
    assert (found["status"], found["job"]) == ("running", note.job)
    assert head.status(note) == "RUNNING"

    # Nobody without the token is answered.
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{note.server}/api/jobs/")
    assert refused.value.code in (401, 403)

    attached = head.start(f"attach {run}")
    assert attached.stdout is not None
    next(line for line in attached.stdout if "frames" in line and "lag" in line)
    attached.send_signal(signal.SIGINT)
    assert "it goes on" in attached.communicate(timeout=_DEADLINE_SECONDS)[0]
    assert attached.returncode == 0
    assert holder_of(run) is not None

    assert f"asked Ray job {note.job} to finish and save" in head.run(f"stop {run}")
    assert head.status(note) == "STOPPED"
    summary = account(run)
    assert summary["status"] == head.listed(run)["status"] == "interrupted"
    assert "nothing runs there" in head.run(f"stop {run}", code=2)

    # From a machine that has only the note, the same words go by the job server.
    elsewhere = tmp_path / "elsewhere" / "one"
    elsewhere.parent.mkdir()
    write_note(elsewhere, note)
    assert head.listed(elsewhere)["status"] == "stopped"
    shown = head.run(f"attach {elsewhere}")
    assert "run folder:" in shown
    assert "the job has ended: stopped" in shown

    # A job goes on with the run, too.
    head.run(f"train --resume {run} --total-frames {summary['frames'] + 500} --detach")
    wait_for(lambda: json.loads((run / "summary.json").read_text())["status"] == "frames_reached", "its end")
    again = note_of(run)
    assert again is not None
    assert again.job != note.job
    assert account(run)["frames"] >= summary["frames"] + 500


def test_seeds_are_saved_though_ray_asks_each_of_their_processes_and_so_does_the_first_one(
    head: Head, tmp_path: Path
) -> None:
    runs = tmp_path / "seeds"
    head.submit(f"{SMALL} --seeds 1,2 --side-by-side 2", runs)
    folders = [runs / f"seed-{seed}" for seed in (1, 2)]
    wait_for(lambda: all(map(has_rows, folders)), "both seeds at work")
    head.run(f"stop {runs}")
    for folder in folders:
        assert account(folder)["status"] == "interrupted"


def test_what_cannot_be_is_said_here(head: Head, tmp_path: Path) -> None:
    said = head.submit(f"{SMALL} --network.name a3c_cnn", tmp_path / "run", code=2)
    assert "--network.name a3c_cnn: " in said
    assert "Running entrypoint" not in said
    assert not list(tmp_path.iterdir())
    write_note(tmp_path / "gone", JobNote("tributary-gone", "http://127.0.0.1:1", "CartPole-v1", 1000))
    for command in ("stop", "attach"):
        assert "no answer from the job server at http://127.0.0.1:1" in head.run(f"{command} {tmp_path}/gone", code=2)
    assert head.listed(tmp_path / "gone")["status"] == "unknown"
