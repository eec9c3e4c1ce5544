"""Reports of actors."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shared.types import EpisodeStats, Float32Array, GradientReport, StageSeconds

NOTHING = np.empty(0, np.float32)


def gradient_report(
    actor_id: int = 0,
    sequence: int = 1,
    version: int = 0,
    gradient: Float32Array = NOTHING,
    agent_steps: int = 10,
    returns: Sequence[float] = (),
    **changes: Any,
) -> GradientReport:
    """A report whose samples are its agent steps. Episodes have one step, `changes` are of further fields."""
    episodes = EpisodeStats(np.array(returns, np.float64), np.ones(len(returns), np.int64))
    report = GradientReport(
        *(actor_id, sequence, version, "layout", gradient, agent_steps, agent_steps, episodes),
        StageSeconds(0, 0, 0, 0, 0),
        {},
    )
    return report._replace(**changes)
