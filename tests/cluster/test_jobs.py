"""Runs that outlive whoever submitted them: `train --detach --address` on a Ray head with a job server."""

import json
import os
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
from ray.cluster_utils import Cluster

from launch.cli import main
from launch.on_ray.jobs import Jobs
from launch.run.job_note import JobNote, note_of
from launch.run.lock import holder_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

_DEADLINE_SECONDS = 600
TRIBUTARY = [sys.executable, "-m", "launch.cli"]
SMALL = (
    "--actors 1 --actor.environments 4 --actor.unroll-length 10 --network.hidden-sizes 8 --stop-at-return None "
    "--stop-measure training --evaluation.every-frames 0 --log-every-seconds 0.2 --total-frames 1000M"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = {
        "num_cpus": 2,
        "object_store_memory": 200 * 2**20,
        "include_dashboard": True,
        "dashboard_host": "127.0.0.1",
        "dashboard_port": port,
    }
    made = Cluster(initialize_head=True, head_node_args=arguments)
    yield made
    made.shutdown()


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} was not seen"
        time.sleep(0.2)
    return found


def submit(cluster: Cluster, arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    # In a session of its own, and gone when it returns: as a terminal that is closed.
    line = f"train cartpole {arguments} --address {cluster.address} --detach --run-dir {folder.name}"
    return subprocess.run(
        [*TRIBUTARY, *line.split()],
        cwd=folder.parent,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))},
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )


def listed(folder: Path) -> dict[str, Any]:
    file = folder.parent / "runs.json"
    assert main(["runs", str(folder.parent), "--json", str(file)]) == 0
    (found,) = json.loads(file.read_text())["runs"]
    return found


def test_a_job_is_listed_watched_stopped_and_saved_by_the_words_of_any_run(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "runs" / "one"
    run.parent.mkdir()
    submitted = submit(cluster, SMALL, run)
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    assert "(Ray job tributary-one-" in submitted.stdout
    note = note_of(run)
    assert note is not None
    wait_for(lambda: listed(run)["frames"], "a row")
    found = listed(run)
    assert (found["status"], found["job"]) == ("running", note.job)
    assert Jobs(note.server).status(note.job).status == "RUNNING"

    # The server is asked with the cluster's token, and answers nobody without it.
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{note.server}/api/jobs/")
    assert refused.value.code in (401, 403)

    attached = subprocess.Popen([*TRIBUTARY, "attach", str(run)], stdout=subprocess.PIPE, text=True)
    assert attached.stdout is not None
    next(line for line in attached.stdout if "frames" in line and "lag" in line)
    attached.send_signal(signal.SIGINT)
    assert "it goes on" in attached.communicate(timeout=_DEADLINE_SECONDS)[0]
    assert attached.returncode == 0
    assert holder_of(run) is not None

    capsys.readouterr()
    assert main(["stop", str(run)]) == 0
    assert f"asked Ray job {note.job} to finish and save" in capsys.readouterr().out
    assert Jobs(note.server).status(note.job).status == "STOPPED"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    dropped = sum(summary["agent_steps_dropped"].values())
    assert summary["agent_steps_sampled"] == summary["agent_steps_applied"] + dropped
    assert listed(run)["status"] == "interrupted"
    assert main(["stop", str(run)]) == 2
    assert "nothing runs there" in capsys.readouterr().err

    # From a machine that has only the note, the same words go by the job server.
    elsewhere = tmp_path / "elsewhere" / "one"
    elsewhere.parent.mkdir()
    (elsewhere.parent / "one.job.json").write_text(json.dumps(note._asdict()))
    assert listed(elsewhere)["status"] == "stopped"
    capsys.readouterr()
    assert main(["attach", str(elsewhere)]) == 0
    shown = capsys.readouterr().out
    assert "run folder:" in shown
    assert "the job has ended: stopped" in shown

    # A job goes on with the run, too.
    resume = f"train --resume {run} --total-frames {summary['frames'] + 500} --detach"
    assert subprocess.run([*TRIBUTARY, *resume.split()], check=False).returncode == 0
    wait_for(lambda: listed(run)["status"] == "frames_reached", "its end")
    again = note_of(run)
    assert again is not None
    assert again.job != note.job


def test_the_seeds_of_a_job_are_saved_though_each_process_is_asked_by_ray_and_by_its_parent(
    cluster: Cluster, tmp_path: Path
) -> None:
    runs = tmp_path / "seeds"
    submitted = submit(cluster, f"{SMALL} --seeds 1,2 --side-by-side 2", runs)
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    folders = [runs / f"seed-{seed}" for seed in (1, 2)]
    wait_for(lambda: all((folder / "metrics.jsonl").is_file() for folder in folders), "both seeds at work")
    assert main(["stop", str(runs)]) == 0
    for folder in folders:
        assert json.loads((folder / "summary.json").read_text())["status"] == "interrupted"


def test_what_cannot_be_is_said_here(cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = submit(cluster, f"{SMALL} --network.name a3c_cnn", tmp_path / "run")
    assert wrong.returncode == 2
    assert "--network.name a3c_cnn: " in wrong.stdout
    assert "Running entrypoint" not in wrong.stdout
    assert not list(tmp_path.iterdir())
    note = JobNote("tributary-gone", "http://127.0.0.1:1", "CartPole-v1", 1000)
    (tmp_path / "gone.job.json").write_text(json.dumps(note._asdict()))
    for command in ("stop", "attach"):
        assert main([command, str(tmp_path / "gone")]) == 2
        assert "no answer from the job server at http://127.0.0.1:1" in capsys.readouterr().err
    assert listed(tmp_path / "gone")["status"] == "unknown"
