"""The learner: admits gradient reports, and has the parameters updated and the account kept."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from learner.account import Account
from learner.admission import Admission, DropReason
from learner.lag_control import LagControl, rate_factor
from learner.parameters import Parameters
from learner.slices import Part
from shared.config import RunConfig
from shared.layout import ParameterLayout
from shared.types import AggregatedReport, Float32Array, GradientReport, WeightSnapshot

# Reports that have flown from weights of this run, as far as one can tell: those that are accepted among them.
_WITH_A_LAG = (None, "too_old", "non_finite")


class Outcome(NamedTuple):
    """What `Learner.submit` did with a report.

    `dropped` names the reason if it was refused. `policy_lag` counts the updates between the weights it was
    computed with and those it met. `updated` is True when it completed an update, and `gradient_norm` is then the
    global norm before clipping. `weight` is what the gradient counts for in its update, and 0 if it was refused.
    """

    report: GradientReport
    dropped: DropReason | None
    policy_lag: int
    updated: bool
    gradient_norm: float
    learning_rate: float
    seconds: float
    weight: float


class Learner:
    """Turns gradient reports into the next weights: admission, account and parameters together.

    Args:
        config: of the run.
        layout: of the parameters.
        parameters: initial float32 [P].
        parts: the slices of the parameters, where they are in other processes. None: all is in this one.
    """

    def __init__(
        self,
        config: RunConfig,
        layout: ParameterLayout,
        parameters: Float32Array,
        parts: Sequence[Part] | None = None,
    ) -> None:
        self._config = config
        self.layout = layout
        self._admission = Admission(layout, config.learner.max_policy_lag)
        self._parameters = Parameters(config, layout, parameters, parts)
        self.account = Account(config)
        self._control: LagControl | None = None
        if config.learner.target_policy_lag is not None:
            self._control = LagControl(config.learner.target_policy_lag, *config.learner.gradients_per_update_bounds)

    @property
    def version(self) -> int:
        """Number of updates applied, and so of the current weights."""
        return self.account.ledger.updates

    @property
    def gradients_per_update(self) -> int:
        """K of the update in progress."""
        if self._control is None:
            return self._config.learner.gradients_per_update
        return self._control.gradients_per_update

    @property
    def learning_rate(self) -> float:
        """η of the update in progress: that of the schedule at the current time, scaled for K."""
        return self.account.learning_rate * self._rate_factor

    @property
    def _rate_factor(self) -> float:
        if self._control is None:
            return 1.0
        learner = self._config.learner
        return rate_factor(self.gradients_per_update, learner.tuned_gradients_per_update, learner.learning_rate_scaling)

    @property
    def target_updates(self) -> int:
        """How often the weights were copied into the target network."""
        return self._parameters.target_updates

    @property
    def next_actor_id(self) -> int:
        """An id that no actor of this run has reported under."""
        return max(self._admission.last_sequences, default=-1) + 1

    def submit(self, report: GradientReport) -> Outcome:
        """Admit a report, or drop it for a reason; apply an update if it is the K-th since the last.

        The agent steps, frames and episodes of a dropped report were still played, and count as such. Those of a
        duplicate were counted before: its agent steps are entered once more, as dropped, and its episodes are not.
        """
        started = time.perf_counter()
        lag, rate, factor = self.version - report.version, self.account.learning_rate, self._rate_factor
        sampled = self.account.ledger.sampled
        dropped = self._admission.refusal(report, self.version)
        updated, norm, weight = False, float("nan"), 0.0
        if dropped is None:
            if self._parameters.keeps_versions:
                self.snapshot()
            finite, updated, norm, weight = self._parameters.push(
                report.pieces or report.gradient,
                rate,
                report.version,
                gradients_per_update=self.gradients_per_update,
                rate_factor=factor,
                lag=lag,
            )
            if not finite:
                dropped, weight = "non_finite", 0.0
        self._record(report, dropped, lag)
        self._close(sampled, updated=updated)
        return Outcome(report, dropped, lag, updated, norm, rate * factor, time.perf_counter() - started, weight)

    def submit_sum(self, aggregated: AggregatedReport) -> list[Outcome]:
        """Admit the reports of a node, whose gradients were added there; an outcome for each.

        Each is judged by itself. A sum cannot be taken apart: if one that is in it is refused, all are, for its reason.
        Nor can the gradients in it be weighed one by one, and K is fixed.
        """
        assert self._config.learner.staleness == "none", "the settings refuse to weigh gradients that are added"
        assert self._control is None, "the settings refuse a K that changes for gradients that are added"
        started = time.perf_counter()
        sampled = self.account.ledger.sampled
        # The update comes with the last report: the schedule, and the target network, have seen those before it.
        before = sampled + sum(report.agent_steps for report in aggregated.reports[:-1])
        rate = self.account.learning_rate_at(self.account.frames_of(before))
        self._parameters.refresh_target(sampled, before)
        reasons: list[DropReason | None] = []
        for report, finite in zip(aggregated.reports, aggregated.finite, strict=True):
            refusal = self._admission.refusal(report._replace(gradient=aggregated.gradient), self.version)
            reasons.append(refusal if finite or refusal is not None else "non_finite")
        refused = next((r for r, finite in zip(reasons, aggregated.finite, strict=True) if finite and r), None)
        count = sum(reason is None for reason in reasons)
        updated, norm = False, float("nan")
        if refused is None and count:
            finite, updated, norm, _ = self._parameters.push(aggregated.gradient, rate, self.version, count=count)
            refused = None if finite else "non_finite"
        if refused is not None:
            reasons = [reason or refused for reason in reasons]
        lags = [self.version - report.version for report in aggregated.reports]
        for report, reason, lag in zip(aggregated.reports, reasons, lags, strict=True):
            self._record(report, reason, lag)
        self._close(before, updated=updated)
        seconds = (time.perf_counter() - started) / len(reasons)
        last = len(reasons) - 1
        return [
            Outcome(report, reason, lag, updated and i == last, norm, rate, seconds, float(reason is None))
            for i, (report, reason, lag) in enumerate(zip(aggregated.reports, reasons, lags, strict=True))
        ]

    def _record(self, report: GradientReport, dropped: DropReason | None, lag: int) -> None:
        self.account.record(report, dropped, lag)
        if dropped is None:
            self._parameters.merge_moments(report.observation_moments, report.return_moments)
        if self._control is not None and dropped in _WITH_A_LAG:
            self._control.arrive(lag)

    def _close(self, sampled: int, *, updated: bool) -> None:
        """Account for an update, if there was one, and refresh the target network if its time has come."""
        if updated:
            self.account.ledger.apply()
            if self._control is not None:
                self._control.update()
        self.account.ledger.check()
        self._parameters.refresh_target(sampled, self.account.ledger.sampled)

    def snapshot(self) -> WeightSnapshot:
        """The current weights. The same object until the next update."""
        return self._parameters.snapshot(self.version, self.account.frames)

    def target_snapshot(self) -> WeightSnapshot | None:
        """The weights of the target network, numbered by its updates; None if the method has none.

        The same object until the next update of the target network.
        """
        return self._parameters.target_snapshot()

    def parameters(self) -> Float32Array:
        """The weights of the current snapshot, float32 [P], also where slices of them are in other processes."""
        snapshot = self.snapshot()
        return self._parameters.whole() if snapshot.pieces else snapshot.parameters

    def is_finite(self) -> bool:
        """Whether every parameter is a finite number."""
        return bool(np.isfinite(self.parameters()).all())

    def fit_unfinished_update(self) -> int:
        """After a restore: drop the gradients that wait for an update if K is smaller now, and they are K or more.

        Their sum was never applied, and is not the sum of the new K. Returns how many were dropped.
        """
        gradients = self.account.ledger.gradients_pending
        if gradients < self.gradients_per_update:
            return 0
        self._parameters.discard_pending()
        if self._control is not None:
            self._control.forget_pending()
        self.account.ledger.discard_pending()
        self.account.ledger.check()
        return gradients

    def take_over(self, tensors: Mapping[str, npt.NDArray[Any]], state: dict[str, Any]) -> None:
        """Go on with the weights of another run, from its checkpoint; see `Parameters.take_over`.

        The account stays this run's: gradients that wait for an update are dropped, and the returns of the last
        episodes, which say nothing of the new weights, are forgotten.
        """
        self._parameters.take_over(tensors, state)
        if self._control is not None:
            self._control.forget_pending()
        self.account.ledger.discard_pending()
        self.account.ledger.check()
        self.account.recent_returns.clear()

    def variables(self) -> dict[str, tf.Variable]:
        """The variables of a checkpoint, by name; see `gather` and `scatter`."""
        return self._parameters.variables()

    def gather(self) -> None:
        """Bring the variables of a checkpoint up to date, before one is saved."""
        self._parameters.gather()

    def scatter(self) -> None:
        """Go on from the variables of a checkpoint, after one was restored into them."""
        self._parameters.scatter()

    def state(self) -> dict[str, Any]:
        """Everything else of a checkpoint, as plain values."""
        return {
            "layout_fingerprint": self.layout.fingerprint,
            **self.account.state(),
            "last_sequences": sorted(self._admission.last_sequences.items()),
            **self._parameters.state(),
            **({} if self._control is None else {"lag_control": self._control.state()}),
        }

    def restore_state(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self.account.restore(state)
        self._admission.last_sequences = dict(state["last_sequences"])
        self._parameters.restore(state)
        # A run that had a K of its own before has nothing to restore.
        if self._control is not None and "lag_control" in state:
            self._control.restore(state["lag_control"])
