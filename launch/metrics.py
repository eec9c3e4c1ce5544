"""From events to the numbers that are shown and logged."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import tensorflow as tf

from launch.progress import Progress
from learner.learner import Learner, Outcome
from shared.types import RolloutStatistics, StageSeconds

# The signature of a network killed by its first updates (README, "When a run does not learn").
_DEAD_SHARE = 0.6
_UNEXPLAINED = 0.05
_PATIENCE_ROWS = 6


class Metrics:
    """Sums up outcomes over a logging interval.

    Args:
        learner: whose account is reported.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._evaluation_return: float | None = None
        self._suspicious_rows = 0
        self._start_interval(0.0)

    def add(self, outcome: Outcome) -> None:
        """Take in one outcome."""
        report = outcome.report
        self._agent_steps += report.agent_steps
        self._gradients += 1
        self._learner_seconds += outcome.seconds
        self._stages += report.stage_seconds
        self._lags[outcome.policy_lag] += 1
        if outcome.updated:
            self._updates += 1
            self._norms.append(outcome.gradient_norm)
        if outcome.dropped is None:
            self._statistics.append(report.statistics)

    def add_evaluation(self, mean_return: float) -> None:
        """Take in the mean return of an evaluation."""
        self._evaluation_return = mean_return

    def progress(self, elapsed_seconds: float, actors_alive: int, actor_restarts: int) -> Progress:
        """The state now. Starts no new interval."""
        learner, ledger = self._learner, self._learner.ledger
        seconds = max(elapsed_seconds - self._started, 1e-9)
        agent_steps = max(self._agent_steps, 1)
        frames_per_step = learner.frames / ledger.sampled if ledger.sampled else 0.0
        statistics = np.mean(self._statistics, axis=0).tolist() if self._statistics else [None] * 5
        return Progress(
            frames=learner.frames,
            agent_steps=ledger.sampled,
            updates=ledger.updates,
            episodes=learner.episodes,
            elapsed_seconds=elapsed_seconds,
            mean_return_100=learner.mean_return,
            frames_per_second=self._agent_steps * frames_per_step / seconds,
            agent_steps_per_second=self._agent_steps / seconds,
            updates_per_second=self._updates / seconds,
            policy_lag_mean=_mean(self._lags),
            policy_lag_max=max(self._lags, default=0),
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
            evaluation_return=self._evaluation_return,
            **dict(zip(RolloutStatistics._fields, statistics, strict=True)),
        )

    def next_interval(self, row: Progress) -> str | None:
        """Start a new interval after `row`. Returns a warning if the rows so far look like a dead network."""
        self._start_interval(row.elapsed_seconds)
        suspicious = (
            row.dead_units is not None
            and row.explained_variance is not None
            and row.dead_units > _DEAD_SHARE
            and abs(row.explained_variance) < _UNEXPLAINED
        )
        self._suspicious_rows = self._suspicious_rows + 1 if suspicious else 0
        if self._suspicious_rows != _PATIENCE_ROWS:
            return None
        return (
            f"{row.dead_units:.0%} of the hidden units are dead and the value explains nothing "
            f"(explained variance {row.explained_variance:.2f}): the first updates were probably too large; "
            f"try --optimizer.bias-correction, a larger --optimizer.epsilon or a lower --optimizer.learning-rate"
        )

    def _start_interval(self, elapsed_seconds: float) -> None:
        self._started = elapsed_seconds
        self._agent_steps = self._gradients = self._updates = 0
        self._learner_seconds = 0.0
        self._stages = np.zeros(len(StageSeconds._fields))
        self._lags: Counter[int] = Counter()
        self._norms: list[float] = []
        self._statistics: list[RolloutStatistics] = []


class MetricsWriter:
    """Writes rows to `metrics.jsonl` and TensorBoard events, by global frames.

    Args:
        folder: of the run. Rows are appended, so that a resumed run continues its files.
    """

    def __init__(self, folder: Path) -> None:
        self._file: IO[bytes] = (folder / "metrics.jsonl").open("ab")
        self._events = tf.summary.create_file_writer(str(folder))

    def write(self, row: Progress) -> None:
        """Append one row to both."""
        values = asdict(row)
        self._file.write(msgspec.json.encode(values) + b"\n")
        self._file.flush()
        with self._events.as_default(step=row.frames):
            for tag, value in _tensorboard_scalars(values):
                tf.summary.scalar(tag, value)
        self._events.flush()

    def close(self) -> None:
        """Flush and close both."""
        self._file.close()
        self._events.close()


_TENSORBOARD_GROUPS = {
    "mean_return_100": "return/training_mean_100",
    "evaluation_return": "return/evaluation_mean",
    "episodes": "return/episodes",
    "frames_per_second": "speed/frames_per_second",
    "agent_steps_per_second": "speed/agent_steps_per_second",
    "updates_per_second": "speed/updates_per_second",
    "learner_milliseconds": "speed/learner_milliseconds_per_gradient",
    "policy_lag_mean": "asynchrony/policy_lag_mean",
    "policy_lag_max": "asynchrony/policy_lag_max",
    "actors_alive": "asynchrony/actors_alive",
    "actor_restarts": "asynchrony/actor_restarts",
    "learning_rate": "learning/learning_rate",
    "gradient_norm": "learning/gradient_norm",
    "policy_loss": "learning/policy_loss",
    "value_loss": "learning/value_loss",
    "entropy": "learning/entropy",
    "explained_variance": "learning/explained_variance",
    "dead_units": "learning/dead_units",
}


def _tensorboard_scalars(values: dict[str, Any]) -> list[tuple[str, float]]:
    scalars = [(tag, values[name]) for name, tag in _TENSORBOARD_GROUPS.items() if values[name] is not None]
    scalars += [(f"stage_microseconds/{name}", value) for name, value in values["stage_microseconds"].items()]
    scalars += [(f"agent_steps_dropped/{name}", value) for name, value in values["agent_steps_dropped"].items()]
    return scalars


def _mean(counts: Counter[int]) -> float:
    return sum(value * count for value, count in counts.items()) / max(counts.total(), 1)


def lag_summary(counts: Counter[int]) -> tuple[float, int]:
    """Mean and maximum of a count of policy lags."""
    return _mean(counts), max(counts, default=0)
