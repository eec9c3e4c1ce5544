"""Gradients added in two levels, on Ray nodes of this machine, whose processes and nodes are taken away."""

import os
import signal
from collections.abc import Callable, Iterator

import pytest
from accounts import account_of
from nodes import Training, add, drain, node_of, pids
from ray.cluster_utils import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

# T x B of the settings of a `Training`.
ROLLOUT_AGENT_STEPS = 10 * 4
K = 4


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """The learner's node, and four of two actors each."""
    head = {"num_cpus": 1, "resources": {"learner": 1}, "object_store_memory": 200 * 2**20}
    made = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(4):
        add(made, 2)
    yield made
    made.shutdown()


def heads(cluster: Cluster) -> set[int]:
    return set(pids(cluster, "ray::GroupAggregator"))


def wait_for_all(cluster: Cluster, training: Training, actors: int, groups: int) -> None:
    """Until so many actors have reported and go on, below so many heads, and the run makes progress."""
    training.wait_for_actors(actors)
    # An actor serves calls over its line from its first report on.
    training.wait_for(lambda: len(pids(cluster, "ray::ActorProcess.serve")) == actors, f"{actors} that serve")
    training.wait_for(lambda: len(heads(cluster)) == groups, f"{groups} heads")


def test_a_head_is_killed_and_its_node_lost_and_another_drained_and_the_account_is_exact_beyond_a_resume(
    cluster: Cluster, train: Callable[[str], Training]
) -> None:
    reuse = "--actor.epochs 2 --actor.minibatches 2"
    training = train(f"--learner.gradients-per-update {K} --aggregation group {reuse}")
    wait_for_all(cluster, training, actors=8, groups=2)

    os.kill(min(heads(cluster)), signal.SIGKILL)
    training.wait_for(lambda: " replaces actor " in training.log(), "another head")
    wait_for_all(cluster, training, actors=8, groups=2)

    # Killed like a machine whose power is cut: the node that is left of its group joins again.
    cluster.remove_node(node_of(cluster, min(heads(cluster))), allow_graceful=False)
    training.wait_for(lambda: " joins" in training.log(), "the node that is left")
    wait_for_all(cluster, training, actors=6, groups=2)

    with_heads = {node_of(cluster, pid).node_id for pid in heads(cluster)}
    drain(cluster, next(node for node in cluster.worker_nodes if node.node_id not in with_heads))
    training.wait_for(lambda: "its node is draining" in training.log(), "the release")
    wait_for_all(cluster, training, actors=4, groups=2)

    summary, output = training.stop()
    assert "aggregation:  by group: as asked for, nodes send sums of 2 gradients" in output
    assert "Traceback" not in output
    assert summary["gradients_applied"] == K * summary["updates"]
    assert summary["actor_restarts"] == 1
    assert summary["learner_restarts"] == 0
    lost = summary["rollouts_lost_with_actors"]
    # Those of two groups of four actors and of a node at least, and no more than they and their sums can hold.
    assert 4 <= lost <= 3 * (2 * (2 + 1) + K - 2) + 8 * 2
    assert summary["agent_steps_lost_with_actors_at_most"] == lost * ROLLOUT_AGENT_STEPS

    resumed = Training(cluster.address, training.folder, f"--total-frames {summary['frames'] + 20_000}")
    output = resumed.process.communicate(timeout=180)[0]
    assert resumed.process.returncode == 0, output
    after = account_of(training.folder)
    assert after["updates"] > summary["updates"]
    assert after["gradients_applied"] == K * after["updates"]
