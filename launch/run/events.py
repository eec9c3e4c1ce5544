"""The typed events of a training run, which `launch.train` passes to its listener. Other processes can receive them.

A run is Started, then sends Progressed about once a second and the other events as they occur, and ends with Stopped.
Preparing and Messages may come before Started.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from shared.config import RunConfig


@dataclass(frozen=True)
class Progress:
    """The state of a run, by the names of the columns of metrics.jsonl, which docs/runs.md explains.

    Means are over the last logging interval, rates see `Metrics`. A number without data is None.

    Attributes:
        evaluations: ended in the interval; see `Evaluations.receive`.
        statistics: of the method.
        info: of the environment, over the episodes that ended.
        own: of the caller, by `Training.record`.
    """

    frames: int = 0
    agent_steps: int = 0
    updates: int = 0
    episodes: int = 0
    elapsed_seconds: float = 0.0
    mean_return_100: float | None = None
    interval_episodes: int = 0
    interval_mean_return: float | None = None
    frames_per_second: float = 0.0
    agent_steps_per_second: float = 0.0
    updates_per_second: float = 0.0
    gradients_per_second: float = 0.0
    policy_lag_mean: float = 0.0
    policy_lag_max: int = 0
    policy_lag_counts: dict[int, int] = field(default_factory=dict)
    gradients_per_update: int = 1
    agent_steps_applied: int = 0
    agent_steps_dropped: dict[str, int] = field(default_factory=dict)
    agent_steps_in_flight: int = 0
    actors_alive: int = 0
    actor_restarts: int = 0
    stage_microseconds: dict[str, float] = field(default_factory=dict)
    learner_milliseconds: float = 0.0
    learning_rate: float = 0.0
    gradient_norm: float | None = None
    passes: float | None = None
    evaluation_return: float | None = None
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    statistics: dict[str, float] = field(default_factory=dict)
    info: dict[str, float] = field(default_factory=dict)
    own: dict[str, float] = field(default_factory=dict)


class Started(msgspec.Struct, frozen=True):
    """The run has its folder, and its actors are being started. From now on it can be stopped and saved."""

    folder: str
    config: RunConfig
    actors: int


class Message(msgspec.Struct, frozen=True):
    """One line for the user. log.txt has the lines of the training loop, too."""

    text: str


class Preparing(msgspec.Struct, frozen=True):
    """The work that the run has begun, up to the first report of an actor. Replaces the one before it."""

    text: str


class Progressed(msgspec.Struct, frozen=True):
    """The present state of the run. It is not written to a file."""

    progress: Progress


class Episodes(msgspec.Struct, frozen=True):
    """The episodes that ended in a logging interval, in the order of arrival, before the row of the interval.

    Global frames at the end of the interval, unclipped returns, and lengths in agent steps.
    """

    frames: int
    returns: list[float]
    lengths: list[int]


class Row(msgspec.Struct, frozen=True):
    """The numbers of a logging interval, by the names and with the types that metrics.jsonl has."""

    values: dict[str, Any]


class Evaluated(msgspec.Struct, frozen=True):
    """An evaluation has ended. `point` is its entry in the row of metrics.jsonl that will contain it."""

    point: dict[str, Any]


class Saved(msgspec.Struct, frozen=True):
    """A checkpoint of the weights after `update` updates was written."""

    update: int


class Stopped(msgspec.Struct, frozen=True):
    """The run has ended and is saved. `summary` is the content of summary.json, with the run's `status`."""

    folder: str
    summary: dict[str, Any]


SessionEvent = Message | Preparing | Episodes | Row | Evaluated | Saved
"""Events that the training loop itself sends."""
Event = Started | Message | Preparing | Progressed | Episodes | Row | Evaluated | Saved | Stopped


class View(NamedTuple):
    """The present progress of a training session, and its events since the last view, in their order."""

    progress: Progress
    events: list[SessionEvent]
