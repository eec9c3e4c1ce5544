"""Scores of whole episodes, and the published ones that they are held against."""

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from actors.games import standard_error

_RESAMPLES = 10_000


class ReferenceScore(NamedTuple):
    """Mean scores of a human player and of uniformly random play, as Wang et al. 2016 (arXiv 1511.06581) have them and
    dqn_zoo uses them. Those of Mnih et al. 2015 are others for some games: 6875 for a human at Alien, 7127.7 here."""

    human: float
    random: float


def score_summary(
    returns: npt.NDArray[np.float64],
    lengths: npt.NDArray[np.int64],
    environment_id: str,
    games: npt.NDArray[np.int64] | None = None,
) -> dict[str, Any]:
    """Describe the unclipped returns float64 [E] and lengths in agent steps int64 [E] of whole episodes.

    `games` int64 [E] has one number for episodes that were the same game; None: no two were. The mean is that of the
    episodes; `standard_error` and `interval_95`, the percentile bootstrap of the mean, are over the distinct games,
    since a game that is played again says nothing new. They say nothing about other training seeds, and are None for
    one game; `human_normalised_percent` is None where no reference score is known.
    """
    mean = float(np.mean(returns))
    if games is None:
        games = np.arange(len(returns))
    _, first, times_played = np.unique(games, return_index=True, return_counts=True)
    distinct = returns[first]
    several = len(first) > 1
    return {
        "episodes": len(returns),
        "distinct_games": len(first),
        "mean_return": mean,
        "median_return": float(np.median(returns)),
        "standard_error": standard_error(returns, games),
        "interval_95": bootstrap_interval(distinct, times_played) if several else None,
        "minimum_return": float(np.min(returns)),
        "maximum_return": float(np.max(returns)),
        "mean_length_agent_steps": float(np.mean(lengths)),
        "human_normalised_percent": human_normalised(environment_id, mean),
        "returns": returns.tolist(),
        "lengths_agent_steps": lengths.tolist(),
    }


def bootstrap_interval(
    values: npt.NDArray[np.float64], times_played: npt.NDArray[np.int64] | None = None, coverage: float = 0.95
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of float64 [G] (Efron 1979), from a fixed seed.

    Values that were played several times are drawn, and left out, as one.
    """
    weights = np.ones(len(values)) if times_played is None else times_played.astype(np.float64)
    drawn = np.random.default_rng(0).choice(len(values), (_RESAMPLES, len(values)))
    means = np.sum((weights * values)[drawn], axis=1) / np.sum(weights[drawn], axis=1)
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

    With the Nature network, not `a3c_cnn` (its LSTM adds 256 cells), and human starts, after four days on 16 cores:
    another network and another protocol than any here.
    """
    return _data("paper_scores.json")["scores"]["a3c_ff"].get(_game(environment_id))


def _game(environment_id: str) -> str:
    return environment_id.rpartition("/")[2].rpartition("-v")[0]


@cache
def _data(name: str) -> dict[str, Any]:
    return json.loads(Path(__file__).with_name(name).read_text())
