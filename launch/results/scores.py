"""Scores of whole episodes, and the published ones that they are held against."""

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

_RESAMPLES = 10_000


class ReferenceScore(NamedTuple):
    """Mean scores of a professional human player and of uniformly random play (Mnih et al. 2015, Extended Data
    Table 2; Wang et al. 2016, arXiv 1511.06581, for the games that were added)."""

    human: float
    random: float


def score_summary(returns: npt.NDArray[np.float64], lengths: npt.NDArray[np.int64], environment_id: str) -> dict:
    """Describe the unclipped returns float64 [E] and lengths in agent steps int64 [E] of whole episodes.

    `standard_error` is None for one episode, `human_normalised_percent` None where no reference score is known.
    `interval_95` is the percentile bootstrap of the mean over episodes: it says nothing about other training seeds.
    """
    mean = float(np.mean(returns))
    several = len(returns) > 1
    return {
        "episodes": len(returns),
        "mean_return": mean,
        "median_return": float(np.median(returns)),
        "standard_error": float(np.std(returns, ddof=1) / np.sqrt(len(returns))) if several else None,
        "interval_95": bootstrap_interval(returns) if several else None,
        "minimum_return": float(np.min(returns)),
        "maximum_return": float(np.max(returns)),
        "mean_length_agent_steps": float(np.mean(lengths)),
        "human_normalised_percent": human_normalised(environment_id, mean),
        "returns": returns.tolist(),
        "lengths_agent_steps": lengths.tolist(),
    }


def bootstrap_interval(values: npt.NDArray[np.float64], coverage: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of float64 [E] (Efron 1979), from a fixed seed."""
    generator = np.random.default_rng(0)
    means = np.mean(generator.choice(values, (_RESAMPLES, len(values))), axis=1)
    tail = 50.0 * (1.0 - coverage)
    low, high = np.percentile(means, (tail, 100.0 - tail))
    return float(low), float(high)


def human_normalised(environment_id: str, mean_return: float) -> float | None:
    """100 (score - random) / (human - random), or None where no reference score is known."""
    reference = reference_score(environment_id)
    if reference is None:
        return None
    return 100.0 * (mean_return - reference.random) / (reference.human - reference.random)


def reference_score(environment_id: str) -> ReferenceScore | None:
    """Human and random scores of the game of an id like ALE/Pong-v5."""
    row = _data("reference_scores.json").get(_game(environment_id))
    return None if row is None else ReferenceScore(row["human"], row["random"])


def paper_score(environment_id: str) -> float | None:
    """The score of A3C, feed-forward, in Mnih et al. 2016, Table S3.

    Human starts, after four days on 16 cores: another protocol than any here.
    """
    return _data("paper_scores.json")["scores"]["a3c_ff"].get(_game(environment_id))


def _game(environment_id: str) -> str:
    return environment_id.rpartition("/")[2].rpartition("-v")[0]


@cache
def _data(name: str) -> dict[str, Any]:
    return json.loads(Path(__file__).with_name(name).read_text())
