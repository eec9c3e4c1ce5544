"""What counts as a lost node: one that Ray does not list, and one that does not answer until it answers again."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from launch.on_ray import cluster as ray_cluster
from launch.on_ray.cluster import ClusterView
from launch.on_ray.placement import Node

HEAD = Node("h", "10.0.0.1", 2.0, 16 * 2**30, head=True)
WORKER = Node("w", "10.0.0.2", 4.0, 16 * 2**30)


class Cluster:
    """What Ray lists and which nodes answer, at a time that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.listed, self.answering, self.now = [HEAD, WORKER], {"h", "w"}, 100.0
        self.asked: list[str] = []
        monkeypatch.setattr(ray_cluster, "cluster_nodes", lambda: list(self.listed))
        monkeypatch.setattr(ray_cluster, "_responds", self._responds)
        monkeypatch.setattr(ray_cluster, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.view = ClusterView(HEAD)

    def _responds(self, node: Node) -> bool:
        self.asked.append(node.id)
        return node.id in self.answering


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def test_a_node_that_answers_is_not_lost(cluster: Cluster) -> None:
    assert not cluster.view.has_lost("w")
    assert cluster.asked == ["w"]
    assert cluster.view.slots_by_node() == {"h": 2, "w": 4}


def test_a_node_that_ray_does_not_list_is_lost_though_it_was_a_moment_ago(cluster: Cluster) -> None:
    assert cluster.view.slots_by_node() == {"h": 2, "w": 4}
    cluster.listed = [HEAD]
    assert cluster.view.has_lost("w")
    assert cluster.view.slots_by_node() == {"h": 2}
    assert cluster.asked == []


def test_a_node_that_does_not_answer_is_lost_though_ray_lists_it(cluster: Cluster) -> None:
    cluster.answering = {"h"}
    assert cluster.view.has_lost("w")
    # Its other actors need not ask again.
    assert cluster.view.has_lost("w")
    assert cluster.asked == ["w"]
    # Also in what was looked up just before, and in what is looked up next.
    assert cluster.view.slots_by_node() == {"h": 2}
    cluster.now += 3.0
    assert cluster.view.slots_by_node() == {"h": 2}
    assert not cluster.view.has_lost("h")


def test_a_silent_node_is_tried_again_now_and_then_and_taken_back_when_it_answers(cluster: Cluster) -> None:
    cluster.answering = {"h"}
    cluster.view.has_lost("w")
    cluster.asked.clear()
    for now in (103.0, 106.0, 109.0):
        cluster.now = now
        assert cluster.view.slots_by_node() == {"h": 2}
    assert cluster.asked == [], "a node that is gone would cost each look a second"
    cluster.now = 111.0
    assert cluster.view.slots_by_node() == {"h": 2}
    assert cluster.asked == ["w"]
    cluster.answering, cluster.now = {"h", "w"}, 115.0
    assert cluster.view.slots_by_node() == {"h": 2}
    cluster.now = 122.0
    assert cluster.view.slots_by_node() == {"h": 2, "w": 4}
    # It is as good as any other again.
    cluster.now = 125.0
    assert cluster.view.slots_by_node() == {"h": 2, "w": 4}
    assert cluster.asked == ["w", "w"]
    assert not cluster.view.has_lost("w")


def test_a_node_that_comes_back_under_another_id_has_its_places_at_once(cluster: Cluster) -> None:
    cluster.answering = {"h"}
    cluster.view.has_lost("w")
    cluster.listed, cluster.answering, cluster.now = [HEAD, WORKER, replace(WORKER, id="v")], {"h", "v"}, 103.0
    assert cluster.view.slots_by_node() == {"h": 2, "v": 4}
