"""The bound of the machine's cores: environment, acting and gradient in plain Keras, in a process of their own."""

import itertools
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from actors.environments import EnvironmentSpec, VectorEnvironment
from launch.interrupts import blocked
from launch.tensorflow_setup import prepare_tensorflow
from shared.config import RunConfig
from shared.errors import ConfigurationError, EnvironmentFailedError

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

_REPEATS = 3
_WARM_UP_CALLS = 3
# (filters, kernel, stride) and units. Not taken from shared.networks: the reference must not change with our networks.
PLAIN_NETWORKS = {
    "a3c_cnn": (((16, 8, 4), (32, 4, 2)), 256),
    "nature_cnn": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
}

Components = dict[str, list[float]]
"""Environment, acting and gradient: e, a and E·g of the bound in seconds of one core per agent step, by repeats."""


def has_bound(config: RunConfig, spec: EnvironmentSpec) -> bool:
    """Whether the bound can be measured: the plain networks are for images of Atari games, without a memory."""
    network = config.network
    return spec.has_lives and network.name in PLAIN_NETWORKS and network.recurrent == "none"


def measure_components(config: RunConfig, spec: EnvironmentSpec, seconds: float = 0.7) -> Components:
    """Measure the components in a process of one thread, in turn. A repeat takes `seconds`."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_measure, args=(theirs, config, spec, seconds), daemon=True)
    with _interrupts_blocked():
        process.start()
    theirs.close()
    try:
        measured = ours.recv()
    except (EOFError, OSError) as error:
        raise ConfigurationError("environment, acting and gradient could not be measured: a process died") from error
    finally:
        process.terminate()
        process.join()
    if isinstance(measured, EnvironmentFailedError):
        raise measured
    return measured


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C for the process that is started within: it is ended from here, without a traceback of its own.

    Another thread of this process, which does not block it, may take the signal: it is raised at the end, so that no
    process is left half started.
    """
    interrupts: list[int] = []
    # The first spawned process starts this one, which would unblock the interrupts.
    resource_tracker.ensure_running()
    handler = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        with blocked(signal.SIGINT):
            yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if interrupts:
        raise KeyboardInterrupt


def _measure(connection: Connection, config: RunConfig, spec: EnvironmentSpec, seconds: float) -> None:
    """Send the components, or the error of an environment."""
    prepare_tensorflow(gpu=False)
    try:
        works = make_works(config, spec)
        for work in works.values():
            for _ in range(_WARM_UP_CALLS):
                work.call()
        repeats = [
            {part: seconds_per_agent_step(work, seconds) for part, work in works.items()} for _ in range(_REPEATS)
        ]
        connection.send({part: [repeat[part] for repeat in repeats] for part in works})
    except EnvironmentFailedError as error:
        connection.send(error)


class Work(NamedTuple):
    """A call to measure, and the number of agent steps that it accounts for."""

    call: Callable[[], object]
    agent_steps: int


def seconds_per_agent_step(work: Work, seconds: float, clock: Callable[[], float] = time.perf_counter) -> float:
    """The mean over the calls of `seconds`, of which there is at least one."""
    began, calls = clock(), 0
    while not calls or clock() - began < seconds:
        work.call()
        calls += 1
    return (clock() - began) / (calls * work.agent_steps)


def make_works(config: RunConfig, spec: EnvironmentSpec) -> dict[str, Work]:
    """Environment, acting and gradient of one actor in plain Keras, by name. Imports TensorFlow."""
    import tensorflow as tf

    actor, random = config.actor, np.random.default_rng(config.seed)
    environment = VectorEnvironment(config.environment, actor.environments)
    # The environment itself, without the processing of its observations.
    environment.unwrapped.reset(seed=config.seed)
    turn = itertools.cycle(random.integers(0, spec.actions.size, (1_000, actor.environments)))

    policy = _plain_network(config, spec)
    observed = _images((actor.environments, *policy.input_shape[1:]))
    act = tf.function(lambda x: policy(x), input_signature=[tf.TensorSpec.from_tensor(observed)], autograph=False)

    agent_steps = actor.environments * actor.unroll_length // actor.minibatches
    network = _plain_network(config, spec)
    images = _images((agent_steps, *network.input_shape[1:]))
    actions = tf.constant(random.integers(0, spec.actions.size, agent_steps), tf.int32)
    returns = tf.constant(random.normal(size=agent_steps), tf.float32)

    def gradient(images: "tf.Tensor") -> "list[tf.Tensor]":
        with tf.GradientTape() as tape:
            logits, values = network(images)
            values = values[:, 0]
            log_probs = tf.nn.log_softmax(logits)
            advantages = tf.stop_gradient(returns - values)
            policy_loss = -tf.reduce_mean(tf.gather(log_probs, actions, batch_dims=1) * advantages)
            entropy = -tf.reduce_mean(tf.reduce_sum(tf.exp(log_probs) * log_probs, axis=-1))
            loss = policy_loss + 0.5 * tf.reduce_mean(tf.square(returns - values)) - 0.01 * entropy
        return tape.gradient(loss, network.trainable_variables)

    graph = tf.function(gradient, input_signature=[tf.TensorSpec.from_tensor(images)], autograph=False)
    return {
        "environment": Work(lambda: environment.unwrapped.step(next(turn)), actor.environments),
        "acting": Work(lambda: act(observed), actor.environments),
        "gradient": Work(lambda: [graph(images) for _ in range(actor.epochs)], agent_steps),
    }


def _images(shape: tuple[int, ...]) -> "tf.Tensor":
    import tensorflow as tf

    return tf.constant(np.random.default_rng(0).integers(0, 256, shape, np.uint8))


def _plain_network(config: RunConfig, spec: EnvironmentSpec) -> "keras.Model":
    """Policy logits and values [N, …] of images [N, …]."""
    import keras

    def activated(x: "keras.KerasTensor") -> "keras.KerasTensor":
        """ReLU of x, layer-normalised before if the settings have it."""
        if config.network.layer_norm:
            x = keras.layers.LayerNormalization(list(range(1, len(x.shape))), 1e-5)(x)
        return keras.layers.ReLU()(x)

    inputs = keras.Input(spec.observation_shape, dtype="uint8")
    x = keras.layers.Rescaling(1 / 255)(inputs)
    convolutions, units = PLAIN_NETWORKS[config.network.name]
    for filters, kernel, stride in convolutions:
        x = activated(keras.layers.Conv2D(filters, kernel, stride)(x))
    x = activated(keras.layers.Dense(units)(keras.layers.Flatten()(x)))
    return keras.Model(inputs, [keras.layers.Dense(n, dtype="float32")(x) for n in (spec.actions.size, 1)])
