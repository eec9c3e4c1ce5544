"""Gradients: shared graphs, accumulation, and the policy that they are computed with."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from findings import Row, conclude, timed
from rollouts import first_weights
from sessions import train_inline

from actors.environments import VectorEnvironment, environment_spec
from actors.policy import Policy
from launch.presets import PRESETS
from learner.learner import Learner
from learner.update import GradientAccumulator
from shared.config import EvaluationConfig, ExplorationConfig, LearnerConfig, OptimizerConfig, RunConfig
from shared.layout import ParameterLayout
from shared.methods.actor_critic import ActorCritic
from shared.types import Float32Array

pytestmark = [pytest.mark.parity, pytest.mark.timeout(1200)]

_TRACES = 200
_STEPS, _BATCH, _RATE, _DECAY, _EPSILON = 3, 16, 0.01, 0.9, 1e-7
Step = Callable[[tf.Tensor, tf.Tensor], None]


def test_gradient_and_update_in_one_graph() -> None:
    """A trace in which the backward pass reads weights that were already updated is wrong for good.

    TensorFlow orders the reads and writes of a variable, and its graph optimizer may drop an order that seems
    redundant. Such traces were seen with TensorFlow 2.21 and Keras 3.15; a count of 0 says that this machine, these
    versions and this network do not show the fault. The two graph calls of this project cannot have it.
    """
    problem = _problem()
    optimizers = {"SGD": keras.optimizers.SGD, "RMSprop": keras.optimizers.RMSprop, "Adam": keras.optimizers.Adam}
    names = list(optimizers)
    references = {name: _by_keras(problem, make(_RATE), _eager) for name, make in optimizers.items()}
    own_reference = _by_numpy(problem)
    wrong: dict[str, Counter[str]] = {"fused": Counter(), "controlled": Counter(), "ours": Counter()}
    for i in range(_TRACES):
        name = names[i % len(names)]
        for kind, step in (("fused", _fused), ("controlled", _controlled)):
            reached = _by_keras(problem, optimizers[name](_RATE), step)
            wrong[kind][name] += _is_wrong(reached, references[name], problem.weights)
        wrong["ours"]["RMSProp"] += _is_wrong(_by_ours(problem), own_reference, problem.weights)
    counts = {
        kind: f"{count.total()} of {_TRACES} wrong ({', '.join(f'{name} {number}' for name, number in count.items())})"
        for kind, count in wrong.items()
    }
    conclude(
        "May gradient and update share one tf.function?",
        [
            Row("gradient and Keras' apply in one tf.function", counts["fused"]),
            Row("the same, with control dependencies on the gradients", counts["controlled"]),
            Row("ours: two graph calls", counts["ours"], "0 wrong", wrong["ours"].total() == 0),
        ],
    )


def test_accumulated_gradients() -> None:
    """Sum 8 gradients of 80x80x1 images in graph variables, in NumPy, and as one batch: equal up to rounding."""
    gradients, batch, actions, repeats = 8, 16, 6, 20
    random = np.random.default_rng(0)
    model = _convolutional(actions)
    layout = ParameterLayout.of(model.trainable_variables)
    parameters = layout.flatten([variable.numpy() for variable in model.trainable_variables])
    images = random.random((gradients, batch, 80, 80, 1), np.float32)
    targets = random.normal(size=(gradients, batch, actions)).astype(np.float32)
    whole = images.reshape(-1, 80, 80, 1), targets.reshape(-1, actions)
    gradient = _gradient_graph(model, actions)

    def part(i: int) -> Float32Array:
        return gradient(images[i], targets[i]).numpy()

    def accumulator(gradients_per_update: int) -> GradientAccumulator:
        settings = OptimizerConfig(epsilon=0.1, max_gradient_norm=None)
        return GradientAccumulator(parameters, LearnerConfig(gradients_per_update=gradients_per_update), settings)

    # One more than is pushed, so that the sum is not applied.
    held = accumulator(gradients + 1)
    for i in range(gradients):
        held.push(part(i), _RATE)
    reference = gradient(*whole).numpy()
    sums = {
        "graph variables": held.accumulated.numpy(),
        "NumPy": np.sum([part(i) for i in range(gradients)], axis=0),
    }
    in_graph, one_by_one = accumulator(gradients), accumulator(1)

    def graph_cycle() -> None:
        for i in range(gradients):
            in_graph.push(part(i), _RATE)

    def numpy_cycle() -> None:
        one_by_one.push(np.sum([part(i) for i in range(gradients)], axis=0), _RATE)

    def batched_cycle() -> None:
        one_by_one.push(gradient(*whole).numpy(), _RATE)

    rows = []
    for name, total in sums.items():
        difference = float(np.abs(total - reference).max() / np.abs(reference).max())
        claim = f"accumulated in {name}, relative to the largest entry of one batch"
        rows.append(Row(claim, f"{difference:.1e}", "at most 1e-5", difference <= 1e-5))
    for name, cycle in zip((*sums, "one batch"), (graph_cycle, numpy_cycle, batched_cycle), strict=True):
        cycle()
        milliseconds = 1e3 * np.median([timed(cycle)[0] for _ in range(repeats)])
        claim = f"{name}: one cycle of {gradients} gradients of {batch} samples, and the update"
        rows.append(Row(claim, f"{milliseconds:.1f} ms (median of {repeats})"))
    conclude("Is an accumulated gradient the gradient of the whole batch?", rows)


def test_policy_in_the_loss() -> None:
    """An actor differentiates with the weights that it acted with: the ratio of the densities is 1.

    Later versions of the weights give the same actions another density, as in a learner that recomputes the loss from
    its newest weights.
    """
    ages = (0, 1, 10, 100)
    config = replace(
        PRESETS["pendulum"].config,
        stop_at_return=None,
        evaluation=EvaluationConfig(),
        exploration=ExplorationConfig(noise="independent", initial_log_std=-1.0),
    )
    versions = _versions(config, ages)
    policy = Policy(config, environment_spec(config.environment), environments=16)
    method = policy.method
    assert isinstance(method, ActorCritic)
    policy.assign(versions[0])
    observations, actions = _play(config, policy)
    mean = policy.greedy(observations).actions.astype(np.float32)
    noise = (actions - mean) / np.exp(np.float32(-1.0))
    behaviour_log_probs = np.sum(-0.5 * noise**2 + 1.0 - 0.5 * np.log(2.0 * np.pi), axis=-1)
    rows = []
    for age in ages:
        policy.assign(versions[age])
        output = policy.network(tf.constant(observations))
        log_ratio = method.log_prob(output, tf.constant(actions)).numpy() - behaviour_log_probs
        if age == 0:
            largest = float(np.abs(log_ratio).max())
            claim = "same version: largest |log π in the loss - log π while acting|"
            rows.append(Row(claim, f"{largest:.1e}", "at most 1e-4", largest <= 1e-4))
        else:
            low, high = np.percentile(np.exp(log_ratio), (5, 95))
            rows.append(Row(f"{age} updates later: 90 % of the ratios", f"between {low:.3f} and {high:.3f}"))
    conclude("Are μ and σ in the loss those that acted?", rows)


class _Problem(NamedTuple):
    x: tf.Tensor
    y: tf.Tensor
    weights: list[Float32Array]


def _problem() -> _Problem:
    random = np.random.default_rng(0)
    return _Problem(
        tf.constant(random.normal(size=(_BATCH, 4)), tf.float32),
        tf.constant(random.normal(size=(_BATCH, 2)), tf.float32),
        [random.normal(0.0, 0.3, weights.shape).astype(np.float32) for weights in _perceptron().get_weights()],
    )


def _perceptron() -> keras.Model:
    inputs = keras.Input((4,))
    x = keras.layers.Dense(64, "relu")(inputs)
    x = keras.layers.Dense(64, "relu")(x)
    return keras.Model(inputs, keras.layers.Dense(2)(x))


def _is_wrong(reached: Sequence[Float32Array], expected: Sequence[Float32Array], start: Sequence[Float32Array]) -> bool:
    """Whether weights are off by over a thousandth of their change: rounding is far below, the fault far above."""
    return any(
        np.abs(r - e).max() > 1e-3 * np.abs(e - s).max() for r, e, s in zip(reached, expected, start, strict=True)
    )


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
    model = _perceptron()
    model.set_weights(problem.weights)
    optimizer.build(model.trainable_variables)
    step = make_step(model, optimizer)
    for _ in range(_STEPS):
        step(problem.x, problem.y)
    return model.get_weights()


def _by_ours(problem: _Problem) -> list[Float32Array]:
    model = _perceptron()
    layout = ParameterLayout.of(model.trainable_variables)
    settings = OptimizerConfig(decay=_DECAY, epsilon=_EPSILON, max_gradient_norm=None)
    accumulator = GradientAccumulator(layout.flatten(problem.weights), LearnerConfig(), settings)
    gradient = tf.function(lambda x, y: _gradients(model, x, y), autograph=False)
    for _ in range(_STEPS):
        model.set_weights(layout.split(accumulator.parameters.numpy()))
        accumulator.push(layout.flatten([g.numpy() for g in gradient(problem.x, problem.y)]), _RATE)
    return layout.split(accumulator.parameters.numpy())


def _by_numpy(problem: _Problem) -> list[Float32Array]:
    model = _perceptron()
    weights = [w.astype(np.float64) for w in problem.weights]
    squares = [np.zeros_like(w) for w in weights]
    for _ in range(_STEPS):
        model.set_weights(weights)
        gradients = [np.asarray(g, np.float64) for g in _gradients(model, problem.x, problem.y)]
        squares = [_DECAY * s + (1 - _DECAY) * g**2 for s, g in zip(squares, gradients, strict=True)]
        weights = [w - _RATE * g / np.sqrt(s + _EPSILON) for w, g, s in zip(weights, gradients, squares, strict=True)]
    return [w.astype(np.float32) for w in weights]


def _convolutional(outputs: int) -> keras.Model:
    """8x8x32 convolution with stride 4, ReLU, 2x2 max-pool, fully connected."""
    inputs = keras.Input((80, 80, 1))
    start = keras.initializers.GlorotUniform(1)
    x = keras.layers.Conv2D(32, 8, 4, padding="same", activation="relu", kernel_initializer=start)(inputs)
    x = keras.layers.Flatten()(keras.layers.MaxPooling2D(2)(x))
    return keras.Model(inputs, keras.layers.Dense(outputs, kernel_initializer=keras.initializers.GlorotUniform(2))(x))


def _gradient_graph(model: keras.Model, outputs: int) -> Callable[[Float32Array, Float32Array], tf.Tensor]:
    def gradient(images: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(images) - targets))
        return tf.concat([tf.reshape(g, [-1]) for g in tape.gradient(loss, model.trainable_variables)], axis=0)

    signature = [tf.TensorSpec((None, 80, 80, 1), tf.float32), tf.TensorSpec((None, outputs), tf.float32)]
    return tf.function(gradient, input_signature=signature, autograph=False)


def _versions(config: RunConfig, ages: tuple[int, ...]) -> dict[int, Float32Array]:
    versions = {0: first_weights(config)}

    def done(learner: Learner) -> bool:
        if learner.version in ages:
            versions[learner.version] = learner.snapshot().parameters
        return learner.version >= max(ages)

    train_inline(config, done)
    return versions


def _play(config: RunConfig, policy: Policy) -> tuple[Float32Array, Float32Array]:
    environments = VectorEnvironment(config.environment, 16)
    observation = environments.reset(config.seed)
    observations, actions = [], []
    for _ in range(32):
        action = policy.act(observation).actions
        observations.append(observation)
        actions.append(action)
        observation = environments.step(action).observations
    environments.close()
    return np.concatenate(observations).astype(np.float32), np.concatenate(actions).astype(np.float32)
