"""Several Ray nodes on this machine: actors follow nodes, the learner is where it was told to be."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from launch.cli import main

pytestmark = pytest.mark.cluster

_DEADLINE_SECONDS = 90
SETTINGS = (
    "cartpole --evaluation.every-frames 0 --stop-at-return None --stop-measure training --total-frames 1000M "
    "--log-every-seconds 0.5 --checkpoint.every-seconds 1 --actor.environments 4 --actor.unroll-length 10"
)


class Training:
    """`tributary train` on a cluster, watched from outside."""

    def __init__(self, address: str, folder: Path, arguments: str = "") -> None:
        self.folder = folder
        command = [sys.executable, "-m", "launch.cli", "train", *SETTINGS.split(), *arguments.split()]
        self.process = subprocess.Popen(
            [*command, "--address", address, "--run-dir", str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while not condition():
            assert self.process.poll() is None, f"{what}: the run ended\n{self.process.communicate()[0]}"
            assert time.monotonic() < deadline, f"{what} was not seen\n{self.log()}"
            time.sleep(0.1)

    def row(self) -> dict[str, Any]:
        with suppress(OSError):
            for line in reversed((self.folder / "metrics.jsonl").read_text().splitlines()):
                with suppress(ValueError):
                    return json.loads(line)
        return {"actors_alive": 0, "updates": 0, "frames": 0}

    def log(self) -> str:
        with suppress(OSError):
            return (self.folder / "log.txt").read_text()
        return ""

    def wait_for_actors(self, count: int) -> None:
        self.wait_for(lambda: self.row()["actors_alive"] == count, f"{count} actors at work")
        updates = self.row()["updates"]
        self.wait_for(lambda: self.row()["updates"] > updates, "progress")

    def stop(self) -> tuple[dict[str, Any], str]:
        self.process.send_signal(signal.SIGINT)
        output, _ = self.process.communicate(timeout=_DEADLINE_SECONDS)
        assert self.process.returncode == 130, output
        summary = json.loads((self.folder / "summary.json").read_text())
        dropped = sum(summary["agent_steps_dropped"].values())
        assert summary["agent_steps_sampled"] == summary["agent_steps_applied"] + dropped
        return summary, output


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 200 * 2**20})
    yield made
    made.shutdown()


@pytest.fixture
def train(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[[str], Training]]:
    started: list[Training] = []

    def start(arguments: str = "") -> Training:
        started.append(Training(cluster.address, tmp_path / f"run{len(started)}", arguments))
        return started[-1]

    yield start
    for training in started:
        training.process.kill()
        training.process.wait()


def add(cluster: Cluster, cpus: int, **resources: float) -> Any:
    return cluster.add_node(num_cpus=cpus, resources=resources, object_store_memory=200 * 2**20)


def learner_pids() -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and (entry / "cmdline").read_bytes().startswith(b"ray::Learner"):
                found.append(int(entry.name))
    return found


def node_of_learner(cluster: Cluster) -> str:
    """The id of the node whose raylet is the parent of the learner's process."""
    (pid,) = learner_pids()
    parent = int(re.search(r"PPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])  # type: ignore[index]
    command = Path(f"/proc/{parent}/cmdline").read_bytes().decode()
    return next(node.node_id for node in cluster.list_all_nodes() if node.node_id in command)


def test_actors_follow_nodes_that_come_and_go(cluster: Cluster, train: Callable[[str], Training]) -> None:
    training = train()
    training.wait_for_actors(1)
    second = add(cluster, 2)
    training.wait_for_actors(3)
    assert training.log().count(" joins") == 2
    # Killed like a machine whose power is cut: the run goes on, and nothing of it counts as a restart.
    cluster.remove_node(second, allow_graceful=False)
    training.wait_for_actors(1)
    add(cluster, 1)
    training.wait_for_actors(2)
    summary, output = training.stop()
    assert summary["actor_restarts"] == 0
    assert "learner + 1 actor" in output
    assert "Traceback" not in output


def test_a_drained_nodes_actors_go_before_it_does(cluster: Cluster, train: Callable[[str], Training]) -> None:
    second = add(cluster, 1)
    training = train()
    training.wait_for_actors(2)
    ray.init(cluster.address, logging_level="error")
    try:
        gcs = ray._raylet.GcsClient(address=cluster.address)
        deadline = int((time.time() + 600) * 1000)
        accepted, _ = gcs.drain_node(second.node_id, 2, "the machine is taken back", deadline)
        assert accepted
        training.wait_for(lambda: "its node is draining" in training.log(), "the release")
        training.wait_for_actors(1)
    finally:
        ray.shutdown()
    summary, _ = training.stop()
    # Released after its last report: nothing was lost.
    assert summary["rollouts_lost_with_actors"] == 0
    assert summary["actor_restarts"] == 0


def test_nodes_that_add_their_gradients_come_and_go(cluster: Cluster, train: Callable[[str], Training]) -> None:
    nodes = [add(cluster, 2) for _ in range(2)]
    training = train("--learner.gradients-per-update 2 --aggregation node --actors 2:4")
    training.wait_for_actors(4)
    cluster.remove_node(nodes[0], allow_graceful=False)
    training.wait_for(lambda: training.row()["actors_alive"] < 4, "the loss")
    training.wait_for(lambda: training.row()["actors_alive"] >= 2, "those that are left")
    summary, output = training.stop()
    assert "aggregation:  by node: as asked for" in output
    assert summary["gradients_applied"] == 2 * summary["updates"]
    assert summary["actor_restarts"] == 0


def test_the_learner_is_on_the_node_that_is_marked(cluster: Cluster, train: Callable[[str], Training]) -> None:
    marked = add(cluster, 1, learner=1)
    training = train()
    training.wait_for_actors(1)
    assert node_of_learner(cluster) == marked.node_id
    _, output = training.stop()
    assert "learner  (1 cores" in output


def test_the_run_goes_on_when_the_learners_node_is_lost(cluster: Cluster, train: Callable[[str], Training]) -> None:
    marked = add(cluster, 1, learner=1)
    training = train()
    training.wait_for_actors(1)
    training.wait_for(lambda: list((training.folder / "checkpoints").glob("update-*.index")), "a checkpoint")
    before = training.row()["updates"]
    training.wait_for(lambda: training.row()["updates"] > before, "progress")
    cluster.remove_node(marked, allow_graceful=False)
    training.wait_for(lambda: "goes on from its checkpoint" in training.log(), "another learner")
    training.wait_for_actors(1)
    summary, output = training.stop()
    assert summary["learner_restarts"] == 1
    assert "another one goes on from the last checkpoint" in output


def test_a_cluster_that_is_too_small_costs_one_line(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(cluster, 2)
    command = f"train cartpole --address {cluster.address} --actors 7 --run-dir {tmp_path / 'run'}"
    assert main(command.split()) == 2
    error = capsys.readouterr().err
    assert "--actors 7: there is room for 3" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_the_doctor_looks_at_every_node(cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(cluster, 1)
    file = tmp_path / "doctor.json"
    assert main(f"doctor --address {cluster.address} --json {file}".split()) == 0, capsys.readouterr().out
    nodes = json.loads(file.read_text())["nodes"]
    assert len(nodes) == 2
    for node in nodes:
        assert node["environment_microseconds"] > 0
        assert node["graph_microseconds"] > 0
        assert abs(node["clock_skew_seconds"]) < 1
    assert sum("transfer_bytes_per_second" in node for node in nodes) == 1
