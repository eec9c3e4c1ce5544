"""Parts of a cluster: those that a run may use, and equal ones for several runs, none of which has another's cores."""

import math
from collections.abc import Sequence
from dataclasses import replace

from launch.on_ray.placement import LARGE_NODE_CORES, Node, place, with_actor_device
from shared.config import RunConfig
from shared.config.nodes import NodePart
from shared.errors import ConfigurationError, setting_error

# Of an id: as many as tell a few thousand nodes apart.
_ID_LENGTH = 12


def nodes_of_run(config: RunConfig, nodes: Sequence[Node]) -> list[Node]:
    """The nodes that a run may use, of those that are there; each is as large as the run's part of it."""
    if not config.nodes:
        return list(nodes)
    parts = [(part, _named(part, nodes)) for part in config.node_parts]
    return [_part(node, part) for part, found in parts for node in found[:1]]


def check_nodes_of_run(config: RunConfig, nodes: Sequence[Node]) -> None:
    """Refuse parts of nodes that are not there.

    Raises:
        ConfigurationError: a name is of no node or of several, or its node is smaller.
    """
    for part in config.node_parts:
        found = _named(part, nodes)
        if not found:
            known = ", ".join(f"{node.address} ({node.id[:_ID_LENGTH]})" for node in nodes)
            raise setting_error("nodes", part.name, f"is no node of the cluster, which has {known}")
        if len(found) > 1:
            ids = ", ".join(node.id[:_ID_LENGTH] for node in found)
            raise setting_error("nodes", part.name, f"are several nodes; name one by its id: {ids}")
        (node,) = found
        if part.cores is not None and (part.cores > node.cores or part.gpus > node.gpus):
            raise setting_error("nodes", part, f"the node has {node.cores:g} cores and {node.gpus:g} GPUs")


def divide(config: RunConfig, nodes: Sequence[Node], count: int) -> list[list[Node]]:
    """Shares of nodes for so many runs, with about the same cores each: whole nodes, and cores of those that are left.

    A node of eight cores or more that is cut keeps one for Ray's own processes. Each share has a node that is marked
    for the learner, or a part of one, if there are such nodes.

    Args:
        config: of one of the runs.
        nodes: what is free of each node.
        count: of the runs.

    Raises:
        ConfigurationError: so many runs have no room; it says how many have.
    """
    shares = _divided(nodes, count)
    reason = _why_no_room(config, shares)
    if reason is None:
        return shares
    fewer = next((n for n in range(count - 1, 0, -1) if _why_no_room(config, _divided(nodes, n)) is None), 0)
    free = f"{sum(node.cores for node in nodes):g} free cores of {len(nodes)} nodes"
    raise setting_error(
        "side_by_side", count, f"the {free} have room for {fewer or 'no'} run{'s' * (fewer != 1)} at a time; {reason}"
    )


def has_room(config: RunConfig, share: Sequence[Node]) -> bool:
    """Whether a share has room for a run."""
    return _why_no_room(config, [share]) is None


def parts_of(share: Sequence[Node]) -> tuple[str, ...]:
    """A share as `--nodes` takes it."""
    return tuple(str(NodePart(node.id[:_ID_LENGTH], node.cores, int(node.gpus))) for node in share)


def share_line(share: Sequence[Node]) -> str:
    """A share in words."""
    return ", ".join(f"{node.cores:g} cores of {node.address}" for node in share)


def _named(part: NodePart, nodes: Sequence[Node]) -> list[Node]:
    by_address = [node for node in nodes if node.address == part.name]
    return by_address or [node for node in nodes if node.id.startswith(part.name)]


def _part(node: Node, part: NodePart) -> Node:
    return node if part.cores is None else _cut(node, part.cores, part.gpus)


def _cut(node: Node, cores: float, gpus: float) -> Node:
    part = min(1.0, cores / node.cores) if node.cores else 1.0
    return replace(node, cores=cores, gpus=float(gpus), bytes=int(node.bytes * part))


def _why_no_room(config: RunConfig, shares: Sequence[Sequence[Node]]) -> str | None:
    """Why one of the shares has no room for a run; None if all have."""
    for share in shares:
        if not share:
            return "a run would have no node"
        try:
            place(with_actor_device(config, sum(node.gpus for node in share)), share)
        except ConfigurationError as error:
            return str(error)
    return None


def _divided(nodes: Sequence[Node], count: int) -> list[list[Node]]:
    staying = sorted(
        (node for node in nodes if not node.draining), key=lambda node: (-node.cores, node.address, node.id)
    )
    marked = [node for node in staying if node.marked]
    others = [node for node in staying if not node.marked]
    if not (marked and others):
        return _dealt(staying, count)
    shares = _dealt(others, count)
    learners = _dealt_for_learners(marked, count)
    # A run whose learner would have no core has no room, whatever its actors have.
    return [learner + share if learner else [] for learner, share in zip(learners, shares, strict=True)]


def _dealt(nodes: Sequence[Node], count: int) -> list[list[Node]]:
    each = math.floor(sum(_cores_to_give(node) for node in nodes) / count)
    left, shares = [float(each)] * count, [list[Node]() for _ in range(count)]
    cut = []
    for node in nodes:
        neediest = _largest(left)
        if 0 < _cores_to_give(node) <= left[neediest]:
            left[neediest] -= _cores_to_give(node)
            shares[neediest].append(node)
        else:
            cut.append(node)
    for node in cut:
        free, given = math.floor(_cores_to_give(node)), dict[int, int]()
        while free > 0 and max(left) >= 1.0:
            neediest = _largest(left)
            given[neediest] = min(free, math.floor(left[neediest]))
            free -= given[neediest]
            left[neediest] -= given[neediest]
        for share, gpus in zip(given, _even(node.gpus, len(given)), strict=True):
            shares[share].append(_cut(node, given[share], gpus))
    return shares


def _dealt_for_learners(marked: Sequence[Node], count: int) -> list[list[Node]]:
    if len(marked) >= count:
        return [list(marked[share::count]) for share in range(count)]
    shares = [list[Node]() for _ in range(count)]
    for number, node in enumerate(marked):
        takers = shares[number :: len(marked)]
        cores = math.floor(node.cores / len(takers))
        for share, gpus in zip(takers, _even(node.gpus, len(takers)), strict=True):
            if cores:
                share.append(_cut(node, cores, gpus))
    return shares


def _cores_to_give(node: Node) -> float:
    """What actors and learners have of a node."""
    return node.cores - 1 if node.cores >= LARGE_NODE_CORES else node.cores


def _even(gpus: float, count: int) -> list[int]:
    whole = math.floor(gpus)
    return [whole // count + (number < whole % count) for number in range(count)] if count else []


def _largest(values: Sequence[float]) -> int:
    return max(range(len(values)), key=lambda number: values[number])
