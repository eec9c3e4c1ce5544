"""An evaluation that actors play in shares, beside their training. No Ray, no TensorFlow.

Each of its environments plays a fixed number of episodes, one after another. Wave w is the w-th episode of every
environment. Only whole waves count: the episodes that end first are the short ones, whose mean is biased.

    coordinator: SharedEvaluation ── share ──► actor: Evaluator, for about as long as a rollout takes
                  ▲ add              ◄─ part ──┘
                  └─ all environments have ended a wave: look at the returns, and play on or end

An actor that has ended its share of a wave goes on with its training while others have not.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from launch.files import finite
from shared.config import EvaluationConfig
from shared.errors import counted
from shared.types import EpisodeStats, EvaluationPart, EvaluationPolicy, EvaluationShare, WeightSnapshot

# Returns are skewed: of 100 games of Pong with a mean of 18, six may be lost outright. Fewer episodes decide nothing. A
# first look at 40 made a policy with a mean of 16 play twice the games until it had missed 18.
MIN_EPISODES = 20

# True if an evaluation goes on after the returns of whole waves, float64 [n].
GoesOn = Callable[[npt.NDArray[np.float64]], bool]


class EvaluationResult(NamedTuple):
    """Whole episodes played with fixed weights: unclipped returns float64 [E], lengths in agent steps int64 [E].

    `games` int64 [E] has one number for episodes that were the same game from start to end. `agent_steps` are those of
    the evaluation, with episodes that are not in it.
    """

    snapshot: WeightSnapshot
    episodes: EpisodeStats
    policy: EvaluationPolicy
    games: npt.NDArray[np.int64]
    agent_steps: int


class EvaluationLost(NamedTuple):
    """An evaluation ended without a result, after `agent_steps`. `endless`: another one would, too."""

    reason: str
    agent_steps: int
    endless: bool = False


class EvaluationShares:
    """The shares of workers in some environments of an evaluation, and the progress of each.

    `whole`: the environments, and the episodes that each of them plays at present. `workers`: the number of actors of
    each worker, by its id.
    """

    def __init__(self, config: EvaluationConfig, whole: EvaluationShare, workers: Mapping[int, int]) -> None:
        self.whole = whole
        self._quota = np.array(config.episodes_by_environment)
        self._ended = np.zeros(len(self._quota), np.int64)
        bounds = whole.first + np.cumsum([0, *workers.values()]) * whole.size // sum(workers.values())
        self._slices = {
            worker: slice(first, last)
            for worker, first, last in zip(workers, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
            if first < last
        }

    @property
    def workers(self) -> Collection[int]:
        """The workers that have a share."""
        return self._slices.keys()

    def share(self, worker: int) -> EvaluationShare | None:
        """The part that a worker plays at present; None if it has played all of it."""
        part = self._slices.get(worker)
        if part is None or self._is_complete(part):
            return None
        return self.whole._replace(first=part.start, size=part.stop - part.start)

    def count(self, part: EvaluationPart) -> None:
        """Count the episodes of a call."""
        np.add.at(self._ended, part.environments, 1)

    def _is_complete(self, part: slice) -> bool:
        return bool((self._ended[part] >= np.minimum(self._quota[part], self.whole.episodes)).all())


class SharedEvaluation(EvaluationShares):
    """One evaluation, wave by wave.

    There is at least one worker. `goes_on` looks at the returns of whole waves, from 20 episodes on; without it
    `all_episodes` are played. `agent_steps` have been played so far.
    """

    def __init__(
        self,
        number: int,
        snapshot: WeightSnapshot,
        policy: EvaluationPolicy,
        config: EvaluationConfig,
        workers: Mapping[int, int],
        goes_on: GoesOn | None = None,
    ) -> None:
        self._snapshot, self.agent_steps, self.all_episodes = snapshot, 0, config.episodes
        self._goes_on, self._waves = goes_on, max(config.episodes_by_environment)
        environments = config.environments_in_use
        wave = self._waves if goes_on is None else min(self._waves, -(-MIN_EPISODES // environments))
        super().__init__(config, EvaluationShare(number, policy, 0, environments, wave), workers)
        self._parts: list[EvaluationPart] = []

    def add(self, part: EvaluationPart) -> EvaluationResult | None:
        """Add the episodes of a call. Returns the result when the evaluation has ended."""
        self.agent_steps += part.agent_steps
        self._parts.append(part)
        self.count(part)
        while self._is_complete(slice(None)):
            result = self._result()
            if self.whole.episodes >= self._waves or (self._goes_on and not self._goes_on(result.episodes.returns)):
                return result
            self.whole = self.whole._replace(episodes=self.whole.episodes + 1)
        return None

    def _result(self) -> EvaluationResult:
        """The result of the whole waves so far, ordered by wave and environment: arrivals do not change it."""
        part = EvaluationPart.joined(self._parts)
        order = np.lexsort((part.environments, part.order))
        order = order[part.order[order] < self.whole.episodes]
        returns, lengths, info, _ = part.episodes
        info = {name: values[order] for name, values in info.items()}
        episodes = EpisodeStats(returns[order], lengths[order], info)
        return EvaluationResult(self._snapshot, episodes, self.whole.policy, part.games[order], self.agent_steps)


# ---- Figures


def distinct(games: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The numbers of games int64 [E], or one for each episode where an environment has chance.

    An environment has chance if the same start and actions, the upper half of a number, led to another course. Equal
    courses are then independent draws, and no repetitions of one game.
    """
    repeated = len(np.unique(games >> 32)) == len(np.unique(games))
    return games if repeated else np.arange(len(games))


def independent(games: npt.NDArray[np.int64], policy: EvaluationPolicy) -> npt.NDArray[np.int64]:
    """The numbers of the independent draws among games int64 [E]: with sampled actions equal games are draws, too."""
    return distinct(games) if policy == "greedy" else np.arange(len(games))


def return_figures(
    returns: npt.NDArray[np.float64], games: npt.NDArray[np.int64], policy: EvaluationPolicy
) -> dict[str, Any]:
    """Figures of the returns float64 [E] of whole episodes, by their keys in files; NaN where one is not finite.

    `games` int64 [E] has one number for episodes that were the same game. A game that greedy play repeats adds no
    information: in the standard error of the mean it counts once, with a weight w for how often it was played. The
    variance is estimated without bias by Σw² Σw(R - m)² / (1 - Σw²), which without repetitions is s²/E. It is None for
    a single game.
    """
    # No difference of infinities.
    returns = np.where(np.isfinite(returns), returns, np.nan)
    _, first, times_played = np.unique(independent(games, policy), return_index=True, return_counts=True)
    error = None
    if len(first) > 1:
        weights = times_played / np.sum(times_played)
        deviations, squares = returns[first] - np.sum(weights * returns[first]), np.sum(weights**2)
        error = float(np.sqrt(squares * np.sum(weights * deviations**2) / (1 - squares)))
    return {
        "episodes": len(returns),
        "distinct_games": len(np.unique(distinct(games))),
        "mean_return": float(np.mean(returns)),
        "median_return": float(np.median(returns)),
        "standard_error": error,
    }


def evaluation_entry(result: EvaluationResult, untrained: float | None) -> dict[str, Any]:
    """The entry of an evaluation in summary.json and metrics.jsonl; `untrained`: mean return of untrained play.

    `collapsed_episodes` have a return closer to untrained play's than to the median; None if the return of untrained
    play is unknown, or not below the median. A figure is None where the returns are not finite: one NaN among them
    makes the mean None.
    """
    returns = result.episodes.returns
    figures = return_figures(returns, result.games, result.policy)
    median, collapsed = figures["median_return"], None
    # A NaN is above nothing.
    if untrained is not None and median > untrained:
        collapsed = int((returns < (untrained + median) / 2.0).sum())
    return finite(
        {"version": result.snapshot.version, "policy": result.policy, **figures, "collapsed_episodes": collapsed}
    )


def evaluation_line(entry: dict[str, Any]) -> str:
    episodes, games, collapsed = entry["episodes"], entry["distinct_games"], entry["collapsed_episodes"]
    again = "" if games == episodes else f", {counted(games, 'distinct game')}"
    if entry["mean_return"] is None:
        return f"no mean return over {counted(episodes, 'episode')}{again}: not all returns are finite"
    lost = "" if collapsed is None else f", {collapsed} collapsed"
    return (
        f"mean return {entry['mean_return']:.2f} over {counted(episodes, 'episode')}{again} (median "
        f"{entry['median_return']:.2f}{lost})"
    )
