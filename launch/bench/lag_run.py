"""One run of a lag study, in this process: virtual actors, the real learner, and an evaluation at the end."""

import hashlib
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from actors.environments import EnvironmentSpec, environment_spec, measure_observation_mean
from actors.evaluator import Evaluator
from actors.policy import Policy
from launch.bench.lag_cells import Cell, settings
from launch.bench.throughput import DRIFT
from launch.bench.virtual_actors import VirtualActors
from launch.loop.coordinator import Coordinator
from launch.loop.supervision import TrainingStoppedError
from launch.output.provenance import revision
from launch.run.folder import centres_observations
from launch.run.progress import lag_summary
from learner.learner import Learner, Outcome
from shared.config import RunConfig

# Moments of a run, evenly spaced over its frames, at which its return is noted.
_MARKS = 10


def play(config: RunConfig, cell: Cell, order: Path) -> dict[str, Any]:
    """Train by a cell's settings for all frames, evaluate the last weights, and return the row.

    Args:
        config: what all cells share.
        cell: what this run has of its own.
        order: file of the arrivals.
    """
    started = time.monotonic()
    config = settings(config, cell, order)
    spec = environment_spec(config.environment)
    if centres_observations(config, spec):
        spec = replace(spec, observation_mean=measure_observation_mean(config.environment, config.seed))
    policy = Policy(config, spec)
    learner = Learner(config, policy.layout, policy.initial_parameters())
    executor = VirtualActors(config, spec, cell.actors)
    coordinator = Coordinator(learner, executor, calls_per_actor=1, supervision=config.supervision)
    account, curve, failure = learner.account, list[float | None](), None
    statistics = Counter[str]()
    try:
        for event in coordinator.run():
            if isinstance(event, Outcome) and event.dropped is None:
                statistics.update(event.report.statistics)
            while account.frames * _MARKS >= config.total_frames * (len(curve) + 1):
                curve.append(account.mean_return)
            if account.frames >= config.total_frames:
                break
    except TrainingStoppedError as error:
        failure = str(error)
    finally:
        executor.close()
    lags = account.lag_counts
    lag_mean, lag_p95, lag_max = lag_summary(lags)
    return {
        **cell._asdict(),
        "evaluation_mean_return": _evaluated(config, spec, learner) if learner.is_finite() else None,
        "mean_return_100": account.mean_return,
        "curve": [None if value is None else round(value, 2) for value in curve],
        "policy_lag_mean": lag_mean,
        "policy_lag_p95": lag_p95,
        "policy_lag_max": lag_max,
        # Of rollouts that are differentiated again.
        **{name: statistics[name] / lags.total() for name in DRIFT if name in statistics},
        "learning_rate": config.optimizer.learning_rate,
        "agent_steps": account.ledger.sampled,
        "agent_steps_dropped": dict(account.ledger.dropped),
        "gradients": lags.total(),
        "updates": learner.version,
        "failure": failure,
        "weights_sha256": hashlib.sha256(learner.snapshot().parameters.tobytes()).hexdigest()[:16],
        "arrivals_sha256": hashlib.sha256(order.read_bytes()).hexdigest()[:16],
        "revision": revision(),
        "seconds": round(time.monotonic() - started, 2),
    }


def _evaluated(config: RunConfig, spec: EnvironmentSpec, learner: Learner) -> float:
    """Mean return of the last weights, by the evaluation of the settings."""
    evaluator = Evaluator(config, spec, config.evaluation)
    try:
        return float(evaluator.run(learner.snapshot()).episodes.returns.mean())
    finally:
        evaluator.close()
