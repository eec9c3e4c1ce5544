"""Placement against small clusters that can be counted by hand."""

from dataclasses import replace

import pytest

from launch.machine import ACTOR_BYTES
from launch.on_ray.placement import (
    Node,
    aggregation,
    desired_actors,
    learner_node,
    next_node,
    place,
    placement_lines,
    slots_by_node,
)
from shared.config import LearnerConfig, RunConfig
from shared.errors import ConfigurationError

GIB = 2**30
HEAD = Node("h", "10.0.0.1", 2.0, 16 * GIB, head=True)
WORKERS = [Node(f"w{i}", f"10.0.0.{i + 2}", 4.0, 16 * GIB) for i in range(2)]
CLUSTER = [HEAD, *WORKERS]


def test_every_core_gets_an_actor_where_no_node_is_marked() -> None:
    placement = place(RunConfig(), CLUSTER)
    assert placement.learner is HEAD
    assert placement.actors == {"h": 2, "w0": 4, "w1": 4}
    assert not placement.gpu


def test_a_marked_node_has_the_learner_and_nothing_else() -> None:
    marked = replace(WORKERS[1], marked=True)
    placement = place(RunConfig(), [HEAD, WORKERS[0], marked])
    assert placement.learner is marked
    assert placement.actors == {"h": 2, "w0": 4}


def test_a_gpu_draws_the_learner_unless_it_shall_be_on_a_cpu() -> None:
    gpu = replace(WORKERS[1], gpus=1.0)
    nodes = [HEAD, WORKERS[0], gpu]
    assert place(RunConfig(), nodes)[:2] == (gpu, True)
    on_cpu = replace(RunConfig(), learner=LearnerConfig(device="cpu"))
    assert place(on_cpu, nodes)[:2] == (HEAD, False)
    on_gpu = replace(RunConfig(), learner=LearnerConfig(device="gpu"))
    with pytest.raises(ConfigurationError, match="Ray finds no GPU"):
        place(on_gpu, CLUSTER)
    with pytest.raises(ConfigurationError, match=r"marked for the learner, 10\.0\.0\.2, has none"):
        place(on_gpu, [replace(WORKERS[0], marked=True), gpu])


def test_a_large_node_is_left_a_core_and_so_is_the_learners() -> None:
    large, head = Node("l", "10.0.0.9", 16.0, 64 * GIB), replace(HEAD, cores=4.0)
    assert slots_by_node([head, large], head) == {"h": 3, "l": 15}


def test_the_memory_of_an_actor_counts() -> None:
    small = replace(WORKERS[0], bytes=2 * ACTOR_BYTES + 1)
    assert slots_by_node([small], HEAD) == {"w0": 2}


@pytest.mark.parametrize(("actors", "count"), [("auto", 10), (3, 3), ("2:5", 5), ("2:100", 10)])
def test_the_number_of_actors(actors: int | str, count: int) -> None:
    config = RunConfig(actors=actors)
    placement = place(config, CLUSTER)
    assert placement.total_actors == count
    assert desired_actors(config, slots_by_node(CLUSTER, HEAD)) == count


def test_few_actors_are_spread() -> None:
    assert place(RunConfig(actors=4), CLUSTER).actors == {"w0": 2, "w1": 2}
    assert next_node({"a": 2, "b": 1}, ["a", "b"]) == "a"
    assert next_node({"a": 1}, ["a"]) is None


def test_a_cluster_that_is_too_small_is_named_node_by_node() -> None:
    poor = replace(WORKERS[0], bytes=100 * 2**20)
    with pytest.raises(ConfigurationError) as raised:
        place(RunConfig(actors=7), [HEAD, poor, WORKERS[1]])
    message = str(raised.value)
    assert "\n" not in message
    assert "--actors 7: there is room for 6" in message
    assert "10.0.0.2 has 100 MiB of memory, and an actor needs 950" in message
    with pytest.raises(ConfigurationError, match=r"10\.0\.0\.1 is being drained"):
        place(RunConfig(), [replace(HEAD, draining=True)])


def test_draining_nodes_take_nothing_and_lose_the_learner() -> None:
    nodes = [replace(HEAD, draining=True), *WORKERS]
    placement = place(RunConfig(actors="1:16"), nodes)
    assert placement.learner in WORKERS
    assert "h" not in placement.actors
    assert any("is being drained" in line for line in placement_lines(placement, nodes))
    assert any("have no place yet" in note for note in placement.notes)
    assert learner_node(RunConfig(), nodes)[0] is not nodes[0]


@pytest.mark.parametrize(
    ("count", "requested", "limit", "level", "why"),
    [
        (1, "auto", None, "none", "applied by itself"),
        (4, "auto", None, "node", "make one message"),
        (8, "auto", None, "none", "a node has 4 actors, fewer than the 8"),
        (4, "auto", 10, "none", "policy lag"),
        (4, "none", None, "none", "as requested"),
        (8, "node", None, "node", "as requested"),
    ],
)
def test_where_gradients_are_summed(count: int, requested: str, limit: int | None, level: str, why: str) -> None:
    learner = LearnerConfig(gradients_per_update=count, max_policy_lag=limit)
    config = RunConfig(learner=learner, aggregation=requested, address="auto")
    found = aggregation(config, place(config, [replace(HEAD, marked=True), *WORKERS]), 8)
    assert found.level == level
    assert why in found.why
    assert aggregation(replace(config, aggregation="auto"), None, 8).level == "none"


@pytest.mark.parametrize(("cores", "level"), [(16, "node"), (15, "none")])
def test_one_machine_sums_where_many_actors_are_at_work(
    cores: int, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.on_ray.placement.usable_cores", lambda: cores)
    config = RunConfig(learner=LearnerConfig(gradients_per_update=4))
    assert aggregation(config, None, 64).level == level
