"""Several runs of several games as one figure: the interquartile mean of their scores (arXiv 2108.13264).

The package rliable has both formulas, and brings statsmodels, pandas and seaborn along; here they are two functions.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from launch.results.curves import EVALUATION_RETURN, TRAINING_RETURN, Curve, differences
from launch.results.scores import reference_score
from shared.config import RunConfig
from shared.errors import setting_error

_POINTS = 100
_RESAMPLES = 2_000


class Aggregate(NamedTuple):
    """Runs that differ in seed and game only. `iqm`, with the ends of its 95 % band, is float64 [M], at x float64 [M].

    `games` says how many runs each environment has, and `human_normalised` whether the scores are 0 for random play and
    1 for a human player.
    """

    label: str
    curves: tuple[Curve, ...]
    games: dict[str, int]
    human_normalised: bool
    x: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]
    iqm: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]


def interquartile_mean(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The mean of the middle half of the scores float64 [..., N]: float64 [...].

    ⌊N/4⌋ scores are left out at each end, as in Agarwal et al. 2021: below four it is the mean.
    """
    count = scores.shape[-1]
    cut = count // 4
    return np.sort(scores, axis=-1)[..., cut : count - cut].mean(axis=-1)


def stratified_resamples(
    scores: Sequence[npt.NDArray[np.float64]], resamples: int, seed: int = 0
) -> npt.NDArray[np.float64]:
    """Draw runs with replacement, within each game, as often as the game has runs (Agarwal et al. 2021, 4.1).

    Args:
        scores: of each game, float64 [runs of it].
        resamples: how often, R.
        seed: of the draws.

    Returns:
        float64 [R, N], N the runs of all games.
    """
    generator = np.random.default_rng(seed)
    drawn = [game[generator.integers(0, len(game), (resamples, len(game)))] for game in scores]
    return np.concatenate(drawn, axis=1)


def aggregates(curves: Sequence[Curve], y: str) -> list[Aggregate]:
    """Put the runs together that were trained by the same algorithm and settings, whatever the game.

    Where there are several games, all returns are human-normalised, so that groups stand on one axis.

    Raises:
        ConfigurationError: there are several games, and the reference scores of one are not known.
    """
    several = len({curve.config.environment.id for curve in curves}) > 1
    if several:
        curves = [curve._replace(y=_human_normalised(curve, y)) for curve in curves]
    groups: dict[bytes, list[Curve]] = {}
    for curve in curves:
        groups.setdefault(msgspec.json.encode(_algorithm(curve.config)), []).append(curve)
    members = list(groups.values())
    differing = differences([_algorithm(group[0].config) for group in members])
    return [_aggregate(words, group, human_normalised=several) for words, group in zip(differing, members, strict=True)]


def _algorithm(config: RunConfig) -> RunConfig:
    """What makes the algorithm; game, seed, limits and machines are the defaults."""
    parts = ("network", "method", "exploration", "optimizer", "learner", "actor")
    return RunConfig(**{part: getattr(config, part) for part in parts})


def _aggregate(words: Sequence[str], curves: Sequence[Curve], *, human_normalised: bool) -> Aggregate:
    games: dict[str, list[Curve]] = {}
    for curve in curves:
        games.setdefault(curve.config.environment.id, []).append(curve)
    first, last = max(curve.x[0] for curve in curves), min(curve.x[-1] for curve in curves)
    x = np.linspace(first, max(first, last), _POINTS)
    # Of each game [runs, M].
    scores = [np.array([np.interp(x, curve.x, curve.y) for curve in runs]) for runs in games.values()]
    low, high = np.transpose(
        [
            np.percentile(interquartile_mean(stratified_resamples([s[:, i] for s in scores], _RESAMPLES)), (2.5, 97.5))
            for i in range(len(x))
        ]
    )
    what = next(iter(games)) if len(games) == 1 else f"{len(games)} games"
    return Aggregate(
        label=", ".join([f"{what}, {len(curves)} run{'s' * (len(curves) > 1)}", *words]),
        curves=tuple(curves),
        games={name: len(runs) for name, runs in games.items()},
        human_normalised=human_normalised,
        x=x,
        low=low,
        iqm=interquartile_mean(np.concatenate(scores).T),
        high=high,
    )


def _human_normalised(curve: Curve, y: str) -> npt.NDArray[np.float64]:
    """0 for random play and 1 for a human player: float64 [N]."""
    game = curve.config.environment.id
    if y not in (TRAINING_RETURN, EVALUATION_RETURN):
        raise setting_error("y", y, "is not comparable between environments; only returns are, by reference scores")
    reference = reference_score(game)
    if reference is None:
        raise setting_error(
            "aggregate", "iqm", f"no human score of {game} is known to compare it by: name runs of one environment only"
        )
    return (curve.y - reference.random) / (reference.human - reference.random)
