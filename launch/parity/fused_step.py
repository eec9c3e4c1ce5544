"""Experiment 3: is a gradient in the same graph as its update computed from the weights before the update?"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from launch.parity.finding import Finding, reported, required
from learner.accumulator import GradientAccumulator
from shared.config import LearnerConfig, OptimizerConfig
from shared.layout import ParameterLayout
from shared.types import Float32Array

_STEPS, _BATCH, _RATE, _DECAY, _EPSILON = 3, 16, 0.01, 0.9, 1e-7
# A gradient of changed weights is wrong in its first digits, rounding in its last.
_WRONG = 1e-3

_EXPLANATION = """\
One tf.function that takes a gradient and applies it reads weights in the forward and backward pass, and writes
them. TensorFlow orders reads and writes of a variable, and its graph optimizer may drop an order that seems
redundant. With TensorFlow 2.21 and Keras 3.15 traces have been seen in which the backward pass reads weights that
another layer's update has changed already. Such a trace is wrong for good, so a training run either works or is
quietly a little wrong; a count of 0 here says that this machine, these versions and this network do not show it.
Ours does not depend on that: the gradient leaves its graph as a value before another graph applies it, and nothing
that is computed later can change it."""

Step = Callable[[tf.Tensor, tf.Tensor], None]


class _Problem(NamedTuple):
    x: tf.Tensor
    y: tf.Tensor
    weights: list[Float32Array]


def run(traces: int) -> Finding:
    """Trace each kind of step `traces` times afresh, and compare three steps with the eager ones."""
    problem = _problem()
    optimizers = {"SGD": keras.optimizers.SGD, "RMSprop": keras.optimizers.RMSprop, "Adam": keras.optimizers.Adam}
    names = list(optimizers)
    references = {name: _by_keras(problem, make(_RATE), _eager) for name, make in optimizers.items()}
    own_reference = _by_numpy(problem)
    wrong: dict[str, Counter[str]] = {"fused": Counter(), "controlled": Counter(), "ours": Counter()}
    for i in range(traces):
        name = names[i % len(names)]
        for kind, step in (("fused", _fused), ("controlled", _controlled)):
            reached = _by_keras(problem, optimizers[name](_RATE), step)
            wrong[kind][name] += is_wrong(reached, references[name], problem.weights)
        wrong["ours"]["RMSProp"] += is_wrong(_by_ours(problem), own_reference, problem.weights)

    def count(kind: str) -> str:
        each = ", ".join(f"{name} {number}" for name, number in wrong[kind].items())
        return f"{wrong[kind].total()} of {traces} wrong ({each})"

    return Finding(
        "May gradient and update share one tf.function?",
        (
            reported("gradient and Keras' apply in one tf.function", count("fused")),
            reported("the same, with control dependencies on the gradients", count("controlled")),
            required("ours: two graph calls", count("ours"), "0 wrong", wrong["ours"].total() == 0),
        ),
        _EXPLANATION,
        {"traces": traces, "wrong": {kind: dict(counts) for kind, counts in wrong.items()}},
    )


def is_wrong(reached: Sequence[Float32Array], expected: Sequence[Float32Array], start: Sequence[Float32Array]) -> bool:
    """Whether weights differ from the expected ones by more than a thousandth of the way they went."""
    return any(
        np.abs(r - e).max() > _WRONG * np.abs(e - s).max() for r, e, s in zip(reached, expected, start, strict=True)
    )


def _problem() -> _Problem:
    random = np.random.default_rng(0)
    weights = [np.asarray(w) for w in _network().get_weights()]
    return _Problem(
        tf.constant(random.normal(size=(_BATCH, 4)), tf.float32),
        tf.constant(random.normal(size=(_BATCH, 2)), tf.float32),
        [random.normal(0.0, 0.3, w.shape).astype(np.float32) for w in weights],
    )


def _network() -> keras.Model:
    inputs = keras.Input((4,))
    x = keras.layers.Dense(64, "relu")(inputs)
    x = keras.layers.Dense(64, "relu")(x)
    return keras.Model(inputs, keras.layers.Dense(2)(x))


def _gradients(model: keras.Model, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    return tape.gradient(loss, model.trainable_variables)


def _eager(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> Step:
    return lambda x, y: optimizer.apply(_gradients(model, x, y), model.trainable_variables)


def _fused(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> Step:
    return tf.function(_eager(model, optimizer), autograph=False)


def _controlled(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> Step:
    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        gradients = _gradients(model, x, y)
        with tf.control_dependencies(gradients):
            optimizer.apply([tf.identity(g) for g in gradients], model.trainable_variables)

    return tf.function(step, autograph=False)


def _by_keras(
    problem: _Problem,
    optimizer: keras.optimizers.Optimizer,
    make_step: Callable[[keras.Model, keras.optimizers.Optimizer], Step],
) -> list[Float32Array]:
    model = _network()
    model.set_weights(problem.weights)
    optimizer.build(model.trainable_variables)
    step = make_step(model, optimizer)
    for _ in range(_STEPS):
        step(problem.x, problem.y)
    return model.get_weights()


def _by_ours(problem: _Problem) -> list[Float32Array]:
    model = _network()
    layout = ParameterLayout.of(model.trainable_variables)
    settings = OptimizerConfig(decay=_DECAY, epsilon=_EPSILON, max_gradient_norm=None)
    accumulator = GradientAccumulator(layout.flatten(problem.weights), LearnerConfig(), settings)
    gradient = tf.function(lambda x, y: _gradients(model, x, y), autograph=False)
    for _ in range(_STEPS):
        model.set_weights(layout.split(accumulator.parameters.numpy()))
        accumulator.push(layout.flatten([g.numpy() for g in gradient(problem.x, problem.y)]), _RATE)
    return layout.split(accumulator.parameters.numpy())


def _by_numpy(problem: _Problem) -> list[Float32Array]:
    """RMSProp in float64 on eager gradients."""
    model = _network()
    weights = [w.astype(np.float64) for w in problem.weights]
    squares = [np.zeros_like(w) for w in weights]
    for _ in range(_STEPS):
        model.set_weights(weights)
        gradients = [np.asarray(g, np.float64) for g in _gradients(model, problem.x, problem.y)]
        squares = [_DECAY * s + (1 - _DECAY) * g**2 for s, g in zip(squares, gradients, strict=True)]
        weights = [w - _RATE * g / np.sqrt(s + _EPSILON) for w, g, s in zip(weights, gradients, squares, strict=True)]
    return [w.astype(np.float32) for w in weights]
