"""What gradients cost the processes that take them in, by the way that they come: what predictions are made of."""

from dataclasses import replace
from typing import Any, Literal

from launch.bench.learner import LearnerArguments, measure_head, measure_idle, measure_learner
from launch.bench.slice_costs import of_each_slice
from shared.config import TransferConfig
from shared.wire import WirePrecision

Network = Literal["a3c_cnn", "nature_cnn"]


def learner_costs(
    network: Network, gradients_per_update: int, node_gradients: int, precisions: tuple[WirePrecision, ...]
) -> dict[str, Any]:
    """CPU seconds per gradient between machines, by way and precision.

    `objects`: of the learner, for a gradient by itself. For K of 2 or more also `sums`: of the learner, for one in a
    sum of K; and `heads`: of the aggregator of a group, for one in a node's sum of `node_gradients`. `parameters` is P.
    """
    costs: dict[str, Any] = {"objects": {}}
    for precision in precisions:
        arguments = _arguments(network, gradients_per_update, shared_memory=False, precision=precision)
        measured = measure_learner(arguments)
        costs["objects"][precision] = measured["cpu_seconds_per_gradient"]
        costs["parameters"] = measured["senders"]["1"]["parameters"]
        if gradients_per_update > 1:
            summed = replace(arguments, gradients_per_message=gradients_per_update)
            costs.setdefault("sums", {})[precision] = measure_learner(summed)["cpu_seconds_per_gradient"]
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
    network: Network, gradients_per_update: int, shards: int, precisions: tuple[WirePrecision, ...]
) -> dict[str, dict[WirePrecision, float]]:
    """CPU seconds per gradient of a learner in so many slices, by precision.

    `learner`: of the learner's process, which gradients do not pass through; and `slice`: of each slice.
    """
    costs: dict[str, dict[WirePrecision, float]] = {"learner": {}, "slice": {}}
    for precision in precisions:
        arguments = _arguments(network, gradients_per_update, shared_memory=False, precision=precision)
        measured = measure_learner(arguments, shards=shards)
        (row,) = measured["senders"].values()
        costs["learner"][precision] = measured["cpu_seconds_per_gradient"]
        # A system that does not say has no part in what holds back.
        costs["slice"][precision] = of_each_slice(row, shards) or 0.0
    return costs


def idle_cost(network: Network) -> float:
    """What the learner's process on a cluster takes of a core when nothing comes."""
    return measure_idle(_arguments(network, 1, shared_memory=False, precision="float32"))


def _arguments(
    network: Network, gradients_per_update: int, *, shared_memory: bool, precision: WirePrecision
) -> LearnerArguments:
    transfer = TransferConfig(shared_memory=shared_memory, precision=precision)
    return LearnerArguments(actors=1, gradients_per_update=gradients_per_update, network=network, transfer=transfer)
