"""A learner of five parameters, the reports that it takes, and its checkpoints."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from learner.checkpoint import Checkpoints
from learner.learner import Learner
from shared.config import LearnerConfig, MethodConfig, RunConfig
from shared.layout import ParameterLayout
from shared.types import EpisodeStats, Float32Array, GradientReport, StageSeconds

LAYOUT = ParameterLayout(("w",), ((5,),))
NOTHING = np.empty(0, np.float32)


def make_learner(config: RunConfig, **learner: object) -> Learner:
    return Learner(replace(config, learner=LearnerConfig(**learner)), LAYOUT, np.ones(5, np.float32))


def report(sequence: int = 1, version: int = 0, actor_id: int = 0, returns: tuple = (), **changes) -> GradientReport:
    changes = {"gradient": np.full(5, 0.5, np.float32), "layout_fingerprint": LAYOUT.fingerprint} | changes
    return gradient_report(actor_id, sequence, version, returns=returns, **changes)


def q_learner(config: RunConfig, **learner: object) -> Learner:
    method = MethodConfig(name="q_learning", target_interval_agent_steps=25)
    return make_learner(replace(config, method=method), **learner)


def restored(learner: Learner, other: Learner, folder: Path) -> Learner:
    """The other one, with all that a checkpoint has of the first."""
    checkpoints(learner, folder).save(learner.version)
    checkpoints(other, folder).restore()
    return other


def checkpoints(learner: Learner, folder: Path) -> Checkpoints:
    return Checkpoints(folder, 2, learner.variables(), learner.state, learner.restore_state)


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
    count = len(returns)
    episodes = EpisodeStats(np.array(returns, np.float64), np.ones(count, np.int64), {}, np.zeros(count, np.int64))
    report = GradientReport(
        *(actor_id, sequence, version, "layout", gradient, agent_steps, agent_steps, episodes),
        StageSeconds(0, 0, 0, 0, 0),
        {},
    )
    return report._replace(**changes)
