"""Experiment 8: how do the RMSProps of TensorFlow 1, Keras and PyTorch differ, and what does that do to learning?"""

from dataclasses import replace

import keras
import numpy as np
import tensorflow as tf

from launch.parity.finding import Finding, Row, reported, required
from launch.parity.learning_speed import train
from launch.presets import PRESETS
from learner.accumulator import GradientAccumulator
from shared.config import EvaluationConfig, LearnerConfig, OptimizerConfig

_GRADIENT, _RATE = 2.0, 1.0
_MOST_RELATIVE = 1e-5
_THRESHOLD = 150.0
_PLAIN = OptimizerConfig(schedule="constant", max_gradient_norm=None)

# Each library's defaults. PyTorch's ε stands outside the root: 1e-8 there is about 1e-16 inside it.
FORMS = {
    "TensorFlow 1": replace(_PLAIN, decay=0.9, epsilon=1e-10, initial_mean_square=1.0),
    "Keras": replace(_PLAIN, decay=0.9, epsilon=1e-7),
    "PyTorch": replace(_PLAIN, decay=0.99, epsilon=1e-16),
    "A3C paper": replace(_PLAIN, decay=0.99, epsilon=0.1),
    "with bias correction": replace(_PLAIN, decay=0.99, epsilon=1e-5, bias_correction=True),
}

_EXPLANATION = """\
All keep a running mean g of squared gradients and divide by its root. TensorFlow 1 starts g at 1, Keras and PyTorch
at 0; TensorFlow 1, Keras and the A3C paper add ε inside the root, PyTorch outside. So with the same learning rate
the first steps differ by a factor of ten and more: from 0 the first step is 1/√(1-α) times the learning rate
whatever the gradient is, and from 1 it is small where gradients are. Later steps differ where gradients are small
beside √ε: there a large ε makes RMSProp a slow SGD, and a small one makes it move by the learning rate on noise.
Bias correction divides g by 1 - α^t, and makes the first step the learning rate."""


def run(seeds: int) -> Finding:
    """The first step of each form, and CartPole learnt with each from `seeds` seeds."""
    rows: list[Row] = []
    steps = {name: first_step(form) for name, form in FORMS.items()}
    for name, theirs in {"TensorFlow 1": _tensorflow_1_step(), "Keras": _keras_step()}.items():
        difference = abs(steps[name] - theirs) / theirs
        rows.append(
            required(
                f"{name}: first step, ours against the library's own",
                f"{steps[name]:.4f} and {theirs:.4f}",
                f"{_MOST_RELATIVE:g} relative",
                difference <= _MOST_RELATIVE,
            )
        )
    rows += [
        reported(f"{name}: first step, gradient {_GRADIENT:g}, learning rate 1", f"{step:.4f}")
        for name, step in steps.items()
    ]
    config = replace(PRESETS["cartpole"].config, actors=1, stop_at_return=None, evaluation=EvaluationConfig())
    learned: dict[str, list[int]] = {}
    for name, form in FORMS.items():
        optimizer = replace(form, learning_rate=config.optimizer.learning_rate)
        trained = [train(replace(config, seed=seed, optimizer=optimizer), _THRESHOLD) for seed in range(1, seeds + 1)]
        learned[name] = [training.agent_steps for training in trained]
        reached = sum(training.reached for training in trained)
        rows.append(
            reported(
                f"{name}: agent steps to a mean return of {_THRESHOLD:g} on CartPole-v1, same rate",
                f"median {np.median(learned[name]):,.0f}; {reached} of {seeds} seeds got there",
            )
        )
    return Finding(
        "How do the RMSProps of TensorFlow 1, Keras and PyTorch differ?",
        tuple(rows),
        _EXPLANATION,
        {"first_steps": steps, "agent_steps": learned},
    )


def first_step(form: OptimizerConfig) -> float:
    """How far the first update moves a weight, for a gradient of 2 and a learning rate of 1."""
    accumulator = GradientAccumulator(np.zeros(1, np.float32), LearnerConfig(), form)
    accumulator.push(np.array([_GRADIENT], np.float32), _RATE)
    return -float(accumulator.parameters.numpy()[0])


def _tensorflow_1_step() -> float:
    variable = tf.Variable(0.0)
    optimizer = tf.compat.v1.train.RMSPropOptimizer(_RATE)
    optimizer.apply_gradients([(tf.constant(_GRADIENT), variable)])
    return -float(variable.numpy())


def _keras_step() -> float:
    variable = keras.Variable(0.0)
    keras.optimizers.RMSprop(_RATE).apply([tf.constant(_GRADIENT)], [variable])
    return -float(variable.numpy())
