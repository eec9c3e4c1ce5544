"""How many gradients a second one learner takes from N actors: a closed queue."""

import math
from typing import NamedTuple


class Prediction(NamedTuple):
    """Rates of N actors together. `held_back_by` is what limits them: actors, learner, network, groups or slices."""

    actors: int
    gradients_per_second: float
    policy_lag: float
    learner_utilisation: float
    held_back_by: str


class Costs(NamedTuple):
    """Seconds per gradient.

    `actor` is one gradient with its share of a rollout, `learner` what the learner's process spends on one gradient,
    and `network` what a gradient and the weights for it take on the learner's link, whichever direction takes longer.
    `head` is what the aggregator of a group spends on one, with its link, where there are groups, and `slice` what each
    slice of the learner spends on its part of one, where there are slices. `idle` is the part of a core that the
    learner's process takes when nothing comes.
    """

    actor: float
    learner: float
    network: float = 0.0
    head: float = 0.0
    idle: float = 0.0
    slice: float = 0.0


class Tree(NamedTuple):
    """Where gradients are added before the learner: on nodes, or, with a sum for `node_gradients`, by groups of nodes.

    Without groups, `node_gradients` is 1: a node is then what a group is with them, and its actors what nodes are.
    """

    actors_per_node: int
    node_gradients: int = 1
    nodes_per_group: int = 1

    def heads(self, actors: int) -> float:
        """Who sends sums to the learner: groups, or nodes where there are none."""
        return max(1.0, actors / (self.actors_per_node * self.nodes_per_group))


def group_tree(actors: int, actors_per_node: int, node_gradients: int) -> Tree:
    """The tree with groups of about the root of the number of nodes."""
    nodes = max(1.0, actors / actors_per_node)
    return Tree(actors_per_node, node_gradients, math.ceil(math.sqrt(nodes)))


def predict(
    costs: Costs, actors: int, gradients_per_update: int = 1, calls_in_flight: int = 1, tree: Tree | None = None
) -> Prediction:
    """Throughput by mean value analysis of the machine-repairman model (Reiser and Lavenberg 1980).

    Actors compute for `costs.actor`, and then queue at the slowest of learner, link and slices, which work at the same
    time; where there are groups, at one of their aggregators before. With two calls in flight an actor computes while
    its other call is under way: what it waits is hidden, up to its own time.
    """
    service = _service(costs)
    heads = tree.heads(actors) if tree is not None else 1.0
    slowest = max(service, costs.head / heads)
    queue = head_queue = rate = 0.0
    for n in range(1, actors + 1):
        response, at_head = service * (1.0 + queue), costs.head * (1.0 + head_queue)
        waited = response + at_head
        if calls_in_flight > 1:
            waited = max(0.0, waited - costs.actor)
        rate = n / (costs.actor + waited)
        rate = min(rate, 1.0 / slowest) if slowest else rate
        queue, head_queue = rate * response, rate / heads * at_head
    saturated = slowest > 0 and rate * slowest > 0.9
    held_back = "actors"
    if saturated:
        held_back = "groups" if slowest > service else _slowest(costs)
    lag = policy_lag(actors, gradients_per_update, calls_in_flight, tree)
    return Prediction(actors, rate, lag, min(1.0, rate * costs.learner + costs.idle), held_back)


def policy_lag(actors: int, gradients_per_update: int, calls_in_flight: int, tree: Tree | None) -> float:
    """Mean updates between the version that a gradient is of and the one that it meets.

    Between the snapshot and the report of an actor every other call reports once: (N c - 1) / K. With a tree of G
    groups, K gradients of a group's sum, k of a node's, and a actors on a node: a gradient meets N / K updates while it
    is computed; it waits in its node's sum, and acts with the weights of its node's last call, for (k - 1) / 2 k of a
    node's cycle k / a each; the same holds for node and group. In all N / K + N (k - 1) / (a K) + G (1 - k / K) - 1.
    A second call adds a cycle of the group.
    """
    count = gradients_per_update
    if tree is None:
        return (actors * calls_in_flight - 1) / count
    heads, each = tree.heads(actors), tree.node_gradients
    on_node = min(actors, tree.actors_per_node)
    in_nodes = actors * (each - 1) / (on_node * count)
    return actors / count + in_nodes + heads * (calls_in_flight - each / count) - 1.0


def saturation(costs: Costs) -> float:
    """Actors at which the queue would be full if nothing varied: (Z + S) / S."""
    service = _service(costs)
    return (costs.actor + service) / service


def _service(costs: Costs) -> float:
    """Seconds that a gradient holds up the next one: the learner has what its idle process leaves of a core."""
    return max(_services(costs).values())


def _slowest(costs: Costs) -> str:
    services = _services(costs)
    return max(services, key=lambda name: services[name])


def _services(costs: Costs) -> dict[str, float]:
    return {"learner": costs.learner / (1.0 - costs.idle), "network": costs.network, "slices": costs.slice}
