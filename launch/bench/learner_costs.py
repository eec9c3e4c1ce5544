"""What gradients cost the processes that take them in, by the way that they come: what predictions are made of."""

from dataclasses import replace
from typing import Any, Literal

from actors.environments import environment_spec
from launch.bench.learner import LearnerArguments, learner_config, measure_head, measure_learner
from launch.bench.learner_on_nodes import measure_idle, measure_on_nodes
from launch.bench.slice_costs import of_each_slice
from launch.on_ray.tree import Aggregation
from shared.config import RunConfig, TransferConfig
from shared.wire import WirePrecision

Network = Literal["a3c_cnn", "nature_cnn"]


def learner_costs(
    network: Network,
    gradients_per_update: int,
    node_gradients: int,
    precisions: tuple[WirePrecision, ...],
    idle: float,
    pace: float = 0.0,
) -> dict[str, Any]:
    """CPU seconds per gradient between machines, by way and precision.

    `objects`: of the learner, for a gradient by itself. For K of 2 or more also `sums`: of the learner, for one in a
    sum of K; and `heads`: of the aggregator of a group, for one in a node's sum of `node_gradients`. `parameters` is P.
    What the learner takes of a core when nothing comes, `idle`, is in none of them. Gradients come every `pace` seconds
    (0: as fast as they are taken), for one that a process has to wake up for costs it more; `heads` go at full speed.
    """
    costs: dict[str, Any] = {"objects": {}}
    for precision in precisions:
        arguments = _arguments(network, gradients_per_update, shared_memory=False, precision=precision)
        measured = _from_another_node(arguments, "none", pace)
        costs["objects"][precision] = _without_idle(measured, idle)
        costs["parameters"] = measured["parameters"]
        if gradients_per_update > 1:
            costs.setdefault("sums", {})[precision] = _without_idle(_from_another_node(arguments, "node", pace), idle)
            head = measure_head(arguments, node_gradients, costs["parameters"])
            costs.setdefault("heads", {})[precision] = head
    return costs


def shared_memory_costs(
    network: Network, gradients_per_update: int, precisions: tuple[WirePrecision, ...]
) -> dict[WirePrecision, float]:
    """CPU seconds of the learner for a gradient by itself that comes through the memory of its machine."""
    return {
        precision: measure_learner(_arguments(network, gradients_per_update, shared_memory=True, precision=precision))[
            "cpu_seconds_per_gradient"
        ]
        for precision in precisions
    }


def slices_costs(
    network: Network,
    gradients_per_update: int,
    shards: int,
    precisions: tuple[WirePrecision, ...],
    idle: float,
    pace: float = 0.0,
) -> dict[str, dict[WirePrecision, float]]:
    """CPU seconds per gradient of a learner in so many slices, by precision, at the pace of `learner_costs`.

    `learner`: of the learner's process, which gradients do not pass through; and `slice`: of each slice.
    """
    costs: dict[str, dict[WirePrecision, float]] = {"learner": {}, "slice": {}}
    for precision in precisions:
        arguments = _arguments(network, gradients_per_update, shared_memory=False, precision=precision)
        measured = _from_another_node(arguments, "none", pace, shards)
        costs["learner"][precision] = _without_idle(measured, idle)
        # A system that does not say has no part in what holds back.
        costs["slice"][precision] = of_each_slice(measured, shards) or 0.0
    return costs


def idle_cost(network: Network, nodes: int = 4) -> float:
    """What the learner's process on a cluster of so many other nodes takes of a core when nothing comes."""
    arguments = _arguments(network, 1, shared_memory=False, precision="float32")
    config = replace(_on_cluster(arguments), actors=nodes)
    return measure_idle(config, environment_spec(config.environment), nodes, arguments.seconds)


def _from_another_node(
    arguments: LearnerArguments, level: Literal["none", "node"], pace: float, shards: int = 1
) -> dict[str, Any]:
    """One actor on another node: what its node fetches and sends is part of what the learner does."""
    config = replace(_on_cluster(arguments, shards), aggregation=level)
    aggregation = Aggregation(level, arguments.gradients_per_update, "for a prediction")
    return measure_on_nodes(config, environment_spec(config.environment), aggregation, 1, pace, arguments.seconds)


def _without_idle(measured: dict[str, Any], idle: float) -> float:
    seconds: float = measured["cpu_seconds_per_gradient"] - idle / measured["gradients_per_second"]
    return seconds


def _on_cluster(arguments: LearnerArguments, shards: int = 1) -> RunConfig:
    return replace(learner_config(arguments, shards), address="auto", actors=1)


def _arguments(
    network: Network, gradients_per_update: int, *, shared_memory: bool, precision: WirePrecision
) -> LearnerArguments:
    transfer = TransferConfig(shared_memory=shared_memory, precision=precision)
    return LearnerArguments(actors=1, gradients_per_update=gradients_per_update, network=network, transfer=transfer)
