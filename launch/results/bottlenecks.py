"""Where the time of runs went, and what held them back."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from launch.results.plot import COLOURS, as_svg, figure
from shared.config import RunConfig
from shared.types import StageSeconds

# Shares from which a line reports them.
_NOTABLE_WAIT = 0.10
_BUSY_LEARNER = 0.70
_NOTABLE_DROPS = 0.01

# What an actor does in each stage, and how to make it faster.
_STAGES = {
    "environment": (
        "stepping the environments",
        "cheaper environments or more cores for actors would make it faster",
    ),
    "acting": ("choosing actions", "more environments per actor (--actor.environments) make each action cheaper"),
    "gradient": (
        "computing gradients",
        "a smaller network, fewer --actor.epochs, or more cores for actors would make it faster",
    ),
    "synchronise": ("taking new weights", "longer rollouts (--actor.unroll-length) need new weights less often"),
}


class TimeSpent(NamedTuple):
    """Means over a run.

    `microseconds` are those of an actor per agent step, by stage, weighted by the agent steps of each row.
    `learner_busy` is the fraction of time in which the learner processed gradients; None in rows without it.
    `dropped` is the fraction of agent steps in dropped gradients.
    """

    microseconds: dict[str, float]
    learner_busy: float | None
    dropped: float

    @property
    def shares(self) -> dict[str, float]:
        """Fraction of an actor's time in each stage. The sum is 1, or 0 without measurements."""
        total = sum(self.microseconds.values()) or 1.0
        return {stage: value / total for stage, value in self.microseconds.items()}


def time_spent(rows: Sequence[dict[str, Any]]) -> TimeSpent:
    """Time per stage from at least one row of metrics; see `read_rows`."""
    seconds = np.diff([row["elapsed_seconds"] for row in rows], prepend=0.0)
    # Rates hold in rows between two rollouts, in which no stage was measured.
    rates = [row["agent_steps_per_second"] if row["stage_microseconds"] else 0.0 for row in rows]
    agent_steps = seconds * rates
    microseconds = {}
    for stage in StageSeconds._fields:
        of_stage = [row["stage_microseconds"].get(stage, 0.0) for row in rows]
        microseconds[stage] = float(agent_steps @ of_stage / (agent_steps.sum() or 1.0))
    # Seconds of work per second, NaN in rows without it.
    busy = 1e-3 * np.array([row.get("learner_milliseconds", np.nan) * _gradients_per_second(row) for row in rows])
    measured = np.where(np.isnan(busy), 0.0, seconds)
    share = float(np.nansum(busy * measured) / measured.sum()) if measured.sum() > 0 else None
    dropped = sum(rows[-1]["agent_steps_dropped"].values()) / max(rows[-1]["agent_steps"], 1)
    return TimeSpent(microseconds, None if share is None else min(1.0, share), dropped)


def _gradients_per_second(row: dict[str, Any]) -> float:
    # Rows of an older version have their updates only.
    updates: float = row.get("updates_per_second", np.nan)
    return float(row.get("gradients_per_second", updates * row.get("gradients_per_update", 1)))


def mean_time_spent(spent: Sequence[TimeSpent]) -> TimeSpent:
    """The mean over at least one run."""
    stages = {stage: float(np.mean([run.microseconds[stage] for run in spent])) for stage in spent[0].microseconds}
    busy = [run.learner_busy for run in spent if run.learner_busy is not None]
    return TimeSpent(stages, float(np.mean(busy)) if busy else None, float(np.mean([run.dropped for run in spent])))


def held_back(spent: TimeSpent, rows: Sequence[dict[str, Any]], config: RunConfig) -> list[str]:
    """The bottlenecks of a run, in sentences; none without measurements."""
    wait = spent.shares["wait"]
    stage, work = max(((s, share) for s, share in spent.shares.items() if s != "wait"), key=lambda pair: pair[1])
    lines = []
    if work:
        verb, advice = _STAGES[stage]
        if config.actor.epochs == 1:
            advice = advice.replace(", fewer --actor.epochs", "")
        lines.append(f"Actors spent {work:.0%} of their time {verb}, more than on any other work: {advice}.")
    if spent.learner_busy is not None and (work or wait):
        lines.insert(0 if wait > work else len(lines), _learner_line(spent.learner_busy, wait, config))
    if spent.dropped >= _NOTABLE_DROPS:
        reasons = ", ".join(rows[-1]["agent_steps_dropped"])
        lines.append(f"{spent.dropped:.1%} of the agent steps were dropped for {reasons}.")
    restarts = rows[-1]["actor_restarts"]
    if restarts:
        lines.append(f"{restarts} actor{' was' if restarts == 1 else 's were'} replaced; rollouts under way were lost.")
    return lines


def _learner_line(busy: float, wait: float, config: RunConfig) -> str:
    if config.executor == "inline":
        return f"The learner took {busy:.0%} of the time, and actors the rest: --executor inline has one thread."
    waited = f"Actors waited for the learner {wait:.0%} of their time; it was busy {busy:.0%} of its own"
    if busy >= _BUSY_LEARNER:
        return f"{waited}: the learner is the bottleneck, and further actors would wait, too."
    if wait < _NOTABLE_WAIT:
        return f"{waited}: it is no bottleneck."
    hides = "" if config.actor.calls_in_flight > 1 else " --actor.calls-in-flight 2 hides such waits."
    return f"{waited}: the communication is the bottleneck.{hides}"


def stages_svg(spent: TimeSpent) -> str:
    """A bar chart of an actor's microseconds per agent step in each stage."""
    stages, shares = spent.microseconds, spent.shares
    with figure(width=5.6, height=2.6) as (drawn, (axes,)):
        names = list(stages)[::-1]
        colours = [COLOURS[i] for i in range(len(names))][::-1]
        bars = axes.barh(names, [stages[name] for name in names], color=colours)
        axes.bar_label(bars, [f"{stages[name]:,.0f} µs, {shares[name]:.0%}" for name in names], padding=3, fontsize=8.5)
        axes.set_xlim(0, 1.3 * (max(stages.values()) or 1.0))
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("µs per agent step of an actor")
        return as_svg(drawn)


def lags_svg(counts: Counter[int]) -> str:
    """A histogram of the policy lag of gradients."""
    from matplotlib.ticker import MaxNLocator

    total = max(counts.total(), 1)
    with figure(width=5.6, height=2.6) as (drawn, (axes,)):
        axes.bar(list(counts), [100 * count / total for count in counts.values()], color=COLOURS[0])
        axes.set_xlabel("policy lag of a gradient, updates")
        axes.set_ylabel("% of gradients")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return as_svg(drawn)
