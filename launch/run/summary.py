"""The status of a run, its summary, and the conditions of a resume."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from launch.files import finite
from launch.run.folder import RunFolder, last_row, read_object
from launch.run.lock import Holder, holder_of
from launch.run.metrics import lag_summary
from launch.run.stopping import Evaluations, Status
from shared.config import ActorConfig, RunConfig

if TYPE_CHECKING:
    from learner.learner import Learner


class RunStatus(NamedTuple):
    """The status of a run: from its summary, `running`, or `died` if its process ended without a summary."""

    folder: RunFolder
    config: RunConfig
    status: str
    holder: Holder | None
    row: dict[str, Any]


def run_status(path: Path) -> RunStatus:
    """The status of the run in a folder; a ConfigurationError if the folder is not a run's."""
    folder = RunFolder(path)
    config = folder.read_settings("run")
    # The holder is read first: a run that ends in between has written its summary by then.
    holder = holder_of(path)
    row, summary = last_row(folder), read_object(folder.summary)
    status = "died" if holder is None else "running"
    if holder is None and summary.get("frames", -1) >= row.get("frames", 0):
        status = str(summary.get("status", status))
    return RunStatus(folder, config, status, holder, row)


# ---- Summary


@dataclass(frozen=True)
class RunCounts:
    """Counts over all processes of a run. The names are keys of a checkpoint and of summary.json.

    Attributes:
        wall_seconds: seconds of training, from the beginning of the first rollout.
        startup_seconds: seconds from the start or the resume of the run to the first rollout, of all starts.
        messages: control messages to the learner, one for each report or sum of reports.
        agent_steps_lost_with_learner: agent steps of dead learners after their last checkpoint.
    """

    wall_seconds: float = 0.0
    startup_seconds: float = 0.0
    messages: int = 0
    actor_restarts: int = 0
    rollouts_lost_with_actors: int = 0
    learner_restarts: int = 0
    agent_steps_lost_with_learner: int = 0

    def __add__(self, other: "RunCounts") -> "RunCounts":
        return RunCounts(**{name: count + getattr(other, name) for name, count in asdict(self).items()})


class LearnerDeath(NamedTuple):
    """The death of a learner process, and the agent steps that it was last known to have sampled."""

    reason: str
    agent_steps_seen: int


def run_summary(
    status: Status, learner: "Learner", counts: RunCounts, actor: ActorConfig, evaluations: Evaluations
) -> dict[str, Any]:
    """The content of summary.json."""
    first, confirmed = evaluations.first, evaluations.confirmed
    account, ledger = learner.account, learner.account.ledger
    # With pending gradients, which no update will apply: sampled = applied + dropped holds at the end.
    ended = ledger.closed()
    # 0 for a run that was stopped before its first rollout.
    seconds = max(counts.wall_seconds, 1e-9)
    lag_mean, lag_p95, lag_max = lag_summary(account.lag_counts)
    summary = {
        "status": status,
        "agent_steps_sampled": ledger.sampled,
        "agent_steps_applied": ledger.applied,
        "agent_steps_dropped": dict(+ended.dropped),
        "frames": account.frames,
        "updates": ledger.updates,
        "gradients_applied": ledger.gradients_applied,
        "gradients_dropped": dict(+ended.gradients_dropped),
        "agent_steps_per_second": ledger.sampled / seconds,
        "frames_per_second": account.frames / seconds,
        "policy_lag_mean": lag_mean,
        "policy_lag_p95": lag_p95,
        "policy_lag_max": lag_max,
        "mean_return_100": account.mean_return,
        "untrained_mean_return": evaluations.returns.untrained,
        "first_crossing": None if first is None else first._asdict(),
        "confirmed_crossing": None if confirmed is None else confirmed._asdict(),
        "confirmation_tries": evaluations.tries,
        "episodes": account.episodes,
        "non_finite_returns": account.non_finite_returns,
        "target_updates": learner.target_updates,
        "evaluation": evaluations.last,
        # Seconds of training in which the actors played evaluations.
        "evaluation_seconds": evaluations.seconds,
        "evaluation_agent_steps": evaluations.agent_steps,
        **asdict(counts),
        # A dead actor cannot report how far its rollout had come.
        "agent_steps_lost_with_actors_at_most": counts.rollouts_lost_with_actors * actor.agent_steps_in_flight,
    }
    return finite(summary)


# ---- Resume


def reached_limit(config: RunConfig, summary: dict[str, Any]) -> str | None:
    """A message about the limit of `config` that the run has reached already; None if it can go on.

    A summary may be older than the run's last checkpoint. Its numbers are then too small; they are too large only in
    a run that failed, whose last checkpoint may not have been saved.
    """
    if summary.get("status") == "failed":
        return None
    frames, seconds = summary.get("frames", 0), summary.get("wall_seconds", 0.0)
    goal, max_seconds = config.stop_at_return, config.stop_after_seconds
    # Either of the two may have ended the run: the settings decide which, and a resume may have changed them.
    confirmed = (summary.get("evaluation") or {}).get("mean_return")
    if frames >= config.total_frames:
        has, option = f"{frames:,} of {config.total_frames:,} total frames", "a larger --total-frames"
    elif max_seconds is not None and seconds >= max_seconds:
        has, option = f"{seconds:,.0f} of {max_seconds:,g} seconds", "a larger --stop-after-seconds"
    elif summary.get("status") == "return_reached" and goal is not None and confirmed is not None and confirmed >= goal:
        has, option = (
            f"a mean return of {confirmed:.1f}, and its target was {goal:g}",
            "a higher --stop-at-return, or None",
        )
    else:
        return None
    return f"nothing to do: the run has {has}; to train further, give {option}"
