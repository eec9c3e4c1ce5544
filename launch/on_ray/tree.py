"""The tree by which gradients are added on their way to the learner: on which level, how many, and by which groups."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from launch.on_ray.placement import Placement
from shared.config import RunConfig

# Two groups of two: with fewer nodes a second level would only add a stop.
_FEWEST_NODES_TO_GROUP = 4


class Aggregation(NamedTuple):
    """How gradients are added on their way to the learner, and why, in words.

    `level`: not at all; on each node; or on each node, and then by groups of nodes. A node's sum is of
    `node_gradients`.
    """

    level: Literal["none", "node", "group"]
    node_gradients: int
    why: str


def aggregation(config: RunConfig, placement: Placement | None) -> Aggregation:
    """Where the K gradients of an update are added."""
    count = config.learner.gradients_per_update
    fewest = min(placement.actors.values(), default=1) if placement is not None else 1
    share = node_share(count, fewest)
    by_group = f"nodes send sums of {share} gradients, and groups of nodes add them to {count}"
    if config.aggregation == "none":
        return Aggregation("none", 1, "as asked for")
    if config.aggregation == "node":
        return Aggregation("node", count, "as asked for")
    if config.aggregation == "group":
        return Aggregation("group", share, f"as asked for, {by_group}")
    if config.learner.shards > 1:
        return Aggregation("none", 1, "the learner's slices take gradients one by one")
    if config.learner.staleness != "none":
        return Aggregation("none", 1, "each gradient is weighed by itself")
    if config.learner.target_policy_lag is not None:
        return Aggregation("none", 1, "K follows the policy lag")
    if count < 2:
        return Aggregation("none", 1, "each gradient is applied by itself")
    if placement is None or list(placement.actors) in ([], [placement.learner.id]):
        return Aggregation("none", 1, "all actors are on the learner's machine")
    if config.learner.max_policy_lag is not None or config.lockstep or config.record_arrivals is not None:
        return Aggregation("none", 1, "not with a limit on policy lag, --lockstep or --record-arrivals")
    if fewest >= count:
        return Aggregation("node", count, f"{count} gradients of a node make one message")
    fewer = f"a node has {fewest} actors, fewer than the {count} gradients of an update"
    if share > 1 and len(placement.actors) >= _FEWEST_NODES_TO_GROUP:
        return Aggregation("group", share, f"{fewer}: {by_group}")
    return Aggregation("none", 1, fewer)


def node_share(gradients_per_update: int, fewest_actors: int) -> int:
    """Gradients of a node's sum where groups add such sums up to K: the largest divisor of K that is at most its root.

    Nor is it more than the actors of any node. So both levels take in about as many messages for one that they send.
    More on the nodes would spare the groups, and add lag: a node's weights are new once per sum.
    """
    most = min(math.isqrt(gradients_per_update), fewest_actors)
    return max(part for part in range(1, most + 1) if gradients_per_update % part == 0)


def groups(nodes: Sequence[str], running: Sequence[Sequence[str]], most: int | None) -> list[list[str]]:
    """The nodes in groups, those that run already first and in their order.

    A group that runs keeps its nodes, less those that are gone, and is filled up with new ones; the others form new
    groups of near-equal size, neighbours together. A group that has lost the node that it is added up on gets no
    others.

    Args:
        nodes: ids of all that are there.
        running: ids of the nodes of each group that runs, the one that it is added up on first.
        most: nodes of a group. None: the root of their number, rounded up, so that nobody takes messages of more.
    """
    most = most or math.ceil(math.sqrt(len(nodes)))
    there = set(nodes)
    kept = [[node for node in group if node in there] for group in running]
    growing = [now for now, before in zip(kept, running, strict=True) if now and now[0] == before[0]]
    free = [node for node in nodes if not any(node in group for group in kept)]
    while free and growing and min(map(len, growing)) < most:
        min(growing, key=len).append(free.pop(0))
    count = math.ceil(len(free) / most) if free else 0
    bounds = [number * len(free) // count for number in range(count + 1)] if count else []
    return kept + [free[begin:end] for begin, end in pairwise(bounds)]


def within(places: dict[str, int], most: int | None) -> dict[str, int]:
    """The first of these places for actors, at most so many in all; without the nodes that then have none."""
    taken: dict[str, int] = {}
    for node, count in places.items():
        left = count if most is None else min(count, most - sum(taken.values()))
        if left > 0:
            taken[node] = left
    return taken
