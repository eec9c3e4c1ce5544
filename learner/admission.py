"""What is accepted, what is dropped and why; and the account of every agent step."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from shared.layout import ParameterLayout
from shared.types import GradientReport

DropReason = Literal["too_old", "non_finite", "wrong_layout", "duplicate", "unknown_version", "unfinished_update"]


class Admission:
    """Decides whether a report may enter the accumulator. Non-finite gradients are found by the accumulator itself.

    Args:
        layout: of the learner's parameters.
        max_policy_lag: a report whose weights are older than this many updates is too old; None for no limit.
    """

    def __init__(self, layout: ParameterLayout, max_policy_lag: int | None) -> None:
        self._layout = layout
        self._max_policy_lag = max_policy_lag
        self.last_sequences: dict[int, int] = {}

    def refusal(self, report: GradientReport, version: int) -> DropReason | None:
        """Why the report is refused at the learner's `version`; None if it is accepted.

        A sequence number that is not above the last one seen from its actor is a duplicate: reports of one actor
        arrive in order, so a repeated one is a retry.
        """
        if report.sequence <= self.last_sequences.get(report.actor_id, 0):
            return "duplicate"
        self.last_sequences[report.actor_id] = report.sequence
        gradient = report.gradient
        if (
            report.layout_fingerprint != self._layout.fingerprint
            or gradient.shape != (self._layout.size,)
            or gradient.dtype != np.float32
        ):
            return "wrong_layout"
        lag = version - report.version
        if lag < 0:
            return "unknown_version"
        if self._max_policy_lag is not None and lag > self._max_policy_lag:
            return "too_old"
        return None


@dataclass
class Ledger:
    """Where every agent step went. At every moment: sampled = applied + pending + dropped, summed over reasons."""

    sampled: int = 0
    applied: int = 0
    pending: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    gradients_applied: int = 0
    gradients_pending: int = 0
    updates: int = 0

    def drop(self, agent_steps: int, reason: DropReason) -> None:
        """Account for a report that was refused."""
        self.sampled += agent_steps
        self.dropped[reason] += agent_steps

    def hold(self, agent_steps: int) -> None:
        """Account for a gradient that was added to the accumulator."""
        self.sampled += agent_steps
        self.pending += agent_steps
        self.gradients_pending += 1

    def apply(self) -> None:
        """Account for an update: all that was pending is applied."""
        self.applied += self.pending
        self.gradients_applied += self.gradients_pending
        self.pending = self.gradients_pending = 0
        self.updates += 1

    def dropped_if_it_ends(self) -> dict[str, int]:
        """Agent steps dropped by reason if the run ends now, where gradients that wait for a K-th never meet it."""
        waiting = Counter({"unfinished_update": self.pending} if self.pending else {})
        return dict(self.dropped + waiting)

    def discard_pending(self) -> None:
        """Account for gradients that no update will take in."""
        self.dropped = Counter(self.dropped_if_it_ends())
        self.pending = self.gradients_pending = 0

    def check(self) -> None:
        """Assert the invariant."""
        assert self.sampled == self.applied + self.pending + sum(self.dropped.values()), self

    def to_json(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {**vars(self), "dropped": dict(self.dropped)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Ledger":
        """The inverse of `to_json`."""
        return cls(**{**values, "dropped": Counter(values["dropped"])})
