"""Environment, acting, gradient and learner, each alone on one core, in a process of their own.

The first three are parts of the bound, in plain Keras. The learner takes one constant gradient after another: its
admission, accumulation, clipping and optimizer, without the transport, of which a call costs 0.04 ms on one machine.
For GPU actors the first three are not measured; the emulators of all of them are, on all cores.
"""

import itertools
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from actors.environments import EnvironmentSpec, VectorEnvironment
from actors.environments.spaces import random_actions
from launch.machine import ThreadBudget, module_command, module_environment
from launch.tensorflow_setup import prepare_tensorflow
from shared.config import RunConfig
from shared.config.training import VECTORS
from shared.errors import ConfigurationError, EnvironmentFailedError
from shared.types import EpisodeStats, GradientReport, StageSeconds

if TYPE_CHECKING:
    import keras

_REPEATS, _SECONDS = 3, 0.7
_WARM_UP_CALLS = 3
# (filters, kernel, stride) and units. Not taken from shared.networks: the reference must not change with our networks.
PLAIN_NETWORKS = {
    "a3c_cnn": (((16, 8, 4), (32, 4, 2)), 256),
    "nature_cnn": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
}
# An actor-critic reports about as many statistics with each gradient.
_STATISTICS = {f"statistic {number}": 0.5 for number in range(8)}

Alone = dict[str, list[float]]
"""Seconds of each part, by repeats: of one core per agent step of environment, acting and gradient, where the bound is
known; per gradient of the learner; per agent step of the emulators of all GPU actors together."""
BOUND_PARTS = "environment", "acting", "gradient"
"""Parts with the seconds e, a and E·g of the bound."""


def has_bound(config: RunConfig, spec: EnvironmentSpec) -> bool:
    """True if the bound can be measured: the plain networks are for images of Atari games, without a memory.

    The plain networks compute on the CPU, which is no yardstick for actors on a GPU.
    """
    plain = config.network.name in PLAIN_NETWORKS and config.network.recurrent == "none"
    return plain and spec.has_lives and config.actor.device != "gpu"


def measure_alone(config: RunConfig, spec: EnvironmentSpec, budget: ThreadBudget) -> tuple[Alone, int]:
    """Measure the parts in a process, in turn, each in one thread but for emulators.

    Returns the seconds, and the number of parameters.
    """
    # Files, and no pipe: an interrupt in the middle of a message would have the process end with a traceback.
    with tempfile.TemporaryDirectory(prefix="tributary-bench-") as folder:
        call, result = Path(folder, "call"), Path(folder, "result")
        call.write_bytes(pickle.dumps((config, spec, budget)))
        command = module_command("launch.bench.alone", str(call), str(result))
        # In a group of its own, which no Ctrl-C reaches: this process ends it then.
        subprocess.run(command, stdin=subprocess.DEVNULL, env=module_environment(), process_group=0, check=False)
        if not result.is_file():
            raise ConfigurationError("the parts could not be measured alone: their process died")
        measured: tuple[Alone, int] | EnvironmentFailedError = pickle.loads(result.read_bytes())
    if isinstance(measured, EnvironmentFailedError):
        raise measured
    return measured


def _measured(
    config: RunConfig, spec: EnvironmentSpec, budget: ThreadBudget
) -> tuple[Alone, int] | EnvironmentFailedError:
    prepare_tensorflow(gpu=False)
    try:
        works = make_works(config, spec) if has_bound(config, spec) else {}
        works["learner"], parameters = learner_work(config, spec)
        if budget.emulator_threads and spec.has_lives:
            works["emulators"] = emulators_work(config, spec, budget)
        for work in works.values():
            for _ in range(_WARM_UP_CALLS):
                work.call()
        repeats = [{part: seconds_of(work) for part, work in works.items()} for _ in range(_REPEATS)]
        return {part: [repeat[part] for repeat in repeats] for part in works}, parameters
    except EnvironmentFailedError as error:
        return error


class Work(NamedTuple):
    """A call to measure, and the number of agent steps, or of gradients, that it accounts for."""

    call: Callable[[], object]
    units: int


def seconds_of(work: Work) -> float:
    """Seconds of an agent step or gradient: the mean over calls for `_SECONDS`."""
    began, calls = time.perf_counter(), 0
    while not calls or time.perf_counter() - began < _SECONDS:
        work.call()
        calls += 1
    return (time.perf_counter() - began) / (calls * work.units)


def learner_work(config: RunConfig, spec: EnvironmentSpec) -> tuple[Work, int]:
    """The learner of one constant gradient, and the number of its parameters. Imports TensorFlow."""
    from actors.policy import Policy
    from learner.learner import Learner

    # Without the observations that their means and moments are measured from.
    config = replace(config, network=replace(config.network, centre_observations=False, observation_scaling="none"))
    policy = Policy(config, spec)
    parameters, layout = policy.initial_parameters(), policy.layout
    learner = Learner(config, layout, parameters)
    gradient = np.random.default_rng(config.seed).normal(0.0, 1e-3, parameters.size).astype(np.float32)
    agent_steps = config.actor.environments * config.actor.unroll_length
    report = GradientReport(
        actor_id=0,
        sequence=0,
        version=0,
        layout_fingerprint=layout.fingerprint,
        gradient=gradient,
        agent_steps=agent_steps,
        samples=agent_steps,
        episodes=EpisodeStats(np.empty(0, np.float64), np.empty(0, np.int64)),
        stage_seconds=StageSeconds(),
        statistics=_STATISTICS,
    )
    numbers = itertools.count(1)

    def submit() -> int:
        learner.submit(report._replace(sequence=next(numbers), version=learner.version))
        # The loop takes one of each version, to publish it.
        return learner.snapshot().version

    return Work(submit, 1), int(parameters.size)


def emulators_work(config: RunConfig, spec: EnvironmentSpec, budget: ThreadBudget) -> Work:
    """Random actions in all vectors of all GPU actors, which are emulated at once; each waits for its turn to go on."""
    from actors.device_player import EmulatedVector

    generator, count = np.random.default_rng(config.seed), config.actor.environments // VECTORS
    seeds = np.arange(budget.actors * VECTORS * count).reshape(-1, count)
    vectors = [EmulatedVector(config, of_one, budget.emulator_threads, newest_frame=True) for of_one in seeds]

    def begin(vector: EmulatedVector) -> None:
        vector.begin_step(random_actions(spec.actions, count, generator))

    def step() -> None:
        for vector in vectors:
            vector.end_step()
            begin(vector)

    for vector in vectors:
        begin(vector)
    return Work(step, seeds.size)


def make_works(config: RunConfig, spec: EnvironmentSpec) -> dict[str, Work]:
    """Environment, acting and gradient of one actor in plain Keras, by name. Imports TensorFlow."""
    import tensorflow as tf

    actor, random = config.actor, np.random.default_rng(config.seed)
    environment = VectorEnvironment(config.environment, actor.environments)
    # The environment itself, without the processing of its observations.
    environment.unwrapped.reset(seed=config.seed)
    turn = itertools.cycle(random.integers(0, spec.actions.size, (1_000, actor.environments)))

    def images(count: int) -> tf.Tensor:
        return tf.constant(random.integers(0, 256, (count, *spec.observation_shape), np.uint8))

    policy, observed = _plain_network(config, spec), images(actor.environments)
    act = tf.function(lambda x: policy(x), input_signature=[tf.TensorSpec.from_tensor(observed)], autograph=False)

    agent_steps = actor.environments * actor.unroll_length // actor.minibatches
    network, batch = _plain_network(config, spec), images(agent_steps)
    actions = tf.constant(random.integers(0, spec.actions.size, agent_steps), tf.int32)
    returns = tf.constant(random.normal(size=agent_steps), tf.float32)

    def gradient(batch: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            logits, values = network(batch)
            values = values[:, 0]
            log_probs = tf.nn.log_softmax(logits)
            advantages = tf.stop_gradient(returns - values)
            policy_loss = -tf.reduce_mean(tf.gather(log_probs, actions, batch_dims=1) * advantages)
            entropy = -tf.reduce_mean(tf.reduce_sum(tf.exp(log_probs) * log_probs, axis=-1))
            loss = policy_loss + 0.5 * tf.reduce_mean(tf.square(returns - values)) - 0.01 * entropy
        return tape.gradient(loss, network.trainable_variables)

    graph = tf.function(gradient, input_signature=[tf.TensorSpec.from_tensor(batch)], autograph=False)
    return {
        "environment": Work(lambda: environment.unwrapped.step(next(turn)), actor.environments),
        "acting": Work(lambda: act(observed), actor.environments),
        "gradient": Work(lambda: [graph(batch) for _ in range(actor.epochs)], agent_steps),
    }


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


if __name__ == "__main__":
    call, result = map(Path, sys.argv[1:])
    result.write_bytes(pickle.dumps(_measured(*pickle.loads(call.read_bytes()))))
