"""Experiment 4: does a graph need more iterations than eager execution, and how much faster is each?"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from actors.actor import Actor
from actors.environments import environment_spec
from actors.policy import Policy
from launch.loop.coordinator import Coordinator
from launch.loop.inline_executor import InlineExecutor
from launch.parity.finding import Finding, reported, required
from launch.presets import PRESETS
from learner.learner import Learner
from shared.config import EvaluationConfig, RunConfig
from shared.types import Float32Array, WeightSnapshot

THRESHOLD = 150.0
_MOST_AGENT_STEPS = 400_000
_ROLLOUTS = 40
_FIRST_UPDATE_RELATIVE = 1e-5

_EXPLANATION = """\
Both modes run the same Python functions: once as they are, once traced into graphs. With the same seed they draw
the same random numbers, and their first updates agree to rounding. Until rounding flips a sampled action they play
the same games, and need the same number of steps; from then on they part, as another seed would, and one needs more
steps for one seed and fewer for another. What a graph changes is the time of a step, not how many it takes."""


class Training(NamedTuple):
    """One training. `reached` is False where it was given up after 400,000 agent steps."""

    reached: bool
    agent_steps: int
    updates: int
    wall_seconds: float
    cpu_seconds: float
    first_update: Float32Array


def run(seeds: int, threshold: float = THRESHOLD) -> Finding:
    """Train the preset `cartpole` until the last 100 episodes have a mean of `threshold`, in both modes, per seed."""
    config = replace(PRESETS["cartpole"].config, actors=1, stop_at_return=None, evaluation=EvaluationConfig())
    rollout = {mode: _rollout_seconds(config, mode) for mode in ("eager", "graph")}
    trained: dict[str, list[Training]] = {"eager": [], "graph": []}
    for seed in range(1, seeds + 1):
        for mode, runs in trained.items():
            with _mode(mode):
                runs.append(train(replace(config, seed=seed), threshold))
    first = max(
        float(np.abs(e.first_update - g.first_update).max() / np.abs(e.first_update).max())
        for e, g in zip(trained["eager"], trained["graph"], strict=True)
    )
    rows = [
        required(
            "parameters after the first update, eager against graph",
            f"{first:.1e} of the largest",
            f"at most {_FIRST_UPDATE_RELATIVE:g}",
            first <= _FIRST_UPDATE_RELATIVE,
        )
    ]
    agent_steps = config.actor.environments * config.actor.unroll_length
    for mode in trained:
        wall, cpu = rollout[mode]
        rows.append(
            reported(
                f"{mode}: one rollout of {agent_steps} agent steps and its gradient",
                f"{1e3 * np.median(wall):.1f} ms wall, {1e3 * np.median(cpu):.1f} ms CPU (median of {_ROLLOUTS})",
            )
        )
    ratio = np.median(rollout["eager"][0]) / np.median(rollout["graph"][0])
    rows.append(reported("eager takes, for the same batch", f"{ratio:.1f} times as long"))
    for mode, runs in trained.items():
        steps = [run.agent_steps for run in runs]
        rows.append(
            reported(
                f"{mode}: agent steps to a mean return of {threshold:g}",
                f"median {np.median(steps):,.0f}, from {min(steps):,} to {max(steps):,}; "
                f"median {np.median([run.wall_seconds for run in runs]):.1f} s",
            )
        )
    fewer = sum(g.agent_steps < e.agent_steps for e, g in zip(trained["eager"], trained["graph"], strict=True))
    rows.append(reported("seeds for which the graph needed fewer agent steps", f"{fewer} of {seeds}"))
    figures: dict[str, Any] = {
        "threshold": threshold,
        "first_update_relative_difference": first,
        "rollout_wall_seconds": {mode: values[0] for mode, values in rollout.items()},
        "rollout_cpu_seconds": {mode: values[1] for mode, values in rollout.items()},
        "trainings": {
            mode: [{k: v for k, v in run._asdict().items() if k != "first_update"} for run in runs]
            for mode, runs in trained.items()
        },
    }
    return Finding("Does a graph need more iterations than eager execution?", tuple(rows), _EXPLANATION, figures)


@contextmanager
def _mode(mode: str) -> Iterator[None]:
    tf.config.run_functions_eagerly(mode == "eager")
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


def _rollout_seconds(config: RunConfig, mode: str) -> tuple[list[float], list[float]]:
    """Wall and CPU seconds of rollouts and their gradients, after a warm-up."""
    with _mode(mode):
        spec = environment_spec(config.environment)
        actor, weights = Actor(config, spec, 0), WeightSnapshot(0, Policy(config, spec).initial_parameters())
        for _ in range(3):
            actor.run(weights)
        wall, cpu = zip(*(_timed(lambda: actor.run(weights)) for _ in range(_ROLLOUTS)), strict=True)
        actor.close()
    return list(wall), list(cpu)


def _timed(call: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def train(config: RunConfig, threshold: float) -> Training:
    """Train inline with one actor until the last 100 episodes have a mean return of `threshold`."""
    spec = environment_spec(config.environment)
    policy = Policy(config, spec)
    learner = Learner(config, policy.layout, policy.initial_parameters())
    executor = InlineExecutor(config, spec, actors=1)
    wall, cpu = time.perf_counter(), time.process_time()
    first_update: Float32Array | None = None
    reached = False
    for _ in Coordinator(learner, executor, calls_per_actor=1, supervision=config.supervision).run():
        if first_update is None:
            first_update = learner.snapshot().parameters
        reached = len(learner.account.recent_returns) == 100 and (learner.account.mean_return or 0.0) >= threshold
        if reached or learner.account.ledger.sampled >= _MOST_AGENT_STEPS:
            break
    executor.close()
    assert first_update is not None, "every rollout is an update"
    return Training(
        reached,
        learner.account.ledger.sampled,
        learner.version,
        time.perf_counter() - wall,
        time.process_time() - cpu,
        first_update,
    )
