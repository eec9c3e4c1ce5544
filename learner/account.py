"""The account of a run: the fate of every agent step, policy lags, and the returns of episodes."""

import math
from collections import Counter, deque
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from shared.config import RunConfig
from shared.schedules import scheduled_value
from shared.types import GradientReport

# Episodes of the running mean return.
RETURN_WINDOW = 100

DropReason = Literal["too_old", "non_finite", "wrong_layout", "duplicate", "unknown_version", "unfinished_update"]


@dataclass
class Ledger:
    """The fate of every agent step. At every moment: sampled = applied + pending + dropped, summed over reasons."""

    sampled: int = 0
    applied: int = 0
    pending: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    gradients_applied: int = 0
    gradients_pending: int = 0
    # The gradients of later epochs have no new agent steps: here they are counted, too.
    gradients_dropped: Counter[str] = field(default_factory=Counter)
    updates: int = 0

    def drop(self, agent_steps: int, reason: DropReason) -> None:
        """Enter a refused report."""
        self.sampled += agent_steps
        self.dropped[reason] += agent_steps
        self.gradients_dropped[reason] += 1

    def hold(self, agent_steps: int) -> None:
        """Enter a gradient that was added to the accumulator."""
        self.sampled += agent_steps
        self.pending += agent_steps
        self.gradients_pending += 1

    def apply(self) -> None:
        self.applied += self.pending
        self.gradients_applied += self.gradients_pending
        self.pending = self.gradients_pending = 0
        self.updates += 1

    def closed(self) -> "Ledger":
        """The ledger of a run that ends now: pending gradients are dropped as `unfinished_update`."""
        ended = deepcopy(self)
        if self.gradients_pending:
            ended.discard_pending()
        return ended

    def discard_pending(self, reason: DropReason = "unfinished_update") -> None:
        self.dropped[reason] += self.pending
        self.gradients_dropped[reason] += self.gradients_pending
        self.pending = self.gradients_pending = 0

    def check(self) -> None:
        assert self.sampled == self.applied + self.pending + sum(self.dropped.values()), self

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "dropped": dict(self.dropped), "gradients_dropped": dict(self.gradients_dropped)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Ledger":
        counters = {name: Counter(values[name]) for name in ("dropped", "gradients_dropped")}
        return cls(**{**values, **counters})


class Account:
    """Counters of a run, and the learning rate that follows from them. It holds no tensor.

    Attributes:
        recent_returns: finite returns of the last training episodes.
        non_finite_returns: number of episodes with another return. They are in `episodes`, and in no mean.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self.ledger = Ledger()
        self.lag_counts: Counter[int] = Counter()
        self.recent_returns: deque[float] = deque(maxlen=RETURN_WINDOW)
        self.episodes = self.non_finite_returns = 0

    @property
    def frames(self) -> int:
        """Global frames: sampled agent steps x the frame skip, which a resume cannot change."""
        return self.frames_of(self.ledger.sampled)

    @property
    def learning_rate(self) -> float:
        """η at the current global frames."""
        return self.learning_rate_at(self.frames)

    @property
    def mean_return(self) -> float | None:
        """Mean unclipped return of the last 100 training episodes with a finite one.

        None before the first, and where their sum is too large for a float64.
        """
        mean = float(np.mean(self.recent_returns)) if self.recent_returns else math.nan
        return mean if math.isfinite(mean) else None

    def frames_of(self, agent_steps: int) -> int:
        return agent_steps * self._config.frames_per_agent_step

    def learning_rate_at(self, frames: int) -> float:
        optimizer = self._config.optimizer
        return scheduled_value(optimizer.learning_rate, optimizer.schedule, frames, self._config.annealing_frames)

    def record(self, report: GradientReport, dropped: DropReason | None, policy_lag: int) -> None:
        """Enter a report: its agent steps, its episodes, and its policy lag if it was accepted."""
        if dropped is None:
            self.ledger.hold(report.agent_steps)
            self.lag_counts[policy_lag] += 1
        else:
            self.ledger.drop(report.agent_steps, dropped)
        # A dropped report was still played. A duplicate was counted at its first arrival.
        if dropped != "duplicate":
            returns = report.episodes.returns
            finite = returns[np.isfinite(returns)]
            self.recent_returns.extend(finite.tolist())
            self.episodes += len(returns)
            self.non_finite_returns += len(returns) - len(finite)

    def state(self) -> dict[str, Any]:
        return {
            "ledger": self.ledger.to_json(),
            "lag_counts": sorted(self.lag_counts.items()),
            "recent_returns": list(self.recent_returns),
            "episodes": self.episodes,
            "non_finite_returns": self.non_finite_returns,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.ledger = Ledger.from_json(state["ledger"])
        self.lag_counts = Counter(dict(state["lag_counts"]))
        self.recent_returns = deque(state["recent_returns"], maxlen=RETURN_WINDOW)
        self.episodes, self.non_finite_returns = state["episodes"], state["non_finite_returns"]
