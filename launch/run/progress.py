"""The state of a run at one moment, as the session tells it to the driver: plain values that can be sent."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Progress:
    """The state of a run at one moment. Rates and means are over the last logging interval.

    Returns are unclipped. `stage_microseconds` is what one agent step costs an actor in each stage, and
    `learner_milliseconds` what one gradient costs the learner, dropped ones included, as in `gradients_per_second`.
    `policy_lag_counts` says how many accepted gradients had which lag, `gradients_per_update` is K of the update in
    progress, and `staleness_weight` is what a gradient counted for, on average. `passes` is in how many gradients an
    agent step was, on average. `evaluations` are points of those that ended in the interval, and `evaluation_return`
    is the mean of the last so far. `statistics` are the method's own, and `info` the environment's, over the episodes
    that ended.
    """

    frames: int = 0
    agent_steps: int = 0
    updates: int = 0
    episodes: int = 0
    elapsed_seconds: float = 0.0
    mean_return_100: float | None = None
    frames_per_second: float = 0.0
    agent_steps_per_second: float = 0.0
    updates_per_second: float = 0.0
    gradients_per_second: float = 0.0
    policy_lag_mean: float = 0.0
    policy_lag_max: int = 0
    policy_lag_counts: dict[int, int] = field(default_factory=dict)
    gradients_per_update: int = 1
    staleness_weight: float | None = None
    agent_steps_applied: int = 0
    agent_steps_dropped: dict[str, int] = field(default_factory=dict)
    actors_alive: int = 0
    actor_restarts: int = 0
    stage_microseconds: dict[str, float] = field(default_factory=dict)
    learner_milliseconds: float = 0.0
    learning_rate: float = 0.0
    gradient_norm: float | None = None
    passes: float = 0.0
    evaluation_return: float | None = None
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    statistics: dict[str, float] = field(default_factory=dict)
    info: dict[str, float] = field(default_factory=dict)


class View(NamedTuple):
    """The progress, and the messages since the last view."""

    progress: Progress
    messages: list[str]


def lag_mean(counts: Counter[int]) -> float:
    """Mean policy lag in updates, where `counts` says how many gradients had which lag; 0 if there are none."""
    return sum(value * count for value, count in counts.items()) / max(counts.total(), 1)


def lag_summary(counts: Counter[int]) -> tuple[float, int, int]:
    """Mean, 95th percentile and maximum of the policy lags in `counts`, in updates; 0 if there are none."""
    needed, seen = 0.95 * counts.total(), 0
    for lag in sorted(counts):
        seen += counts[lag]
        if seen >= needed:
            return lag_mean(counts), lag, max(counts)
    return 0.0, 0, 0
