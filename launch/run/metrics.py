"""Sums up what happens in a logging interval into the numbers that are shown and logged."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from launch.run.progress import Progress, lag_mean
from learner.learner import Learner, Outcome
from shared.types import StageSeconds, info_means

# The signature of a network killed by its first updates (docs/methods.md, "When a run does not learn").
_DEAD_SHARE = 0.6
_UNEXPLAINED = 0.05
_PATIENCE_ROWS = 6


class Metrics:
    """Sums up outcomes over a logging interval.

    Args:
        learner: whose totals stand beside the sums of the interval.
        evaluated: the entry of the run's last evaluation, if one was played before.
    """

    def __init__(self, learner: Learner, evaluated: Mapping[str, Any] | None = None) -> None:
        self._learner = learner
        self._evaluation_return: float | None = None if evaluated is None else evaluated["mean_return"]
        self._suspicious_rows = 0
        self.begin(0.0)

    @property
    def empty(self) -> bool:
        """Whether nothing was taken in since the interval began."""
        return not (self._gradients or self._evaluations)

    def add(self, outcome: Outcome) -> None:
        """Take in one outcome."""
        report = outcome.report
        self._agent_steps += report.agent_steps
        self._samples += report.samples
        self._gradients += 1
        self._learner_seconds += outcome.seconds
        self._stages += report.stage_seconds
        if outcome.updated:
            self._updates += 1
            self._norms.append(outcome.gradient_norm)
        # As in the account: the episodes of a duplicate were counted before.
        if outcome.dropped != "duplicate":
            for name, values in report.episodes.info.items():
                self._info.setdefault(name, []).extend(values.tolist())
        if outcome.dropped is None:
            self._lags[outcome.policy_lag] += 1
            self._statistics.update(report.statistics)
            self._weights += outcome.weight
            self._accepted += 1

    def add_evaluation(self, point: dict[str, Any]) -> None:
        """Take in an evaluation; see `Taken.point`. Rows show its mean return until the next one."""
        self._evaluation_return = point["mean_return"]
        self._evaluations.append(point)

    def progress(self, elapsed_seconds: float, actors_alive: int, actor_restarts: int) -> Progress:
        """The state of the run now. The interval goes on: only `next_interval` ends it."""
        learner, ledger = self._learner, self._learner.account.ledger
        seconds = max(elapsed_seconds - self._started, 1e-9)
        agent_steps = max(self._agent_steps, 1)
        frames_per_step = learner.account.frames / ledger.sampled if ledger.sampled else 0.0
        return Progress(
            frames=learner.account.frames,
            agent_steps=ledger.sampled,
            updates=ledger.updates,
            episodes=learner.account.episodes,
            elapsed_seconds=elapsed_seconds,
            mean_return_100=learner.account.mean_return,
            frames_per_second=self._agent_steps * frames_per_step / seconds,
            agent_steps_per_second=self._agent_steps / seconds,
            updates_per_second=self._updates / seconds,
            gradients_per_second=self._gradients / seconds,
            policy_lag_mean=lag_mean(self._lags),
            policy_lag_max=max(self._lags, default=0),
            policy_lag_counts=dict(self._lags),
            gradients_per_update=learner.gradients_per_update,
            staleness_weight=self._weights / self._accepted if self._accepted else None,
            agent_steps_applied=ledger.applied,
            agent_steps_dropped=dict(ledger.dropped),
            actors_alive=actors_alive,
            actor_restarts=actor_restarts,
            stage_microseconds={
                stage: 1e6 * total / agent_steps
                for stage, total in zip(StageSeconds._fields, self._stages.tolist(), strict=True)
            },
            learner_milliseconds=1e3 * self._learner_seconds / max(self._gradients, 1),
            learning_rate=learner.learning_rate,
            gradient_norm=float(np.mean(self._norms)) if self._norms else None,
            passes=self._samples / agent_steps,
            evaluation_return=self._evaluation_return,
            evaluations=list(self._evaluations),
            statistics={name: total / self._accepted for name, total in self._statistics.items()},
            info=info_means({name: np.array(values) for name, values in self._info.items()}),
        )

    def next_interval(self, row: Progress) -> str | None:
        """Start a new interval after `row`. Returns a warning if the rows so far look like a dead network."""
        self.begin(row.elapsed_seconds)
        dead, explained = row.statistics.get("dead_units", 0.0), row.statistics.get("explained_variance", 1.0)
        suspicious = dead > _DEAD_SHARE and abs(explained) < _UNEXPLAINED
        self._suspicious_rows = self._suspicious_rows + 1 if suspicious else 0
        if self._suspicious_rows != _PATIENCE_ROWS:
            return None
        return (
            f"{dead:.0%} of the hidden units are dead and the value explains nothing "
            f"(explained variance {explained:.2f}): the first updates were probably too large; "
            f"try --optimizer.bias-correction, a larger --optimizer.epsilon or a lower --optimizer.learning-rate"
        )

    def begin(self, elapsed_seconds: float) -> None:
        """Start the interval, anew and empty, after so many seconds of training, those before a resume included."""
        self._started = elapsed_seconds
        self._agent_steps = self._samples = self._gradients = self._updates = 0
        self._learner_seconds = 0.0
        self._stages = np.zeros(len(StageSeconds._fields))
        self._lags: Counter[int] = Counter()
        self._norms: list[float] = []
        self._evaluations: list[dict[str, Any]] = []
        self._statistics: Counter[str] = Counter()
        self._weights = 0.0
        self._accepted = 0
        self._info: dict[str, list[float]] = {}
