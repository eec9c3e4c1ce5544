"""Where gradients are added, and which nodes form groups, for clusters that can be counted by hand."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.on_ray.placement import Node, place
from launch.on_ray.tree import aggregation, groups, within
from shared.config import LearnerConfig, RunConfig
from shared.errors import ConfigurationError

HEAD = Node("h", "10.0.0.1", 2.0, 2**34, head=True, marked=True)


def workers(count: int) -> list[Node]:
    return [Node(f"w{i}", f"10.0.0.{i + 2}", 4.0, 2**34) for i in range(count)]


@pytest.mark.parametrize(
    ("count", "asked", "limit", "nodes", "level", "share", "why"),
    [
        (1, "auto", None, 2, "none", 1, "applied by itself"),
        (4, "auto", None, 2, "node", 4, "make one message"),
        (8, "auto", None, 2, "none", 1, "a node has 4 actors, fewer than the 8"),
        (8, "auto", None, 4, "group", 2, "nodes send sums of 2 gradients, and groups of nodes add them to 8"),
        (18, "auto", None, 4, "group", 3, "nodes send sums of 3"),
        (36, "auto", None, 4, "group", 4, "nodes send sums of 4"),
        # Of a prime number nodes could add nothing.
        (7, "auto", None, 4, "none", 1, "fewer than the 7"),
        (4, "auto", 10, 2, "none", 1, "policy lag"),
        (4, "none", None, 2, "none", 1, "as asked for"),
        (8, "node", None, 2, "node", 8, "as asked for"),
        (8, "group", None, 2, "group", 2, "as asked for"),
    ],
)
def test_where_gradients_are_added(
    count: int, asked: str, limit: int | None, nodes: int, level: str, share: int, why: str
) -> None:
    learner = LearnerConfig(gradients_per_update=count, max_policy_lag=limit)
    config = RunConfig(learner=learner, aggregation=asked, address="auto")
    found = aggregation(config, place(config, [HEAD, *workers(nodes)]))
    assert found[:2] == (level, share)
    assert why in found.why
    assert aggregation(replace(config, aggregation="auto"), None).level == "none"


def test_gradients_are_not_added_on_their_way_where_the_learner_has_to_see_each() -> None:
    for learner, why in (
        (LearnerConfig(gradients_per_update=4, staleness="inverse"), "each gradient is weighed by itself"),
        (LearnerConfig(target_policy_lag=4.0, accumulation="mean"), "K follows the policy lag"),
    ):
        config = RunConfig(learner=learner)
        assert aggregation(config, place(config, [HEAD, *workers(2)])) == ("none", 1, why)


@pytest.mark.parametrize("how", ["node", "group"])
def test_aggregation_that_cannot_be_is_refused(how: str) -> None:
    with pytest.raises(ConfigurationError, match="nothing to add"):
        RunConfig(aggregation=how)
    with pytest.raises(ConfigurationError, match="taken out of a sum"):
        RunConfig(aggregation=how, learner=LearnerConfig(gradients_per_update=2, max_policy_lag=3))
    with pytest.raises(ConfigurationError, match="--lockstep"):
        RunConfig(aggregation=how, learner=LearnerConfig(gradients_per_update=2), lockstep=True)


def test_groups_are_of_the_nodes_of_a_cluster_and_of_several() -> None:
    with pytest.raises(ConfigurationError, match="join one by --address"):
        RunConfig(aggregation="group", learner=LearnerConfig(gradients_per_update=2))
    with pytest.raises(ConfigurationError, match="--nodes-per-group 1: must be at least 2"):
        RunConfig(nodes_per_group=1)


def test_groups_are_near_equal_and_about_the_root_of_the_nodes() -> None:
    assert groups(list("abcd"), [], None) == [["a", "b"], ["c", "d"]]
    assert groups(list("abcdefg"), [], None) == [["a", "b"], ["c", "d"], ["e", "f", "g"]]
    assert groups(list("abcdefg"), [], 4) == [["a", "b", "c"], ["d", "e", "f", "g"]]
    assert groups([], [], None) == []


def test_a_node_that_joins_fills_a_group_and_one_that_is_lost_leaves_it() -> None:
    assert groups(list("abcde"), [["a", "b"], ["c", "d"]], None) == [["a", "b", "e"], ["c", "d"]]
    assert groups(list("abc"), [["a", "b"], ["c", "d"]], None) == [["a", "b"], ["c"]]
    assert groups(list("abcde"), [["a", "b"], ["c", "d"]], 2) == [["a", "b"], ["c", "d"], ["e"]]


def test_the_nodes_of_a_group_whose_first_is_lost_join_others_when_it_ends() -> None:
    """First while the group still ends, then without it."""
    assert groups(list("bcdef"), [["a", "b"], ["c", "d"]], None) == [["b"], ["c", "d", "e"], ["f"]]
    assert groups(list("bcd"), [["c", "d"]], None) == [["c", "d"], ["b"]]


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(0, 60), st.none() | st.integers(2, 9))
def test_every_node_is_in_one_group_and_none_is_larger_than_it_may_be(old: int, new: int, most: int | None) -> None:
    before = groups([f"{n}" for n in range(old)], [], most)
    left = [f"{n}" for n in range(0, old, 2)] + [f"new {n}" for n in range(new)]
    after = groups(left, before, most)
    assert sorted(node for group in after for node in group) == sorted(left)
    assert all(after[len(before) :])
    largest = most or max(2, int(len(left) ** 0.5) + 1)
    assert all(len(group) <= max(largest, len(was)) for group, was in zip(after, before, strict=False))
    assert all(len(group) <= largest for group in after[len(before) :])


def test_no_more_actors_than_the_run_may_have() -> None:
    places = {"a": 4, "b": 4, "c": 4}
    assert within(places, None) == places
    assert within(places, 6) == {"a": 4, "b": 2}
    assert within(places, 0) == {}
