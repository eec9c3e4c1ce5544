"""Where the time of a run went, and what held it back, from its rows of metrics."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from shared.config import RunConfig
from shared.types import StageSeconds

# What is worth a line.
_NOTABLE_WAIT = 0.10
_BUSY_LEARNER = 0.70
_NOTABLE_DROPS = 0.01

_STAGES = {
    "environment": "stepping the environments",
    "acting": "choosing actions",
    "gradient": "computing gradients",
    "synchronise": "taking new weights",
    "wait": "waiting for the learner",
}
_ADVICE = {
    "environment": "cheaper environments or more cores for actors would make it faster",
    "acting": "more environments per actor (--actor.environments) make each action cheaper",
    "gradient": "a smaller network, fewer --actor.epochs or more cores for actors would make it faster",
    "synchronise": "longer rollouts (--actor.unroll-length) need new weights less often",
}


class TimeSpent(NamedTuple):
    """Means over a run.

    `microseconds` are those of an actor per agent step, by stage, weighted by the agent steps of each row.
    `learner_busy` is the share of the time in which the learner took in gradients, None where rows do not say.
    `dropped` is the share of agent steps in dropped gradients.
    """

    microseconds: dict[str, float]
    learner_busy: float | None
    dropped: float

    @property
    def shares(self) -> dict[str, float]:
        """Of an actor's time, by stage; they add up to 1, or are all 0 where nothing was measured."""
        total = sum(self.microseconds.values()) or 1.0
        return {stage: value / total for stage, value in self.microseconds.items()}


def time_spent(rows: Sequence[dict[str, Any]]) -> TimeSpent:
    """From a run's rows, at least one; see `read_rows`."""
    seconds = np.diff([row["elapsed_seconds"] for row in rows], prepend=0.0)
    weights = [row["agent_steps_per_second"] * interval for row, interval in zip(rows, seconds, strict=True)]
    total = sum(weights) or 1.0
    microseconds = {
        stage: sum(
            row["stage_microseconds"].get(stage, 0.0) * weight for row, weight in zip(rows, weights, strict=True)
        )
        / total
        for stage in StageSeconds._fields
    }
    last = rows[-1]
    dropped = sum(last["agent_steps_dropped"].values()) / max(last["agent_steps"], 1)
    return TimeSpent(microseconds, _learner_busy(rows), dropped)


def _learner_busy(rows: Sequence[dict[str, Any]]) -> float | None:
    busy = seconds = before = 0.0
    for row in rows:
        interval, before = row["elapsed_seconds"] - before, row["elapsed_seconds"]
        gradients = row.get("gradients_per_second")
        if gradients is None and "updates_per_second" in row:
            # Of an older version. Rows of agents that ship are few: only rates hold for all of the time between two.
            gradients = row["updates_per_second"] * row.get("gradients_per_update", 1)
        if "learner_milliseconds" in row and gradients is not None and interval > 0:
            busy += 1e-3 * row["learner_milliseconds"] * gradients * interval
            seconds += interval
    return min(1.0, busy / seconds) if seconds else None


def held_back(spent: TimeSpent, rows: Sequence[dict[str, Any]], config: RunConfig) -> list[str]:
    """What held the run back, in sentences; nothing where nothing was measured."""
    shares = spent.shares
    wait, work = shares["wait"], {stage: share for stage, share in shares.items() if stage != "wait"}
    largest = max(work, key=work.__getitem__)
    lines = []
    if work[largest]:
        lines.append(
            f"Actors spent {_percent(work[largest])} of their time {_STAGES[largest]}, more than on any other work: "
            f"{_ADVICE[largest]}."
        )
    if spent.learner_busy is not None and any(shares.values()):
        waited = _learner_line(spent.learner_busy, wait, config)
        lines.insert(0 if wait > work[largest] else len(lines), waited)
    if spent.dropped >= _NOTABLE_DROPS:
        reasons = ", ".join(rows[-1]["agent_steps_dropped"])
        lines.append(f"{100 * spent.dropped:.1f} % of the agent steps taught nothing: dropped for {reasons}.")
    restarts = rows[-1]["actor_restarts"]
    if restarts:
        lines.append(f"{restarts} actor{' was' if restarts == 1 else 's were'} replaced, and lost what they played.")
    return lines


def _learner_line(busy: float, wait: float, config: RunConfig) -> str:
    if config.executor == "inline":
        return f"The learner took {_percent(busy)} of the time, and actors the rest: --executor inline has one thread."
    waited = f"Actors waited for the learner {_percent(wait)} of their time; it was busy {_percent(busy)} of its own"
    if busy >= _BUSY_LEARNER:
        return f"{waited}: it held them back, and further actors would wait, too."
    if wait < _NOTABLE_WAIT:
        return f"{waited}: it held nobody back."
    hides = "" if config.actor.calls_in_flight > 1 else " --actor.calls-in-flight 2 hides such waits."
    return f"{waited}: the way there and back held them back.{hides}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
