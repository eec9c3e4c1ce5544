"""The learner: admits gradient reports, updates the weights, and keeps the account."""

import time
from collections import Counter, deque
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from learner.accumulator import GradientAccumulator
from learner.admission import Admission, DropReason, Ledger
from shared.config import RunConfig
from shared.layout import ParameterLayout
from shared.schedules import linear_anneal
from shared.types import Float32Array, GradientReport, WeightSnapshot

_RETURN_WINDOW = 100


class Outcome(NamedTuple):
    """What `Learner.submit` did with a report.

    `dropped` names the reason if it was refused. `policy_lag` counts the updates between the weights it was
    computed with and those it met. `updated` is True when it completed an update, and `gradient_norm` is then the
    global norm before clipping.
    """

    report: GradientReport
    dropped: DropReason | None
    policy_lag: int
    updated: bool
    gradient_norm: float
    learning_rate: float
    seconds: float


class Learner:
    """Holds all training state: parameters, mean square, accumulator, version, counters.

    Args:
        config: of the run.
        layout: of the parameters.
        parameters: initial float32 [P].
    """

    def __init__(self, config: RunConfig, layout: ParameterLayout, parameters: Float32Array) -> None:
        self._config = config
        self._layout = layout
        self._accumulator = GradientAccumulator(parameters, config.learner, config.optimizer)
        self._admission = Admission(layout, config.learner.max_policy_lag)
        self.ledger = Ledger()
        self.lag_counts: Counter[int] = Counter()
        self.recent_returns: deque[float] = deque(maxlen=_RETURN_WINDOW)
        self.episodes = 0
        self._snapshot: WeightSnapshot | None = None

    @property
    def version(self) -> int:
        """Number of updates applied, and so of the current weights."""
        return self.ledger.updates

    @property
    def frames(self) -> int:
        """Global frames: agent steps sampled x frame skip."""
        return self.ledger.sampled * self._config.frames_per_agent_step

    @property
    def learning_rate(self) -> float:
        """η at the current global frames."""
        optimizer = self._config.optimizer
        if optimizer.schedule == "constant":
            return optimizer.learning_rate
        return linear_anneal(optimizer.learning_rate, self.frames, self._config.annealing_frames)

    @property
    def mean_return(self) -> float | None:
        """Mean unclipped return of the last 100 training episodes; None before the first has ended."""
        return float(np.mean(self.recent_returns)) if self.recent_returns else None

    def submit(self, report: GradientReport) -> Outcome:
        """Admit a report, or drop it for a reason; apply an update if it is the K-th since the last.

        The agent steps, frames and episodes of a dropped report were still played, and count as such.
        """
        started = time.perf_counter()
        lag, rate = self.version - report.version, self.learning_rate
        dropped = self._admission.refusal(report, self.version)
        updated, norm = False, float("nan")
        if dropped is None:
            finite, updated, norm = self._accumulator.push(report.gradient, rate)
            if not finite:
                dropped = "non_finite"
        if dropped is None:
            self.ledger.hold(report.agent_steps)
            self.lag_counts[lag] += 1
        else:
            self.ledger.drop(report.agent_steps, dropped)
        if updated:
            self.ledger.apply()
            self._snapshot = None
        self.ledger.check()
        if dropped != "duplicate":
            self.recent_returns.extend(report.episodes.returns.tolist())
            self.episodes += len(report.episodes.returns)
        return Outcome(report, dropped, lag, updated, norm, rate, time.perf_counter() - started)

    def snapshot(self) -> WeightSnapshot:
        """The current weights. The same object until the next update."""
        if self._snapshot is None:
            parameters = self._accumulator.parameters.numpy()
            parameters.flags.writeable = False
            self._snapshot = WeightSnapshot(self.version, parameters)
        return self._snapshot

    def finish(self) -> None:
        """End the run: gradients that wait for a K-th that will not come are dropped, and counted as that."""
        self._accumulator.discard()
        self.ledger.discard_pending()
        self.ledger.check()

    def variables(self) -> dict[str, tf.Variable]:
        """The variables of a checkpoint, by name."""
        optimizer = self._accumulator.optimizer
        return {
            "parameters": self._accumulator.parameters,
            "accumulated": self._accumulator.accumulated,
            "pending": self._accumulator.pending,
            "mean_square": optimizer.mean_square,
            "momentum": optimizer.momentum,
            "decay_power": optimizer.decay_power,
        }

    def state(self) -> dict[str, Any]:
        """Everything else of a checkpoint, as plain values."""
        return {
            "layout_fingerprint": self._layout.fingerprint,
            "ledger": self.ledger.to_json(),
            "lag_counts": sorted(self.lag_counts.items()),
            "last_sequences": sorted(self._admission.last_sequences.items()),
            "recent_returns": list(self.recent_returns),
            "episodes": self.episodes,
        }

    def restore_state(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self.ledger = Ledger.from_json(state["ledger"])
        self.lag_counts = Counter(dict(state["lag_counts"]))
        self._admission.last_sequences = dict(state["last_sequences"])
        self.recent_returns = deque(state["recent_returns"], maxlen=_RETURN_WINDOW)
        self.episodes = state["episodes"]
        self._snapshot = None

    @property
    def next_actor_id(self) -> int:
        """An id that no actor of this run has reported under."""
        return max(self._admission.last_sequences, default=-1) + 1
