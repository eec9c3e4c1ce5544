"""A run in numbers when it has ended: what summary.json holds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from launch.output import write_json
from launch.run.counts import RunCounts
from launch.run.progress import lag_summary
from launch.run.stopping import ReturnMark, Status, crossings
from launch.run.training_returns import TrainingReturns
from learner.learner import Learner
from shared.config import ActorConfig


def run_summary(
    status: Status,
    learner: Learner,
    counts: RunCounts,
    *,
    actor: ActorConfig,
    mark: ReturnMark | None,
    returns: TrainingReturns,
    evaluation: dict[str, Any] | None,
    exploits: int,
) -> dict[str, Any]:
    """The summary of a run that ended with `status`.

    Args:
        status: why it ended.
        learner: has the account.
        counts: over all processes of the run.
        actor: settings, which say how much a lost rollout was at most.
        mark: the return that the run was to reach, if there is one.
        returns: of its training episodes.
        evaluation: the entry of the last one; see `evaluation_entry`.
        exploits: how often it went on with the weights of another run.
    """
    ledger = learner.account.ledger
    lag_mean, lag_p95, lag_max = lag_summary(learner.account.lag_counts)
    return {
        "status": status,
        "agent_steps_sampled": ledger.sampled,
        "agent_steps_applied": ledger.applied,
        "agent_steps_dropped": ledger.dropped_if_it_ends(),
        "frames": learner.account.frames,
        "updates": ledger.updates,
        "gradients_applied": ledger.gradients_applied,
        "messages": counts.messages,
        "agent_steps_per_second": ledger.sampled / counts.elapsed_seconds,
        "frames_per_second": learner.account.frames / counts.elapsed_seconds,
        "policy_lag_mean": lag_mean,
        "policy_lag_p95": lag_p95,
        "policy_lag_max": lag_max,
        "mean_return_100": learner.account.mean_return,
        "mean_return_first_100": returns.untrained,
        **crossings(mark),
        "episodes": learner.account.episodes,
        "target_updates": learner.target_updates,
        "evaluation": evaluation,
        "exploits": exploits,
        "actor_restarts": counts.actor_restarts,
        "rollouts_lost_with_actors": counts.rollouts_lost,
        "agent_steps_lost_with_actors_at_most": counts.rollouts_lost * actor.unroll_length * actor.environments,
        "learner_restarts": counts.learner_restarts,
        "agent_steps_lost_with_learner": counts.agent_steps_lost,
        "wall_seconds": counts.elapsed_seconds,
    }


def write_summary(summary: dict[str, Any], file: Path, say: Callable[[str], None]) -> None:
    """Write a run's summary; where it cannot be written, say so."""
    try:
        write_json(file, summary)
    except OSError as error:
        say(f"warning: {file.name} could not be written: {error.strerror}")
