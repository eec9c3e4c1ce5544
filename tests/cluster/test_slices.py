"""A learner in slices on Ray nodes of this machine, which are drained and lost."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from nodes import Training, add, drain, node_of, pids
from ray.cluster_utils import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def slices(cluster: Cluster) -> list[int]:
    return pids(cluster, "ray::SliceProcess")


def test_slices_on_nodes_of_their_own_are_lost_with_one_and_start_beside_the_learner(
    cluster: Cluster, train: Callable[[str], Training]
) -> None:
    """An actor's node that is drained costs nothing; that of a slice costs what no checkpoint has."""
    marked = [add(cluster, 0, slice=1) for _ in range(2)]
    worker = add(cluster, 1)
    training = train("--learner.shards 2 --learner.gradients-per-update 2")
    training.wait_for_actors(2)
    assert {node_of(cluster, pid).node_id for pid in slices(cluster)} == {node.node_id for node in marked}

    drain(cluster, worker)
    training.wait_for(lambda: "its node is draining" in training.log(), "the release")
    training.wait_for_actors(1)
    assert "goes on from its checkpoint" not in training.log()

    cluster.remove_node(marked[0], allow_graceful=False)
    training.wait_for(lambda: "goes on from its checkpoint" in training.log(), "another learner")
    training.wait_for_actors(1)
    # One node for slices is too few: they are beside the learner.
    (learner,) = pids(cluster, "ray::Learner")
    home = node_of(cluster, learner).node_id

    def homes() -> list[str]:
        # A slice may end between the two looks.
        with suppress(FileNotFoundError, StopIteration):
            return [node_of(cluster, pid).node_id for pid in slices(cluster)]
        return []

    training.wait_for(lambda: homes() == [home] * 2, "two slices")

    summary, output = training.stop()
    assert "learner: slice " in output
    assert summary["learner_restarts"] == 1
    assert summary["gradients_applied"] == 2 * summary["updates"]
