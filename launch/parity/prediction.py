"""Experiment 6: what does one evaluation of the network cost, eagerly, in a graph, and by Keras' predict_on_batch?"""

import time
from collections.abc import Callable

import gymnasium
import keras
import numpy as np
import tensorflow as tf
from gymnasium.vector import SyncVectorEnv

from launch.parity.finding import Finding, reported, required
from shared.types import Float32Array

_ENVIRONMENTS = 100
_MOST_RELATIVE = 1e-5

_EXPLANATION = """\
The arithmetic is the same, and so are the outputs. What differs is what surrounds a call: eager execution starts
every operation from Python, a graph starts one, and predict_on_batch wraps a graph in Keras' own handling of inputs
and outputs. In one large batch this hardly counts; for an actor, which calls once per step with a few observations,
it is most of the time. The first call is apart: it builds the graph."""

Predict = Callable[[Float32Array], Float32Array]


def run(observations: int = 100_000, batch_sizes: tuple[int, ...] = (32, 100_000), repeats: int = 3) -> Finding:
    """Evaluate a 4 → 64 → 64 → 2 network on CartPole observations of random play, in batches of each size."""
    data = _random_play(observations)
    ways = _ways()
    outputs = {name: predict(data) for name, predict in ways.items()}
    reference = outputs["eager"]
    worst = max(float(np.abs(output - reference).max() / np.abs(reference).max()) for output in outputs.values())
    rows = [
        required(
            "outputs of all three",
            f"{worst:.1e} of the largest",
            f"at most {_MOST_RELATIVE:g}",
            worst <= _MOST_RELATIVE,
        )
    ]
    seconds: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for size in batch_sizes:
        batches = [data[i : i + size] for i in range(0, len(data) - len(data) % size, size)]
        seconds[str(size)] = {}
        for name, predict in ways.items():
            predict(batches[0])
            timed = seconds[str(size)][name] = [_timed(predict, batches) for _ in range(repeats)]
            wall, cpu = np.median(timed, axis=0)
            rows.append(
                reported(
                    f"{name}: {len(batches) * size:,} observations in batches of {size:,}",
                    f"{wall:.3f} s wall, {cpu:.3f} s CPU; {1e6 * wall / len(batches):,.0f} µs a call",
                )
            )
    return Finding(
        "What does one evaluation of the network cost?",
        tuple(rows),
        _EXPLANATION,
        {"observations": observations, "largest_relative_difference": worst, "wall_and_cpu_seconds": seconds},
    )


def _ways() -> dict[str, Predict]:
    inputs = keras.Input((4,))
    x = inputs
    for i in range(2):
        x = keras.layers.Dense(64, "relu", kernel_initializer=keras.initializers.GlorotUniform(i))(x)
    model = keras.Model(inputs, keras.layers.Dense(2, kernel_initializer=keras.initializers.GlorotUniform(2))(x))
    graph = tf.function(lambda x: model(x), input_signature=[tf.TensorSpec((None, 4), tf.float32)], autograph=False)
    return {
        "eager": lambda batch: model(batch).numpy(),
        "graph": lambda batch: graph(batch).numpy(),
        "predict_on_batch": model.predict_on_batch,
    }


def _random_play(count: int) -> Float32Array:
    environments = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * _ENVIRONMENTS)
    random = np.random.default_rng(0)
    kept = [environments.reset(seed=0)[0]]
    while len(kept) * _ENVIRONMENTS < count:
        kept.append(environments.step(random.integers(0, 2, _ENVIRONMENTS))[0])
    environments.close()
    return np.concatenate(kept)[:count].astype(np.float32)


def _timed(predict: Predict, batches: list[Float32Array]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    for batch in batches:
        predict(batch)
    return time.perf_counter() - wall, time.process_time() - cpu
