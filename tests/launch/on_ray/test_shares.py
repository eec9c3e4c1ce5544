"""Clusters that are divided among runs: all shares have room, and no core, GPU or byte is in two of them."""

from collections import defaultdict
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from launch.on_ray.placement import LARGE_NODE_CORES, Node, place
from launch.on_ray.shares import check_nodes_of_run, divide, nodes_of_run, parts_of, share_line
from shared.config import ActorConfig, LearnerConfig, RunConfig
from shared.config.nodes import NodePart, node_part
from shared.errors import ConfigurationError

GIB = 2**30


def node(name: str, cores: float, gpus: float = 0.0, **more: bool) -> Node:
    return Node(f"{name}-of-the-cluster", f"10.0.0.{name}", cores, int(4 * cores + 4) * GIB, gpus, **more)


def cores(shares: list[list[Node]]) -> list[dict[str, float]]:
    """By the last number of a node's address."""
    return [{part.address.removeprefix("10.0.0."): part.cores for part in share} for share in shares]


def test_whole_nodes_come_first() -> None:
    nodes = [node(str(n), 16.0) for n in range(1, 5)]
    assert cores(divide(RunConfig(), nodes, 2)) == [{"1": 16.0, "3": 16.0}, {"2": 16.0, "4": 16.0}]
    assert cores(divide(RunConfig(), nodes, 4)) == [{"1": 16.0}, {"2": 16.0}, {"3": 16.0}, {"4": 16.0}]


def test_what_does_not_go_up_in_nodes_goes_up_in_cores_and_a_large_node_that_is_cut_keeps_one() -> None:
    nodes = [node(str(n), 16.0) for n in range(1, 4)]
    assert cores(divide(RunConfig(), nodes, 2)) == [{"1": 16.0, "3": 7.0}, {"2": 16.0, "3": 7.0}]
    # Small ones have nothing to keep.
    small = [node(str(n), 2.0) for n in range(1, 4)]
    assert cores(divide(RunConfig(), small, 2)) == [{"1": 2.0, "3": 1.0}, {"2": 2.0, "3": 1.0}]
    assert cores(divide(RunConfig(), [node("1", 9.0)], 4)) == [{"1": 2.0}] * 4


def test_each_share_has_a_part_of_the_nodes_that_are_marked_for_learners() -> None:
    nodes = [node("1", 4.0, 2.0, marked=True), *(node(str(n), 8.0) for n in (2, 3))]
    shares = divide(RunConfig(), nodes, 2)
    assert cores(shares) == [{"1": 2.0, "2": 8.0}, {"1": 2.0, "3": 8.0}]
    assert [share[0].gpus for share in shares] == [1.0, 1.0]
    for share in shares:
        placement = place(RunConfig(), share)
        assert placement.learner is share[0]
        assert (placement.gpu, placement.total_actors) == (True, 7)
    several = [*nodes, node("4", 4.0, marked=True)]
    assert cores(divide(RunConfig(), several, 2)) == [{"1": 4.0, "2": 8.0}, {"4": 4.0, "3": 8.0}]


def test_too_many_runs_are_told_how_many_fit() -> None:
    nodes = [node("1", 2.0), node("2", 3.0)]
    with pytest.raises(ConfigurationError) as raised:
        divide(RunConfig(), nodes, 6)
    assert str(raised.value) == (
        "--side-by-side 6: the 5 free cores of 2 nodes have room for 5 runs at a time; a run would have no node"
    )
    with pytest.raises(ConfigurationError, match="room for 1 run at a time; --actors 3: there is room for 2"):
        divide(RunConfig(actors=3), nodes, 2)
    with pytest.raises(ConfigurationError, match="room for no runs at a time"):
        divide(RunConfig(actors=6), nodes, 2)
    on_gpu = replace(RunConfig(), learner=LearnerConfig(device="gpu"))
    with pytest.raises(ConfigurationError, match=r"room for 1 run at a time; --learner\.device gpu"):
        divide(on_gpu, [node("1", 4.0, 1.0)], 2)


def test_draining_nodes_are_nobodys() -> None:
    assert cores(divide(RunConfig(), [node("1", 4.0), node("2", 4.0, draining=True)], 2)) == [{"1": 2.0}] * 2


NODES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 4), st.booleans(), st.booleans()), min_size=1, max_size=9)


@settings(deadline=None)
@given(NODES, st.integers(1, 12), st.sampled_from(["auto", 1, 3, "2:5"]), st.sampled_from([0.5, 1.0, 2.0]))
def test_no_core_is_in_two_shares_and_all_shares_have_room(
    sizes: list[tuple[int, int, bool, bool]], count: int, actors: int | str, actor_cores: float
) -> None:
    nodes = [
        node(str(n), float(size), float(gpus), marked=marked, draining=draining)
        for n, (size, gpus, marked, draining) in enumerate(sizes)
    ]
    config = RunConfig(actors=actors, actor=ActorConfig(cores=actor_cores))
    shares = None
    with suppress(ConfigurationError):
        shares = divide(config, nodes, count)
    assume(shares)
    assert len(shares) == count
    parts = defaultdict(list)
    for share in shares:
        placement = place(config, share)
        assert placement.total_actors * actor_cores <= sum(part.cores for part in share)
        assert any(part.marked for part in share) or not all(
            any(n.marked is marked and not n.draining for n in nodes) for marked in (True, False)
        )
        # What the run itself makes of it.
        own = replace(config, address="auto", nodes=parts_of(share))
        check_nodes_of_run(own, nodes)
        assert [(n.id, n.cores, n.gpus) for n in nodes_of_run(own, nodes)] == [(n.id, n.cores, n.gpus) for n in share]
        for part in share:
            parts[part.id].append(part)
    for whole in nodes:
        found = parts[whole.id]
        assert not (whole.draining and found)
        kept = whole.cores >= LARGE_NODE_CORES and len(found) > 1 and not whole.marked
        assert sum(part.cores for part in found) <= whole.cores - kept
        assert sum(part.gpus for part in found) <= whole.gpus
        assert sum(part.bytes for part in found) <= whole.bytes


def test_a_run_has_the_nodes_that_it_names() -> None:
    nodes = [node("1", 4.0, 1.0), node("2", 8.0)]
    config = RunConfig(address="auto", nodes=("10.0.0.2=3", "1-of", "gone=2"))
    assert nodes_of_run(RunConfig(), nodes) == nodes
    found = nodes_of_run(config, nodes)
    assert [(n.id, n.cores, n.gpus, n.bytes) for n in found] == [
        (nodes[1].id, 3.0, 0.0, nodes[1].bytes * 3 // 8),
        (nodes[0].id, 4.0, 1.0, nodes[0].bytes),
    ]
    assert share_line(found) == "3 cores of 10.0.0.2, 4 cores of 10.0.0.1"
    assert parts_of(found) == ("2-of-the-clu=3", "1-of-the-clu=4,1")


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        (
            "10.0.0.9",
            r"--nodes 10\.0\.0\.9: is no node of the cluster, which has 10\.0\.0\.1 \(a1\), 10\.0\.0\.1 \(a2\)",
        ),
        ("10.0.0.1", "are several nodes; name one by its id: a1, a2"),
        ("a", "are several nodes"),
        ("a2=5", "--nodes a2=5: the node has 4 cores and 1 GPUs"),
        ("a2=1,2", "--nodes a2=1,2: the node has 4 cores and 1 GPUs"),
    ],
)
def test_nodes_that_are_not_there(named: str, problem: str) -> None:
    nodes = [replace(node("1", 4.0, 1.0), id=name) for name in ("a1", "a2")]
    with pytest.raises(ConfigurationError, match=problem):
        check_nodes_of_run(RunConfig(address="auto", nodes=(named,)), nodes)
    check_nodes_of_run(RunConfig(address="auto", nodes=("a1", "a2=4,1")), nodes)


def test_a_run_whose_nodes_are_all_gone_has_no_place() -> None:
    config = RunConfig(address="auto", nodes=("a", "b=2"))
    with pytest.raises(ConfigurationError, match="--nodes a b=2: none of them is there any more"):
        place(config, nodes_of_run(config, []))


def test_how_nodes_are_typed() -> None:
    assert node_part("10.0.0.2") == NodePart("10.0.0.2")
    assert node_part("host=8") == NodePart("host", 8.0)
    assert node_part("host=8,1") == NodePart("host", 8.0, 1)
    assert [str(node_part(text)) for text in ("a", "a=8", "a=0.5,2")] == ["a", "a=8", "a=0.5,2"]
    for wrong in ("", "a=", "a=b", "a=-1", "=4", "a=4,", "a b"):
        with pytest.raises(ConfigurationError, match="--nodes"):
            RunConfig(address="auto", nodes=(wrong,))
    with pytest.raises(ConfigurationError, match="--nodes a: is named twice"):
        RunConfig(address="auto", nodes=("a", "a=4"))
    with pytest.raises(ConfigurationError, match="are of a cluster; join one by --address"):
        RunConfig(nodes=("a",))
