"""Networks: observations in, the heads of a method out, and a state where the network has a memory."""

from shared.networks.base import (
    RUNNING_MEAN,
    RUNNING_VARIANCE,
    Head,
    KerasNetwork,
    Network,
    NetworkOutput,
    ObservationScale,
    orthogonal_seeds,
)

__all__ = [
    "RUNNING_MEAN",
    "RUNNING_VARIANCE",
    "Head",
    "KerasNetwork",
    "Network",
    "NetworkOutput",
    "ObservationScale",
    "orthogonal_seeds",
]
