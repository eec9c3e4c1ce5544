"""Experiment 5: is a gradient that was accumulated in graph variables the gradient of the whole batch?"""

import time
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from launch.parity.finding import Finding, reported, required
from learner.accumulator import GradientAccumulator
from shared.config import LearnerConfig, OptimizerConfig
from shared.layout import ParameterLayout
from shared.types import Float32Array

_GRADIENTS, _BATCH, _ACTIONS = 8, 16, 6
_MOST_RELATIVE = 1e-5
_RATE = 1e-4

_EXPLANATION = """\
A sum over samples can be taken in parts, so all three are the same gradient up to rounding. They differ in time.
One batched rollout gives the convolutions the most work at once, and is one call. In graph variables each part
costs a graph call, through NumPy an addition by one thread; for a small network the addition is cheaper, and for a
large one both are lost beside the gradient. Asynchronous actors cannot batch: their gradients come one by one. The
learner adds them in a variable so that adding, applying and resetting are one call, and nothing is ever applied
half."""


def run(repeats: int = 20) -> Finding:
    """Compare on 80x80x1 images: 8x8x32 convolution with stride 4, ReLU, 2x2 max-pool, fully connected."""
    random = np.random.default_rng(0)
    model = _network()
    layout = ParameterLayout.of(model.trainable_variables)
    parameters = layout.flatten([variable.numpy() for variable in model.trainable_variables])
    images = random.random((_GRADIENTS, _BATCH, 80, 80, 1), np.float32)
    targets = random.normal(size=(_GRADIENTS, _BATCH, _ACTIONS)).astype(np.float32)
    whole = images.reshape(-1, 80, 80, 1), targets.reshape(-1, _ACTIONS)
    gradient = _gradient_graph(model)

    def part(i: int) -> Float32Array:
        return gradient(images[i], targets[i]).numpy()

    def accumulator(gradients_per_update: int) -> GradientAccumulator:
        settings = OptimizerConfig(epsilon=0.1, max_gradient_norm=None)
        return GradientAccumulator(parameters, LearnerConfig(gradients_per_update=gradients_per_update), settings)

    # One more than there are: the sum stays, to be looked at.
    held = accumulator(_GRADIENTS + 1)
    for i in range(_GRADIENTS):
        held.push(part(i), _RATE)
    sums = {
        "graph variables": held.accumulated.numpy(),
        "NumPy": np.sum([part(i) for i in range(_GRADIENTS)], axis=0),
        "one batched rollout": gradient(*whole).numpy(),
    }
    in_graph, one_by_one = accumulator(_GRADIENTS), accumulator(1)

    def graph_cycle() -> None:
        for i in range(_GRADIENTS):
            in_graph.push(part(i), _RATE)

    def numpy_cycle() -> None:
        total = part(0).copy()
        for i in range(1, _GRADIENTS):
            total += part(i)
        one_by_one.push(total, _RATE)

    def batched_cycle() -> None:
        one_by_one.push(gradient(*whole).numpy(), _RATE)

    cycles = {"graph variables": graph_cycle, "NumPy": numpy_cycle, "one batched rollout": batched_cycle}
    seconds = {name: _seconds(cycle, repeats) for name, cycle in cycles.items()}
    reference = sums["one batched rollout"]
    differences = {
        name: relative_difference(total, reference) for name, total in sums.items() if total is not reference
    }
    return Finding(
        "Is an accumulated gradient the gradient of the whole batch?",
        (
            *(
                required(
                    f"accumulated in {name}, against one batched rollout",
                    f"{difference:.1e} of the largest entry",
                    f"at most {_MOST_RELATIVE:g}",
                    difference <= _MOST_RELATIVE,
                )
                for name, difference in differences.items()
            ),
            *(
                reported(
                    f"{name}: one cycle of {_GRADIENTS} gradients of {_BATCH} samples, and the update",
                    f"{1e3 * np.median(values):.1f} ms (median of {repeats})",
                )
                for name, values in seconds.items()
            ),
        ),
        _EXPLANATION,
        {"parameters": layout.size, "relative_differences": differences, "cycle_seconds": seconds},
    )


def relative_difference(a: Float32Array, b: Float32Array) -> float:
    """Largest difference, relative to the largest entry of `b`."""
    return float(np.abs(a - b).max() / np.abs(b).max())


def _network() -> keras.Model:
    def start(seed: int) -> keras.initializers.Initializer:
        return keras.initializers.GlorotUniform(seed)

    inputs = keras.Input((80, 80, 1))
    x = keras.layers.Conv2D(32, 8, 4, padding="same", activation="relu", kernel_initializer=start(1))(inputs)
    x = keras.layers.MaxPooling2D(2)(x)
    x = keras.layers.Flatten()(x)
    return keras.Model(inputs, keras.layers.Dense(_ACTIONS, kernel_initializer=start(2))(x))


def _gradient_graph(model: keras.Model) -> Callable[[Float32Array, Float32Array], tf.Tensor]:
    def gradient(images: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(images) - targets))
        return tf.concat([tf.reshape(g, [-1]) for g in tape.gradient(loss, model.trainable_variables)], axis=0)

    signature = [tf.TensorSpec((None, 80, 80, 1), tf.float32), tf.TensorSpec((None, _ACTIONS), tf.float32)]
    return tf.function(gradient, input_signature=signature, autograph=False)


def _seconds(cycle: Callable[[], None], repeats: int) -> list[float]:
    cycle()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        cycle()
        seconds.append(time.perf_counter() - started)
    return seconds
