"""The rows of `tributary bench lag` in numbers: means over seeds with bootstrap intervals, best rates, gains."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from launch.bench.lag_cells import CORRECTIONS
from launch.bench.throughput import DRIFT
from launch.results.aggregate import stratified_resamples

_RESAMPLES = 10_000
# Of fewer seeds the interval says little: where nothing differs, two seeds are on one side of 0 in half of all cells.
LEAST_SEEDS = 5


class Mean(NamedTuple):
    """A mean with the ends of its 95 % percentile bootstrap interval; without them where there are too few values."""

    mean: float
    low: float | None
    high: float | None

    @property
    def sign(self) -> str:
        """↑ or ↓ where the interval is all above, or all below 0."""
        if self.low is None or self.high is None:
            return ""
        return "↑" if self.low > 0 else "↓" if self.high < 0 else ""

    def __str__(self) -> str:
        return f"{self.mean:.0f}" + ("" if self.low is None else f" ({self.low:.0f} to {self.high:.0f})")


def bootstrapped(strata: Sequence[npt.NDArray[np.float64]]) -> Mean:
    """The mean over strata of their means; each stratum, float64 [its seeds], is resampled by itself."""
    mean = float(np.mean([values.mean() for values in strata]))
    if max(len(values) for values in strata) < LEAST_SEEDS:
        return Mean(mean, None, None)
    drawn = np.mean([stratified_resamples([values], _RESAMPLES, i).mean(axis=1) for i, values in enumerate(strata)], 0)
    low, high = np.percentile(drawn, (2.5, 97.5))
    return Mean(mean, float(low), float(high))


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Each cell over its seeds, the best rate of each, and what each correction makes of the same without it.

    The best rate is that of the highest return at the end, and of those the highest over the run; where a study has not
    ended, of those with the most seeds. A gain is paired: it is the difference of the same seed, each side at its own
    best rate. `by_actors` takes the settings of K together, which are strata of the bootstrap.
    """
    groups = grouped(rows, ("actors", "gradients_per_update", "correction", "rate"))
    cells = [_cell(group) for group in groups if any(_return(row) is not None for row in group)]
    best = [
        max(group, key=lambda cell: [cell["seeds"], *(cell[measure]["mean"] for measure in _MEASURES)])
        for group in grouped(cells, ("actors", "gradients_per_update", "correction"))
    ]
    plain = {(cell["actors"], cell["gradients_per_update"]): cell for cell in best if cell["correction"] == "none"}
    gains: dict[tuple[str, int, str], list[npt.NDArray[np.float64]]] = {}
    for cell, measure in itertools.product(best, _MEASURES):
        other = plain.get((cell["actors"], cell["gradients_per_update"]))
        if other is None or other is cell:
            continue
        mine, others = cell[measure]["by_seed"], other[measure]["by_seed"]
        gained = np.array([mine[seed] - others[seed] for seed in mine if seed in others])
        if len(gained):
            cell[f"gain_of_{measure}"] = bootstrapped([gained])._asdict()
            gains.setdefault((cell["correction"], cell["actors"], measure), []).append(gained)
    return {
        "cells": cells,
        "best": best,
        "by_actors": [
            {"correction": correction, "actors": actors, "of": measure, **bootstrapped(strata)._asdict()}
            for (correction, actors, measure), strata in gains.items()
        ],
    }


def grouped(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Those that agree in what is named, together; in the order of these values."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)

    def order(key: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(CORRECTIONS.index(part) if isinstance(part, str) else part for part in key)

    return [groups[key] for key in sorted(groups, key=order)]


def _cell(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first = rows[0]
    returned = [row for row in rows if _return(row) is not None]
    # Rows of earlier studies do not tell.
    drifted = [row for row in rows if DRIFT[0] in row]
    return {
        **{name: first[name] for name in ("actors", "gradients_per_update", "correction", "rate", "learning_rate")},
        "seeds": len(returned),
        **{measure: _over_seeds({row["seed"]: of(row) for row in returned}) for measure, of in _MEASURES.items()},
        "policy_lag_mean": float(np.mean([row["policy_lag_mean"] for row in rows])),
        "policy_lag_max": max(row["policy_lag_max"] for row in rows),
        "gradients_per_actor": float(np.mean([row["gradients"] for row in rows])) / first["actors"],
        "drift": _drift(drifted) if drifted else None,
        # Rows of earlier studies do not tell; in those nothing was dropped.
        "dropped_share": float(np.mean([_dropped_share(row) for row in rows])),
        "failed": sum(row["failure"] is not None or _return(row) is None for row in rows),
    }


def _drift(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    means = {name: float(np.mean([row[name] for row in rows])) for name in (*DRIFT, "policy_lag_mean")}
    return {**means, "seeds": len(rows)}


def _dropped_share(row: dict[str, Any]) -> float:
    dropped: int = sum(row.get("agent_steps_dropped", {}).values())
    return dropped / max(1, row["agent_steps"])


def _over_seeds(by_seed: dict[int, float | None]) -> dict[str, Any]:
    return {**bootstrapped([np.array(list(by_seed.values()), np.float64)])._asdict(), "by_seed": by_seed}


def _return(row: dict[str, Any]) -> float | None:
    """Of the evaluation at the end; where the weights were not finite, of the last training episodes, if any ended."""
    evaluated: float | None = row["evaluation_mean_return"]
    trained: float | None = row["mean_return_100"]
    return trained if evaluated is None else evaluated


def _over_the_run(row: dict[str, Any]) -> float | None:
    """Mean of the returns of training that were noted on the way: who learns sooner has more of it."""
    noted = [value for value in row["curve"] if value is not None]
    return float(np.mean(noted)) if noted else _return(row)


_MEASURES: dict[str, Callable[[dict[str, Any]], float | None]] = {
    "return": _return,
    "return_over_the_run": _over_the_run,
}
