"""Several Ray nodes on this machine: actors follow nodes, the learner is where it was told to be."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nodes import Training, add, drain, node_of, pids
from ray.cluster_utils import Cluster
from watched_processes import without_ray

from launch.cli import main

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


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
    drain(cluster, second)
    training.wait_for(lambda: "its node is draining" in training.log(), "the release")
    training.wait_for_actors(1)
    summary, _ = training.stop()
    # Drained after its last report: nothing was lost.
    assert summary["rollouts_lost_with_actors"] == 0
    assert summary["actor_restarts"] == 0


def test_the_learner_is_on_the_node_that_is_marked(cluster: Cluster, train: Callable[[str], Training]) -> None:
    marked = add(cluster, 1, learner=1)
    training = train()
    training.wait_for_actors(1)
    (learner,) = pids(cluster, "ray::Learner")
    assert node_of(cluster, learner).node_id == marked.node_id
    _, output = training.stop()
    assert "learner  (1 cores" in output


@pytest.mark.smoke
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
    assert len(without_ray(error)) == 1
    assert not (tmp_path / "run").exists()
