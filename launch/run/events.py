"""The typed events of a training run, which `launch.train` passes to its listener. Other processes can receive them.

A run is Started, then sends Progressed about once a second and the other events as they occur, and ends with Stopped.
Preparing and Messages may come before Started.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, get_origin, get_type_hints

import msgspec

from shared.config import RunConfig


class Column(NamedTuple):
    """Where a column is shown: in a group of TensorBoard, and in the live table, as a text with a label."""

    group: str = ""
    label: str = ""
    text: str = "{}"


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
    episodes: Annotated[int, Column("return")] = 0
    elapsed_seconds: float = 0.0
    mean_return_100: Annotated[float | None, Column("return")] = None
    interval_episodes: int = 0
    interval_mean_return: Annotated[float | None, Column("return")] = None
    frames_per_second: Annotated[float, Column("speed")] = 0.0
    agent_steps_per_second: Annotated[float, Column("speed")] = 0.0
    updates_per_second: Annotated[float, Column("speed")] = 0.0
    gradients_per_second: Annotated[float, Column("speed")] = 0.0
    policy_lag_mean: Annotated[float, Column("asynchrony")] = 0.0
    policy_lag_max: Annotated[int, Column("asynchrony")] = 0
    policy_lag_counts: dict[int, int] = field(default_factory=dict)
    gradients_per_update: Annotated[int, Column("asynchrony")] = 1
    agent_steps_applied: int = 0
    agent_steps_dropped: Annotated[dict[str, int], Column("agent_steps_dropped")] = field(default_factory=dict)
    agent_steps_in_flight: Annotated[int, Column("asynchrony")] = 0
    actors_alive: Annotated[int, Column("processes")] = 0
    actor_restarts: Annotated[int, Column("processes")] = 0
    stage_microseconds: Annotated[dict[str, float], Column("stage_microseconds")] = field(default_factory=dict)
    learner_milliseconds: Annotated[float, Column("processes", "learner", "{:.2f} ms")] = 0.0
    learning_rate: Annotated[float, Column("learning", "learning rate", "{:.2e}")] = 0.0
    gradient_norm: Annotated[float | None, Column("learning", "gradient norm", "{:.3f}")] = None
    passes: Annotated[float | None, Column("learning")] = None
    evaluation_return: Annotated[float | None, Column(label="evaluation return", text="{:.2f}")] = None
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    statistics: Annotated[dict[str, float], Column("learning")] = field(default_factory=dict)
    info: Annotated[dict[str, float], Column("info")] = field(default_factory=dict)
    own: Annotated[dict[str, float], Column("own")] = field(default_factory=dict)


COLUMNS: dict[str, Column] = {
    name: kind.__metadata__[0]
    for name, kind in get_type_hints(Progress, include_extras=True).items()
    if get_origin(kind) is Annotated
}


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
    """The present progress of a training session, and its events since the last view, in their order.

    `summary`: once the run has ended, and all of its events were in earlier views.
    """

    progress: Progress
    events: list[SessionEvent]
    summary: dict[str, Any] | None = None
