"""Which settings the trials of a sweep have: all of a grid, drawn at random, or chosen by Optuna's TPE sampler."""

import itertools
import math
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from launch.sweep.book import Trial
from launch.sweep.file import Range, Settings, Space, Sweep, Value


class Search(Protocol):
    """Chooses settings, and learns from what comes of them."""

    def suggest(self, number: int) -> Settings:
        """The settings of a new trial."""

    def report(self, number: int, frames: int, score: float) -> None:
        """A trial has come so far."""

    def ended(self, trial: Trial) -> None:
        """A trial has ended."""


def make_search(sweep: Sweep, before: Iterable[Trial]) -> Search:
    """The search that a sweep asks for, which knows the trials of earlier processes."""
    if sweep.plan.search == "optuna":
        return OptunaSearch(sweep, before)
    return Listed(sweep)


class Listed:
    """Settings that depend on the number of a trial only: all combinations of a grid, or draws."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._grid: list[tuple[Value, ...]] | None = None
        if sweep.plan.search == "grid":
            self._grid = list(itertools.product(*(part for part in sweep.space.values() if isinstance(part, list))))

    def suggest(self, number: int) -> Settings:
        if self._grid is not None:
            return dict(zip(self._sweep.space, self._grid[number], strict=True))
        generator = np.random.default_rng([self._sweep.plan.seed, number])
        return {name: draw(part, generator) for name, part in self._sweep.space.items()}

    def report(self, number: int, frames: int, score: float) -> None:
        """Learns nothing."""

    def ended(self, trial: Trial) -> None:
        """Learns nothing."""


def draw(part: list[Value] | Range, generator: np.random.Generator) -> Value:
    if isinstance(part, list):
        return part[int(generator.integers(len(part)))]
    if part.whole and not part.log:
        return int(generator.integers(int(part.low), int(part.high) + 1))
    # Each whole number has the share of what is rounded to it, the first and the last one too.
    margin = 0.5 if part.whole else 0.0
    low, high = part.low - margin, part.high + margin
    drawn = math.exp(generator.uniform(math.log(low), math.log(high))) if part.log else generator.uniform(low, high)
    # Rounding must not leave the range.
    value = min(max(drawn, part.low), part.high)
    return round(value) if part.whole else float(value)


class OptunaSearch:
    """Optuna's tree-structured Parzen estimator. Its study is in memory, and is built from our own lines.

    `constant_liar`: trials that are still running count as bad ones, so that those side by side differ.
    """

    def __init__(self, sweep: Sweep, before: Iterable[Trial]) -> None:
        import optuna

        self._optuna = optuna
        self._seed, self._space = sweep.plan.seed, sweep.space
        self._distributions = _distributions(sweep.space)
        self._study = new_study()
        self._running: dict[int, Any] = {}
        for trial in before:
            if trial.ended is not None:
                self._study.add_trial(frozen_trial(trial, self._space))
            else:
                self._study.enqueue_trial(_coded(trial.settings, self._space))
                self._running[trial.number] = self._study.ask(self._distributions)

    def suggest(self, number: int) -> Settings:
        # Of its number: a resumed search would else draw again what it drew at first.
        self._study.sampler = self._optuna.samplers.TPESampler(seed=self._seed + 7919 * number, constant_liar=True)
        self._running[number] = trial = self._study.ask(self._distributions)
        return _decoded(trial.params, self._space)

    def report(self, number: int, frames: int, score: float) -> None:
        trial = self._running.get(number)
        if trial is not None:
            trial.report(score, frames)

    def ended(self, trial: Trial) -> None:
        asked = self._running.pop(trial.number, None)
        if asked is None:
            return
        states = self._optuna.trial.TrialState
        if trial.ended == "done" and trial.score is not None:
            self._study.tell(asked, trial.score)
        else:
            self._study.tell(asked, state=states.PRUNED if trial.ended == "stopped" else states.FAIL)


def new_study() -> Any:
    """An empty one, in memory."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(direction="maximize")


def _distributions(space: Space) -> dict[str, Any]:
    return {name: _distribution(part) for name, part in space.items()}


def _distribution(part: list[Value] | Range) -> Any:
    """What Optuna calls a part of the space. Choices are numbered: it takes numbers and texts of one list for equal
    only if they are so in Python, and 1 is True there."""
    import optuna.distributions as kinds

    if isinstance(part, list):
        return kinds.CategoricalDistribution(list(range(len(part))))
    if part.whole:
        return kinds.IntDistribution(int(part.low), int(part.high), log=part.log)
    return kinds.FloatDistribution(float(part.low), float(part.high), log=part.log)


def frozen_trial(trial: Trial, space: Space) -> Any:
    """A trial that has ended, as Optuna keeps one."""
    import optuna

    states = optuna.trial.TrialState
    known = {"params": _coded(trial.settings, space), "distributions": _distributions(space)}
    if trial.score is None or trial.ended not in ("done", "stopped"):
        return optuna.trial.create_trial(state=states.FAIL, **known)
    if trial.ended == "stopped":
        seen = {trial.frames: trial.score}
        return optuna.trial.create_trial(state=states.PRUNED, value=trial.score, intermediate_values=seen, **known)
    return optuna.trial.create_trial(value=trial.score, **known)


def _coded(settings: Settings, space: Space) -> dict[str, Any]:
    return {
        name: part.index(value) if isinstance(part := space[name], list) else value for name, value in settings.items()
    }


def _decoded(params: dict[str, Any], space: Space) -> Settings:
    return {name: part[value] if isinstance(part := space[name], list) else value for name, value in params.items()}
