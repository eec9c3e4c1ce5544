"""The bound on throughput: what one agent step costs one core in environment, acting and gradient, each alone.

Acting and gradient are measured on the plain thing: Keras layers on uint8 images that lie in memory as tensors with
channels last, one forward pass for acting, one forward and one backward pass for the gradient. What an actor adds to
that (turning images, calls, reading results) counts against it, and what it saves counts for it.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from actors.environments import EnvironmentSpec, VectorEnvironment
from shared.config import RunConfig

_REPEATS = 3
_SECONDS = 0.7
# (filters, kernel, stride) and units, written out again on purpose: this is what ours is held against.
_PLAIN = {
    "a3c_cnn": (((16, 8, 4), (32, 4, 2)), 256),
    "nature_cnn": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
}


class Components(NamedTuple):
    """e, a and g of the bound: seconds of one core per agent step, of each repeat."""

    environment: list[float]
    acting: list[float]
    gradient: list[float]

    def median(self, part: str) -> float:
        """Median of the repeats of e, a or g, by the name of its field."""
        return float(np.median(getattr(self, part)))

    def step_seconds(self) -> float:
        """e + a + g, each the median of its repeats: seconds of one core for one agent step."""
        return sum(self.median(part) for part in self._fields)

    def bound(self, cores: int) -> float:
        """Agent steps per second that so many cores cannot exceed by doing these three alone: C / (e + a + g)."""
        return cores / self.step_seconds()

    def __add__(self, other: "Components") -> "Components":  # type: ignore[override]
        """The repeats of the two measurements together."""
        return Components(*(mine + others for mine, others in zip(self, other, strict=True)))


class ComponentsBench:
    """Measures each alone, in this process and one thread, warmed up.

    Called before and after the whole system, it sees the same slow and fast minutes of a shared machine.
    """

    def __init__(self, config: RunConfig, spec: EnvironmentSpec) -> None:
        self._config, self._spec = config, spec
        self._network = _plain_network(config, spec)

    def measure(self) -> Components:
        """Repeat the measurement of e, a and g `_REPEATS` times each."""
        config, spec, network = self._config, self._spec, self._network
        return Components(_environment(config, spec), _acting(network, config, spec), _gradient(network, config, spec))


def _environment(config: RunConfig, spec: EnvironmentSpec) -> list[float]:
    count = config.actor.environments
    environment = VectorEnvironment(config.environment, count)
    # The environment as it is, without what ours does to its observations.
    inner = environment.unwrapped
    inner.reset(seed=config.seed)
    actions = np.random.default_rng(config.seed).integers(0, spec.actions.size, (1_000, count))
    turn = iter(np.tile(actions, (1_000, 1)))
    measured = _measure(lambda: inner.step(next(turn)), count)
    environment.close()
    return measured


def _acting(network: keras.Model, config: RunConfig, spec: EnvironmentSpec) -> list[float]:
    images = _images((config.actor.environments, *spec.observation_shape))
    act = tf.function(lambda x: network(x), input_signature=[tf.TensorSpec.from_tensor(images)], autograph=False)
    return _measure(lambda: act(images), len(images))


def _gradient(network: keras.Model, config: RunConfig, spec: EnvironmentSpec) -> list[float]:
    agent_steps = config.actor.environments * config.actor.unroll_length
    images = _images((agent_steps, *spec.observation_shape))
    random = np.random.default_rng(config.seed)
    actions = tf.constant(random.integers(0, spec.actions.size, agent_steps), tf.int32)
    returns = tf.constant(random.normal(size=agent_steps), tf.float32)

    def gradient(images: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            logits, values = network(images)
            values = values[:, 0]
            log_probs = tf.nn.log_softmax(logits)
            advantages = tf.stop_gradient(returns - values)
            policy = -tf.reduce_mean(tf.gather(log_probs, actions, batch_dims=1) * advantages)
            entropy = -tf.reduce_mean(tf.reduce_sum(tf.exp(log_probs) * log_probs, axis=-1))
            loss = policy + 0.5 * tf.reduce_mean(tf.square(returns - values)) - 0.01 * entropy
        return tape.gradient(loss, network.trainable_variables)

    graph = tf.function(gradient, input_signature=[tf.TensorSpec.from_tensor(images)], autograph=False)
    return _measure(lambda: graph(images), agent_steps)


def _plain_network(config: RunConfig, spec: EnvironmentSpec) -> keras.Model:
    convolutions, units = _PLAIN[config.network.name]
    policy = "mixed_bfloat16" if config.network.precision == "bfloat16" else "float32"
    inputs = keras.Input(spec.observation_shape, dtype="uint8")
    x = keras.layers.Rescaling(1 / 255, dtype=policy)(inputs)
    for filters, kernel, stride in convolutions:
        x = keras.layers.Conv2D(filters, kernel, stride, activation="relu", dtype=policy)(x)
    x = keras.layers.Dense(units, "relu", dtype=policy)(keras.layers.Flatten(dtype=policy)(x))
    heads = [keras.layers.Dense(n, dtype="float32")(x) for n in (spec.actions.size, 1)]
    return keras.Model(inputs, heads)


def _images(shape: tuple[int, ...]) -> tf.Tensor:
    return tf.constant(np.random.default_rng(0).integers(0, 256, shape, np.uint8))


def _measure(call: Callable[[], object], agent_steps: int) -> list[float]:
    """Seconds per agent step of a call that makes so many, once for each repeat."""
    for _ in range(3):
        call()
    repeats = []
    for _ in range(_REPEATS):
        calls, started = 0, time.perf_counter()
        while time.perf_counter() - started < _SECONDS:
            call()
            calls += 1
        repeats.append((time.perf_counter() - started) / (calls * agent_steps))
    return repeats
