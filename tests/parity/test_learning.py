"""CartPole learnt eagerly and in graphs, and with the RMSProp of each library."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from findings import Row, conclude, timed

from actors.actor import Actor
from actors.environments import environment_spec
from actors.policy import Policy
from launch.loop.coordinator import Coordinator
from launch.loop.inline import InlineExecutor
from launch.presets import PRESETS
from learner.learner import Learner
from learner.update import GradientAccumulator
from shared.config import EvaluationConfig, LearnerConfig, OptimizerConfig, RunConfig
from shared.types import Float32Array, WeightSnapshot

pytestmark = [pytest.mark.parity, pytest.mark.timeout(1800)]

_SEEDS = 5
_THRESHOLD = 150.0
_MOST_AGENT_STEPS = 400_000
_ROLLOUTS = 40
_GRADIENT = 2.0

_PLAIN = OptimizerConfig(schedule="constant", max_gradient_norm=None)
# Each library's defaults. PyTorch's ε stands outside the root: 1e-8 there is about 1e-16 inside it.
_FORMS = {
    "TensorFlow 1": replace(_PLAIN, decay=0.9, epsilon=1e-10),
    "Keras": replace(_PLAIN, decay=0.9, epsilon=1e-7),
    "PyTorch": replace(_PLAIN, decay=0.99, epsilon=1e-16),
    "A3C paper": replace(_PLAIN, decay=0.99, epsilon=0.1),
    "with bias correction": replace(_PLAIN, decay=0.99, epsilon=1e-5, bias_correction=True),
}
# RMSProp's g before the first update, where it is not 0.
_START = {"TensorFlow 1": 1.0}


def test_iterations_of_eager_and_graph() -> None:
    """Both modes draw the same random numbers, and their first updates agree to rounding.

    They play the same games until rounding changes a sampled action; from there on they differ as two seeds do.
    """
    config = _cartpole()
    rollout = {mode: _rollout_seconds(config, mode) for mode in ("eager", "graph")}
    trained: dict[str, list[_Training]] = {"eager": [], "graph": []}
    for seed in range(1, _SEEDS + 1):
        for mode, runs in trained.items():
            with _mode(mode):
                runs.append(_train(replace(config, seed=seed)))
    first = max(
        float(np.abs(e.first_update - g.first_update).max() / np.abs(e.first_update).max())
        for e, g in zip(trained["eager"], trained["graph"], strict=True)
    )
    claim = "parameters after the first update, relative to the largest"
    rows = [Row(claim, f"{first:.1e}", "at most 1e-5", first <= 1e-5)]
    for mode, runs in trained.items():
        wall, cpu = rollout[mode]
        rows.append(Row(f"{mode}: a rollout and its gradient", f"{1e3 * wall:.1f} ms wall, {1e3 * cpu:.1f} ms CPU"))
        steps = [run.agent_steps for run in runs]
        seconds = np.median([run.seconds for run in runs])
        measured = f"median {np.median(steps):,.0f}, {min(steps):,} to {max(steps):,}; median {seconds:.1f} s"
        rows.append(Row(f"{mode}: agent steps to a mean return of {_THRESHOLD:g}", measured))
    fewer = sum(g.agent_steps < e.agent_steps for e, g in zip(trained["eager"], trained["graph"], strict=True))
    rows.append(Row("seeds for which the graph needed fewer agent steps", f"{fewer} of {_SEEDS}"))
    conclude("Does a graph need more iterations than eager execution?", rows)


def test_forms_of_rmsprop() -> None:
    """All divide by the root of a running mean g of squared gradients; start of g and place of ε differ."""
    steps = {name: _first_step(form, _START.get(name, 0.0)) for name, form in _FORMS.items()}
    rows = []
    for name, theirs in {"TensorFlow 1": _tensorflow_1_step(), "Keras": _keras_step()}.items():
        holds = abs(steps[name] - theirs) / theirs <= 1e-5
        measured = f"{steps[name]:.4f} and {theirs:.4f}"
        rows.append(Row(f"{name}: first step, ours and the library's own", measured, "within 1e-5", holds))
    # Gradient 2 and rate 1: 2/√(0.9 + 0.4), 2/√0.4, 2/√0.04, 2/√(0.04 + 0.1), and 1 with bias correction.
    for name, expected in zip(_FORMS, (1.7541, 3.1623, 10.0, 5.3452, 1.0), strict=True):
        holds = abs(steps[name] - expected) <= 1e-4 * expected
        rows.append(Row(f"{name}: first step, gradient 2, rate 1", f"{steps[name]:.4f}", f"{expected}", holds))
    config = _cartpole()
    for name, form in _FORMS.items():
        optimizer = replace(form, learning_rate=config.optimizer.learning_rate)
        start = _START.get(name, 0.0)
        trained = [_train(replace(config, seed=seed, optimizer=optimizer), start) for seed in range(1, _SEEDS + 1)]
        median = np.median([training.agent_steps for training in trained])
        measured = f"median {median:,.0f}; {sum(training.reached for training in trained)} of {_SEEDS} seeds reached it"
        rows.append(Row(f"{name}: agent steps to a mean return of {_THRESHOLD:g}, same rate", measured))
    conclude("How do the RMSProps of TensorFlow 1, Keras and PyTorch differ?", rows)


def _cartpole() -> RunConfig:
    return replace(PRESETS["cartpole"].config, actors=1, stop_at_return=None, evaluation=EvaluationConfig())


class _Training(NamedTuple):
    """`reached` is False where the training was given up after 400,000 agent steps."""

    reached: bool
    agent_steps: int
    seconds: float
    first_update: Float32Array


def _train(config: RunConfig, mean_square: float = 0.0) -> _Training:
    """Train inline with one actor until the last 100 episodes have a mean return of `_THRESHOLD`.

    `mean_square`: RMSProp's g before the first update.
    """
    spec = environment_spec(config.environment)
    policy = Policy(config, spec)
    learner = Learner(config, policy.layout, policy.initial_parameters())
    _start_from(learner.variables(), mean_square)
    executor = InlineExecutor(config, spec, actors=1)
    started = time.perf_counter()
    first_update: Float32Array | None = None
    reached = False
    for _ in Coordinator(learner, executor, calls_per_actor=1, supervision=config.supervision).run():
        if first_update is None:
            first_update = learner.snapshot().parameters
        reached = len(learner.account.recent_returns) == 100 and (learner.account.mean_return or 0.0) >= _THRESHOLD
        if reached or learner.account.ledger.sampled >= _MOST_AGENT_STEPS:
            break
    executor.close()
    assert first_update is not None, "every rollout is an update"
    return _Training(reached, learner.account.ledger.sampled, time.perf_counter() - started, first_update)


@contextmanager
def _mode(mode: str) -> Iterator[None]:
    tf.config.run_functions_eagerly(mode == "eager")
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


def _rollout_seconds(config: RunConfig, mode: str) -> tuple[float, float]:
    with _mode(mode):
        spec = environment_spec(config.environment)
        actor, weights = Actor(config, spec, 0), WeightSnapshot(0, Policy(config, spec).initial_parameters())
        for _ in range(3):
            actor.run(weights)
        timed = [timed(lambda: actor.run(weights)) for _ in range(_ROLLOUTS)]
        actor.close()
    wall, cpu = np.median(timed, axis=0)
    return float(wall), float(cpu)


def _start_from(variables: dict[str, tf.Variable], mean_square: float) -> None:
    variables["mean_square"].assign(tf.fill(variables["mean_square"].shape, mean_square))


def _first_step(form: OptimizerConfig, mean_square: float) -> float:
    accumulator = GradientAccumulator(np.zeros(1, np.float32), LearnerConfig(), form)
    _start_from(accumulator.variables, mean_square)
    accumulator.push(np.array([_GRADIENT], np.float32), 1.0)
    return -float(accumulator.parameters.numpy()[0])


def _tensorflow_1_step() -> float:
    variable = tf.Variable(0.0)
    optimizer = tf.compat.v1.train.RMSPropOptimizer(1.0)
    optimizer.apply_gradients([(tf.constant(_GRADIENT), variable)])
    return -float(variable.numpy())


def _keras_step() -> float:
    variable = keras.Variable(0.0)
    keras.optimizers.RMSprop(1.0).apply([tf.constant(_GRADIENT)], [variable])
    return -float(variable.numpy())
