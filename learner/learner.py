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
from shared.methods.method import method_class
from shared.moments import Moments
from shared.networks import RUNNING_MEAN, RUNNING_VARIANCE
from shared.schedules import crossed_multiple, exponential_decay, linear_anneal
from shared.types import AggregatedReport, Float32Array, GradientReport, WeightSnapshot

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
    """Holds all training state: parameters, optimizer's slots, accumulator, target weights, version, counters.

    The target network of the Q methods is a copy of the parameters, made when the global agent steps cross a multiple
    of `method.target_interval_agent_steps`. Running moments of observations, where the network scales by them, are
    merged from the accepted reports and written into the parameters of each new snapshot.

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
        self._restored_snapshot_frames: int | None = None
        self._target: WeightSnapshot | None = None
        self._target_parameters: tf.Variable | None = None
        if method_class(config.method.name).uses_target_network:
            self._target_parameters = tf.Variable(parameters, trainable=False, name="target_parameters")
        self.target_updates = 0
        self._moments: Moments | None = None
        if RUNNING_MEAN in layout.names:
            self._moments = Moments.zero(layout.sizes[layout.names.index(RUNNING_MEAN)])

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
        """η at the current global frames, or applied updates."""
        return self._learning_rate_at(self.frames)

    def _learning_rate_at(self, frames: int) -> float:
        optimizer = self._config.optimizer
        if optimizer.schedule == "linear":
            return linear_anneal(optimizer.learning_rate, 0.0, frames, self._config.annealing_frames)
        if optimizer.schedule == "exponential":
            return exponential_decay(
                optimizer.learning_rate,
                self.version,
                rate=optimizer.exponential_rate,
                decay_updates=optimizer.exponential_updates,
                staircase=optimizer.exponential_staircase,
            )
        return optimizer.learning_rate

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
        sampled = self.ledger.sampled
        dropped = self._admission.refusal(report, self.version)
        updated, norm = False, float("nan")
        if dropped is None:
            finite, updated, norm = self._accumulator.push(report.gradient, rate)
            if not finite:
                dropped = "non_finite"
        self._account(report, dropped, lag)
        self._close(sampled, updated=updated)
        return Outcome(report, dropped, lag, updated, norm, rate, time.perf_counter() - started)

    def submit_sum(self, aggregated: AggregatedReport) -> list[Outcome]:
        """Admit the reports of a node, whose gradients were added there; an outcome for each.

        Each is judged by itself. A sum cannot be taken apart: if one that is in it is refused, all are, for its reason.
        """
        started = time.perf_counter()
        sampled = self.ledger.sampled
        # The update comes with the last report: the schedule, and the target network, have seen those before it.
        before = sampled + sum(report.agent_steps for report in aggregated.reports[:-1])
        rate = self._learning_rate_at(before * self._config.frames_per_agent_step)
        self._refresh_target(sampled, before)
        reasons: list[DropReason | None] = []
        for report, finite in zip(aggregated.reports, aggregated.finite, strict=True):
            refusal = self._admission.refusal(report._replace(gradient=aggregated.gradient), self.version)
            reasons.append(refusal if finite or refusal is not None else "non_finite")
        refused = next((r for r, finite in zip(reasons, aggregated.finite, strict=True) if finite and r), None)
        count = sum(reason is None for reason in reasons)
        updated, norm = False, float("nan")
        if refused is None and count:
            finite, updated, norm = self._accumulator.push(aggregated.gradient, rate, count)
            refused = None if finite else "non_finite"
        if refused is not None:
            reasons = [reason or refused for reason in reasons]
        lags = [self.version - report.version for report in aggregated.reports]
        for report, reason, lag in zip(aggregated.reports, reasons, lags, strict=True):
            self._account(report, reason, lag)
        self._close(before, updated=updated)
        seconds = (time.perf_counter() - started) / len(reasons)
        last = len(reasons) - 1
        return [
            Outcome(report, reason, lag, updated and i == last, norm, rate, seconds)
            for i, (report, reason, lag) in enumerate(zip(aggregated.reports, reasons, lags, strict=True))
        ]

    def _account(self, report: GradientReport, dropped: DropReason | None, lag: int) -> None:
        """Count a report's agent steps, episodes and lag."""
        if dropped is None:
            self.ledger.hold(report.agent_steps)
            self.lag_counts[lag] += 1
            if self._moments is not None and report.observation_moments is not None:
                self._moments = self._moments.merge(report.observation_moments)
        else:
            self.ledger.drop(report.agent_steps, dropped)
        if dropped != "duplicate":
            self.recent_returns.extend(report.episodes.returns.tolist())
            self.episodes += len(report.episodes.returns)

    def _close(self, sampled: int, *, updated: bool) -> None:
        """Account for an update, if there was one, and refresh the target network if its time has come."""
        if updated:
            self.ledger.apply()
            self._snapshot = self._restored_snapshot_frames = None
        self.ledger.check()
        self._refresh_target(sampled, self.ledger.sampled)

    def _refresh_target(self, before: int, now: int) -> None:
        """Copy the weights into the target network if the agent steps have crossed a multiple of its interval."""
        if self._target_parameters is not None and crossed_multiple(
            before, now, self._config.method.target_interval_agent_steps
        ):
            self._target_parameters.assign(self._accumulator.parameters)
            self.target_updates += 1
            self._target = None

    def snapshot(self) -> WeightSnapshot:
        """The current weights. The same object until the next update."""
        if self._snapshot is None:
            parameters = self._accumulator.parameters
            if self._restored_snapshot_frames is not None:
                # As it was published before: its time, and the moments in it, are those of then.
                self._snapshot = WeightSnapshot(self.version, _read_only(parameters), self._restored_snapshot_frames)
                self._restored_snapshot_frames = None
                return self._snapshot
            if self._moments is not None:
                for name, values in ((RUNNING_MEAN, self._moments.mean), (RUNNING_VARIANCE, self._moments.variance)):
                    parameters[self._layout.range_of(name)].assign(values.astype(np.float32))
            self._snapshot = WeightSnapshot(self.version, _read_only(parameters), self.frames)
        return self._snapshot

    def target_snapshot(self) -> WeightSnapshot | None:
        """The weights of the target network, numbered by its updates; None if the method has none.

        The same object until the next update of the target network.
        """
        if self._target is None and self._target_parameters is not None:
            self._target = WeightSnapshot(self.target_updates, _read_only(self._target_parameters), self.frames)
        return self._target

    def is_finite(self) -> bool:
        """Whether every parameter is a finite number."""
        return bool(np.isfinite(self.snapshot().parameters).all())

    def fit_unfinished_update(self) -> int:
        """After a restore: drop the gradients that wait for a K-th if K is smaller now and they are as many already.

        Their sum was never applied, and is not the sum of the new K. Returns how many were dropped.
        """
        gradients = self.ledger.gradients_pending
        if gradients < self._config.learner.gradients_per_update:
            return 0
        self._accumulator.discard()
        self.ledger.discard_pending()
        self.ledger.check()
        return gradients

    def variables(self) -> dict[str, tf.Variable]:
        """The variables of a checkpoint, by name."""
        variables = {
            "parameters": self._accumulator.parameters,
            "accumulated": self._accumulator.accumulated,
            "pending": self._accumulator.pending,
            **self._accumulator.optimizer.variables,
        }
        if self._target_parameters is not None:
            variables["target_parameters"] = self._target_parameters
        return variables

    def state(self) -> dict[str, Any]:
        """Everything else of a checkpoint, as plain values."""
        return {
            "layout_fingerprint": self._layout.fingerprint,
            "ledger": self.ledger.to_json(),
            "lag_counts": sorted(self.lag_counts.items()),
            "last_sequences": sorted(self._admission.last_sequences.items()),
            "recent_returns": list(self.recent_returns),
            "episodes": self.episodes,
            "target_updates": self.target_updates,
            "snapshot_frames": None if self._snapshot is None else self._snapshot.frames,
            "observation_moments": None if self._moments is None else self._moments.to_json(),
        }

    def restore_state(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self.ledger = Ledger.from_json(state["ledger"])
        self.lag_counts = Counter(dict(state["lag_counts"]))
        self._admission.last_sequences = dict(state["last_sequences"])
        self.recent_returns = deque(state["recent_returns"], maxlen=_RETURN_WINDOW)
        self.episodes = state["episodes"]
        self.target_updates = state["target_updates"]
        if self._moments is not None:
            self._moments = Moments.from_json(state["observation_moments"])
        self._snapshot = self._target = None
        self._restored_snapshot_frames = state["snapshot_frames"]

    @property
    def next_actor_id(self) -> int:
        """An id that no actor of this run has reported under."""
        return max(self._admission.last_sequences, default=-1) + 1


def _read_only(variable: tf.Variable) -> Float32Array:
    values = variable.numpy()
    values.flags.writeable = False
    return values
