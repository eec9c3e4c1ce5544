"""Several Ray nodes on this machine: actors follow nodes, the learner is where it was told to be."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from accounts import account_of
from nodes import add
from ray.cluster_utils import Cluster
from waiting import UNTIL_FRAMES
from watched_processes import Training, rows

from launch.machine import PRETENDED_GPUS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


SETTINGS = (
    f"cartpole {UNTIL_FRAMES} --total-frames 1000M "
    "--log-every-seconds 0.5 --checkpoint.every-seconds 1 --actor.environments 4 --actor.unroll-length 10"
)


class OnCluster(Training):
    def __init__(self, cluster: Cluster, folder: Path, arguments: str = "") -> None:
        line = f"{SETTINGS} --run-dir {folder} --address {cluster.address} {arguments}"
        super().__init__(Path(sys.executable).parent, folder, line)

    def row(self) -> dict[str, Any]:
        return (rows(self.folder) or [{"actors_alive": 0, "updates": 0}])[-1]

    def log(self) -> str:
        file = self.folder / "log.txt"
        return file.read_text() if file.is_file() else ""

    def wait_for_progress(self) -> None:
        updates = self.row()["updates"]
        self.wait_for(lambda: self.row()["updates"] > updates, "progress")

    def wait_for_actors(self, count: int) -> None:
        self.wait_for(lambda: self.row()["actors_alive"] == count, f"{count} actors at work")
        self.wait_for_progress()

    def stop(self) -> tuple[dict[str, Any], str]:
        self.interrupt()
        return account_of(self.folder), self.printed()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 200 * 2**20})
    yield made
    made.shutdown()


def test_actors_follow_nodes_that_come_and_go(cluster: Cluster, tmp_path: Path) -> None:
    with OnCluster(cluster, tmp_path / "run") as training:
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


def test_actors_are_on_the_nodes_with_a_gpu(cluster: Cluster, tmp_path: Path, monkeypatch) -> None:
    """On a GPU that the second node pretends to have. A third one without takes none."""
    monkeypatch.setenv(PRETENDED_GPUS, "1")
    add(cluster, 2, gpus=1)
    settings = (
        "--environment.id ALE/Pong-v5 --environment.screen-size 36 --network.name a3c_cnn "
        "--network.no-centre-observations --actor.device auto"
    )
    with OnCluster(cluster, tmp_path / "run", settings) as training:
        training.wait_for_actors(2)
        add(cluster, 1)
        training.wait_for_progress()
        assert training.row()["actors_alive"] == 2
        summary, output = training.stop()
    assert ": learner  (1 cores" in output
    assert "2 GPU actors  (2 cores, 1 GPU" in output
    assert summary["actor_restarts"] == 0


@pytest.mark.smoke
def test_the_run_goes_on_when_the_learners_node_is_lost(cluster: Cluster, tmp_path: Path) -> None:
    marked = add(cluster, 1, learner=1)
    with OnCluster(cluster, tmp_path / "run") as training:
        training.wait_for_actors(1)
        training.wait_for(lambda: list((training.folder / "checkpoints").glob("update-*.index")), "a checkpoint")
        training.wait_for_progress()
        cluster.remove_node(marked, allow_graceful=False)
        training.wait_for(lambda: "goes on from its checkpoint" in training.log(), "another learner")
        training.wait_for_actors(1)
        summary, output = training.stop()
    assert summary["learner_restarts"] == 1
    assert "another one goes on from the last checkpoint" in output
