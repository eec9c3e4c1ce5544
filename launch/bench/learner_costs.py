"""What gradients cost the processes that take them in, by the way that they come: what predictions are made of."""

from dataclasses import replace
from typing import Any, Literal

from launch.bench.learner import LearnerArguments, measure_head, measure_learner
from shared.config import TransferConfig
from shared.wire import WirePrecision


def learner_costs(
    network: Literal["a3c_cnn", "nature_cnn"],
    gradients_per_update: int,
    node_gradients: int,
    precisions: tuple[WirePrecision, ...],
) -> dict[str, Any]:
    """CPU seconds per gradient, by way and precision.

    `shared_memory` and `objects`: of the learner, for a gradient by itself. For K of 2 or more also `sums`: of the
    learner, for one in a sum of K; and `heads`: of the aggregator of a group, for one in a node's sum of
    `node_gradients`. `parameters` is P.
    """
    costs: dict[str, Any] = {"shared_memory": {}, "objects": {}}
    for precision in precisions:
        for way in ("shared_memory", "objects"):
            transfer = TransferConfig(shared_memory=way == "shared_memory", precision=precision)
            arguments = LearnerArguments(
                actors=1, gradients_per_update=gradients_per_update, network=network, transfer=transfer
            )
            measured = measure_learner(arguments)
            costs[way][precision] = measured["cpu_seconds_per_gradient"]
            costs["parameters"] = measured["senders"]["1"]["parameters"]
        if gradients_per_update > 1:
            summed = replace(arguments, gradients_per_message=gradients_per_update)
            costs.setdefault("sums", {})[precision] = measure_learner(summed)["cpu_seconds_per_gradient"]
            head = measure_head(arguments, node_gradients, costs["parameters"])
            costs.setdefault("heads", {})[precision] = head
    return costs
