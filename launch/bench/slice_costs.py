"""What a gradient costs each slice of a learner: c + p/S."""

from typing import Any

import numpy as np
from rich.console import Console


def of_each_slice(row: dict[str, Any], shards: int) -> float | None:
    """CPU seconds per gradient of each of so many slices, of one measurement; None where the system does not say."""
    seconds = row["process_cpu_seconds_per_gradient"].get("SliceProcess")
    return None if seconds is None else seconds / shards


def slice_costs(results: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """CPU seconds per gradient of each slice, by the number of slices S, and c and p of c + p/S, which is fitted to it.

    `results` are those of `measure_learner` by S; that of one learner without slices has none of it. c and p are None
    where fewer than two numbers of slices were measured, or the system does not say.
    """
    seconds = {}
    for shards, found in results.items():
        seen = [each for row in found["senders"].values() if (each := of_each_slice(row, shards)) is not None]
        if seen:
            seconds[shards] = min(seen)
    fixed = proportional = None
    if len(seconds) > 1:
        parts = np.array([[1.0, 1.0 / shards] for shards in seconds])
        fixed, proportional = np.linalg.lstsq(parts, np.array(list(seconds.values())), rcond=None)[0].tolist()
    return {
        "slice_cpu_seconds_per_gradient": {str(shards): each for shards, each in seconds.items()},
        "slice_fixed_cpu_seconds": fixed,
        "slice_proportional_cpu_seconds": proportional,
    }


def show_slice_costs(console: Console, result: dict[str, Any]) -> None:
    """Print c and p, if there are any."""
    fixed, proportional = result["slice_fixed_cpu_seconds"], result["slice_proportional_cpu_seconds"]
    if fixed is not None:
        console.print(
            f"CPU per gradient of each of S slices: {1e3 * fixed:.2f} ms + {1e3 * proportional:.2f} ms / S",
            highlight=False,
        )
