"""What is accepted, and what is dropped and why."""

from typing import Literal

import numpy as np

from shared.blocks import block_count
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
        if report.layout_fingerprint != self._layout.fingerprint or not self._fits(report):
            return "wrong_layout"
        lag = version - report.version
        if lag < 0:
            return "unknown_version"
        if self._max_policy_lag is not None and lag > self._max_policy_lag:
            return "too_old"
        return None

    def _fits(self, report: GradientReport) -> bool:
        if report.pieces is not None:
            return report.pieces.block_norms.shape == (block_count(self._layout.size),)
        return report.gradient.shape == (self._layout.size,) and report.gradient.dtype == np.float32
