"""From events to the numbers that are shown and logged."""

import errno
import os
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tensorflow as tf

from launch.progress import Progress
from learner.learner import Learner, Outcome
from shared.types import StageSeconds

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
            self._statistics.update(report.statistics)
            self._accepted += 1

    def add_evaluation(self, mean_return: float) -> None:
        """Take in the mean return of an evaluation."""
        self._evaluation_return = mean_return

    def progress(self, elapsed_seconds: float, actors_alive: int, actor_restarts: int) -> Progress:
        """The state now. Starts no new interval."""
        learner, ledger = self._learner, self._learner.ledger
        seconds = max(elapsed_seconds - self._started, 1e-9)
        agent_steps = max(self._agent_steps, 1)
        frames_per_step = learner.frames / ledger.sampled if ledger.sampled else 0.0
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
            statistics={name: total / self._accepted for name, total in self._statistics.items()},
        )

    def next_interval(self, row: Progress) -> str | None:
        """Start a new interval after `row`. Returns a warning if the rows so far look like a dead network."""
        self._start_interval(row.elapsed_seconds)
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

    def _start_interval(self, elapsed_seconds: float) -> None:
        self._started = elapsed_seconds
        self._agent_steps = self._gradients = self._updates = 0
        self._learner_seconds = 0.0
        self._stages = np.zeros(len(StageSeconds._fields))
        self._lags: Counter[int] = Counter()
        self._norms: list[float] = []
        self._statistics: Counter[str] = Counter()
        self._accepted = 0


class MetricsWriter:
    """Writes rows to `metrics.jsonl` and TensorBoard events, by global frames.

    Args:
        folder: of the run. Rows are appended, so that a resumed run continues its files.
    """

    def __init__(self, folder: Path) -> None:
        self._file = (folder / "metrics.jsonl").open("ab", buffering=0)
        self._events = tf.summary.create_file_writer(str(folder))

    def write(self, row: Progress) -> None:
        """Append one row to both.

        Raises:
            OSError: a file could not be written, on a full disk for example. No half of a row is left.
        """
        line = msgspec.json.encode(row_values(row)) + b"\n"
        end = self._file.seek(0, os.SEEK_END)
        if self._file.write(line) != len(line):
            self._file.truncate(end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        try:
            with self._events.as_default(step=row.frames):
                for tag, value in _tensorboard_scalars(row):
                    tf.summary.scalar(tag, value)
            self._events.flush()
        except tf.errors.OpError as error:
            raise OSError(errno.EIO, f"TensorBoard's events: {error.message}") from error

    def close(self) -> None:
        """Flush and close both, as far as that is possible."""
        self._file.close()
        with suppress(tf.errors.OpError):
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
}


def row_values(row: Progress) -> dict[str, Any]:
    """A row as it is written: the method's statistics stand beside the other numbers, by their names."""
    values = asdict(row)
    return values | values.pop("statistics")


def _tensorboard_scalars(row: Progress) -> list[tuple[str, float]]:
    values = asdict(row)
    scalars = [(tag, values[name]) for name, tag in _TENSORBOARD_GROUPS.items() if values[name] is not None]
    scalars += [(f"learning/{name}", value) for name, value in row.statistics.items()]
    scalars += [(f"stage_microseconds/{name}", value) for name, value in values["stage_microseconds"].items()]
    scalars += [(f"agent_steps_dropped/{name}", value) for name, value in values["agent_steps_dropped"].items()]
    return scalars


def _mean(counts: Counter[int]) -> float:
    return sum(value * count for value, count in counts.items()) / max(counts.total(), 1)


def lag_summary(counts: Counter[int]) -> tuple[float, int]:
    """Mean and maximum of a count of policy lags."""
    return _mean(counts), max(counts, default=0)
