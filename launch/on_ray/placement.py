"""The placement of a run on a cluster: the learner first, then as many actors as cores are left. No Ray."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from launch.machine import (
    ACTOR_BYTES,
    ACTORS_A_GPU,
    LEARNER_BYTES,
    ThreadBudget,
    actors_in,
    automatic_actors,
    emulator_threads,
    gpu_actors,
    usable_cores,
)
from shared.config import RunConfig
from shared.errors import setting_error

# On nodes of this size and above a core is left to Ray's own processes.
LARGE_NODE_CORES = 8
# Fewer actors on the learner's machine do not fill it with gradients, and sums take a process of their own.
_MIN_ACTORS_ON_ONE_MACHINE = 16


@dataclass(frozen=True)
class Node:
    """One machine of the cluster.

    Attributes:
        marked: whether it has Ray's custom resource `learner`.
        port: of Ray's own process there.
    """

    id: str
    address: str
    cores: float
    bytes: int
    gpus: float = 0.0
    marked: bool = False
    head: bool = False
    port: int = 0


class Placement(NamedTuple):
    """The learner's node, the number of actors by node id, and a note for each node or actor without a place.

    A run on this machine alone has one node, whose id is empty.
    """

    learner: Node
    actors: dict[str, int]
    notes: tuple[str, ...] = ()

    @property
    def beside(self) -> bool:
        """True if the learner's node takes actors."""
        return self.learner.id in self.actors

    @property
    def here(self) -> bool:
        """True if the run is on this machine alone."""
        return not self.learner.id

    @property
    def total_actors(self) -> int:
        return sum(self.actors.values())


class Slots:
    """The slots for actors on one machine, which do not change. `node`: its id, empty for a run there alone."""

    def __init__(self, actors: int, node: str = "", cores: float | None = None) -> None:
        self._slots = {node: actors}
        self._cores = automatic_actors(usable_cores()) if cores is None else cores

    def slots_by_node(self) -> dict[str, int]:
        """Number of actors that each node takes, by node id."""
        return self._slots

    def cores(self, node_id: str) -> float:  # noqa: ARG002
        """Cores of a node that its actors share."""
        return self._cores

    def has_lost(self, node_id: str) -> bool:  # noqa: ARG002
        """True if this node is lost."""
        return False


def local_placement(budget: ThreadBudget) -> Placement:
    """The placement of a run on this machine alone."""
    return Placement(Node("", "this machine", budget.cores, 0), {"": budget.actors})


def place(config: RunConfig, nodes: Sequence[Node], *, beside: bool = True) -> Placement:
    """Plan a run on a cluster. For `beside` see `slots_by_node`.

    Raises:
        ConfigurationError: the nodes have fewer slots than the minimum of --actors, or the learner no GPU.
    """
    if not nodes:
        raise setting_error("address", config.address, "the cluster has no node")
    learner = learner_node(config, nodes)
    slots = slots_by_node(config, nodes, learner, beside=beside)
    least, most = config.actor_range
    available = sum(slots.values())
    if available < least:
        each = f"a core{' of a GPU node' * (config.actor.device == 'gpu')} and {ACTOR_BYTES >> 20} MiB"
        room = f"there is room for {available} on the cluster's nodes, {each} each"
        room += f", {LEARNER_BYTES >> 20} MiB for the learner"
        has = "; ".join(_slot_note(node, learner, slots) for node in nodes)
        raise setting_error("actors", config.actors, f"{room}: {has}; start fewer actors, or add nodes")
    actors = spread(slots, desired_actors(config, slots))
    running = sum(actors.values())
    notes = [_slot_note(node, learner, slots) for node in nodes if node.id not in slots and node.id != learner.id]
    if most is not None and most > running:
        notes.append(f"{most - running} of {most} actors have no place yet; they start when nodes join")
    return Placement(learner, actors, tuple(notes))


def learner_node(config: RunConfig, nodes: Sequence[Node]) -> Node:
    """The node of the learner: a marked one comes first, then one with a GPU if it needs one, then the head."""
    needs_gpu = config.learner.device == "gpu"

    def order(node: Node) -> tuple[bool, bool, bool, float]:
        return node.marked, needs_gpu and node.gpus >= 1, node.head, node.cores

    choice = max(nodes, key=order)
    if needs_gpu and choice.gpus < 1:
        raise setting_error("learner.device", "gpu", f"Ray finds no GPU on the learner's node, {choice.address}")
    return choice


def gpus_in_reach(config: RunConfig, nodes: Sequence[Node]) -> float:
    """Number of GPUs of the learner and of the nodes that take actors."""
    taking = _nodes_of_actors(nodes, beside=True)
    gpus = sum(node.gpus for node in taking)
    return gpus + (len(taking) < len(nodes) and config.learner.device == "gpu")


def _nodes_of_actors(nodes: Sequence[Node], *, beside: bool) -> Sequence[Node]:
    return nodes if beside and len(nodes) == 1 else [node for node in nodes if not node.marked]


def slots_by_node(config: RunConfig, nodes: Sequence[Node], learner: Node, *, beside: bool = True) -> dict[str, int]:
    """Number of actors that each node takes, by node id.

    One that is marked for the learner takes none, unless it is alone and `beside`: actors that began there while the
    others were gone would stay.
    """
    slots = {}
    for node in _nodes_of_actors(nodes, beside=beside):
        at_learner = node.id == learner.id
        actors = int(cores_of_actors(node, learner))
        if config.actor.device == "gpu":
            actors = gpu_actors(actors, node.gpus - (at_learner and config.learner.device == "gpu"))
        actors = min(actors, actors_in(node.bytes, learner=at_learner))
        if actors > 0:
            slots[node.id] = actors
    return slots


def cores_of_actors(node: Node, learner: Node) -> float:
    """Cores of a node that its actors share."""
    leaves_one = (node.id == learner.id and node.cores >= 4) or node.cores >= LARGE_NODE_CORES
    return node.cores - leaves_one


def cores_to_request(config: RunConfig, nodes: Sequence[Node], learner: Node) -> int:
    """Cores of the whole cluster with which the largest number of actors has a place, by the nodes that are there.

    Some nodes take no actors, and others keep a core, or lack memory or GPUs for one actor on each.
    """
    _, most = config.actor_range
    slots = slots_by_node(config, nodes, learner)
    elsewhere = (most or 0) - slots.pop(learner.id, 0)
    of_actors = sum(node.cores for node in nodes if node.id in slots)
    others = sum(node.cores for node in nodes) - of_actors
    # Machines to come are like those that are there.
    return math.ceil(elsewhere * (of_actors / sum(slots.values()) if slots else 1.0) + others)


def worker_resources(config: RunConfig, cores: float, actors: int) -> tuple[int, dict[str, float]]:
    """Threads for emulators of one actor, and its resources for Ray, where `actors` share `cores` cores."""
    if config.actor.device != "gpu":
        return 1, {"num_cpus": 1}
    resources = {"num_cpus": max(1, int(cores) // actors), "num_gpus": 1 / ACTORS_A_GPU}
    return emulator_threads(cores, actors), resources


def desired_actors(config: RunConfig, slots: dict[str, int]) -> int:
    """Number of actors that a run should have: one per slot, up to the maximum of --actors."""
    _, most = config.actor_range
    available = sum(slots.values())
    return available if most is None else min(most, available)


def spread(slots: dict[str, int], actors: int) -> dict[str, int]:
    """Number of actors of each node that has any, with as many actors as there are slots at most."""
    nodes: list[str] = []
    while len(nodes) < actors and (node := next_node(slots, nodes)) is not None:
        nodes.append(node)
    return dict(Counter(nodes))


def next_node(slots: dict[str, int], running: Iterable[str]) -> str | None:
    """The node with the most free slots, given the nodes of the running actors; None if all are full."""
    usage = Counter(running)
    free = {node: count - usage[node] for node, count in slots.items() if count > usage[node]}
    return max(free, key=lambda node: free[node]) if free else None


def gradients_per_sum_by_node(config: RunConfig, placement: Placement) -> list[int]:
    """The number of gradients in a sum of each node with actors; empty if each gradient travels by itself."""
    if config.learner.gradients_per_update < 2 or config.aggregation == "none":
        return []
    # A single machine may have more actors than cores.
    cores = {placement.learner.id: int(placement.learner.cores)}
    at_work = {node: min(count, cores.get(node, count)) for node, count in placement.actors.items()}
    sums = [gradients_per_sum(config, count) for count in at_work.values()]
    few = at_work.keys() == cores.keys() and sum(at_work.values()) < _MIN_ACTORS_ON_ONE_MACHINE
    worthwhile = max(sums) > 1 and not few and config.learner.max_policy_lag is None
    return sums if worthwhile or config.aggregation == "node" else []


def gradients_per_sum(config: RunConfig, actors: int) -> int:
    """Number of gradients in a sum of a node with this many actors: the largest divisor of K that they give at a time.

    A sum of more would wait for several rollouts of each actor, which adds lag. A rollout that gives several gradients
    gives two of them at nearly the same time.
    """
    count, most = config.learner.gradients_per_update, actors * min(config.actor.gradients_per_rollout, 2)
    return max(part for part in range(1, max(most, 1) + 1) if count % part == 0)


def placement_lines(config: RunConfig, placement: Placement, nodes: Sequence[Node]) -> list[str]:
    """The plan, a line for each node."""
    lines = []
    for node in sorted(nodes, key=lambda node: (node.id != placement.learner.id, node.address)):
        roles = []
        if node.id == placement.learner.id:
            roles.append("learner on a GPU" if config.learner.device == "gpu" else "learner")
        count = placement.actors.get(node.id, 0)
        if count:
            roles.append(f"{count} {'GPU ' * (config.actor.device == 'gpu')}actor{'s' * (count > 1)}")
        what = " + ".join(roles) or "nothing"
        gpus = f", {node.gpus:g} GPU" if node.gpus else ""
        lines.append(f"{node.address}: {what}  ({node.cores:g} cores{gpus}, {node.bytes / 2**30:.0f} GiB)")
    return [*lines, *(f"note: {note}" for note in placement.notes)]


def _slot_note(node: Node, learner: Node, slots: dict[str, int]) -> str:
    if node.marked and node.id == learner.id:
        return f"{node.address} is marked for the learner"
    has = f"{node.cores:g} cores, {node.gpus:g} GPUs, {node.bytes >> 20} MiB"
    return f"{node.address} has room for {slots.get(node.id, 0)}: {has}"
