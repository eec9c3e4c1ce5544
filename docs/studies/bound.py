"""The bound of the cores for an Atari game, and the fraction of it that the whole system reaches, learning included.

    python docs/studies/bound.py [PRESET] [SETTINGS] [--seconds 15] [--json FILE]

The bound on C cores is C / (e + a + E·g) agent steps per second, where e, a and g are the seconds of one core that an
agent step takes in the environment, in acting and in the gradient, each alone and in plain Keras, and E is the number
of epochs; see docs/throughput.md. They are measured before `tributary bench throughput` and after it again, so that a
slow minute of a shared machine is in both. Two minutes, in which nothing else should run.
"""

import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from actors.environments import EnvironmentSpec, VectorEnvironment, atari_game, environment_spec
from launch.bench.throughput import ThroughputArguments, busy_reasons
from launch.machine import thread_budget, usable_cores
from launch.settings.parse import parse
from launch.settings.resolve import divided_among, resolve_request
from launch.tensorflow_setup import prepare_tensorflow
from shared.config import RunConfig

prepare_tensorflow(gpu=False)
import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

_REPEATS, _SECONDS = 3, 0.7
_WARM_UP_CALLS = 3
# (filters, kernel, stride) and units. Not taken from shared.networks: the reference must not change with our networks.
PLAIN_NETWORKS = {
    "a3c_cnn": (((16, 8, 4), (32, 4, 2)), 256),
    "nature_cnn": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
}

Alone = dict[str, list[float]]
"""Seconds of one core per agent step of environment, acting and gradient, by repeats."""


class Work(NamedTuple):
    """A call to measure, and the number of agent steps that it accounts for."""

    call: Callable[[], object]
    units: int


def measure_alone(works: Mapping[str, Work]) -> Alone:
    """Measure the parts in turn."""
    for work in works.values():
        for _ in range(_WARM_UP_CALLS):
            work.call()
    repeats = [{part: seconds_of(work) for part, work in works.items()} for _ in range(_REPEATS)]
    return {part: [repeat[part] for repeat in repeats] for part in works}


def seconds_of(work: Work) -> float:
    """Seconds of an agent step: the mean over calls for `_SECONDS`."""
    began, calls = time.perf_counter(), 0
    while not calls or time.perf_counter() - began < _SECONDS:
        work.call()
        calls += 1
    return (time.perf_counter() - began) / (calls * work.units)


def bound_figures(measured: Alone, cores: int, rate: float) -> dict[str, Any]:
    """The bound of `cores` by medians, and the fraction of it that `rate` is."""
    seconds = {part: float(np.median(repeats)) for part, repeats in measured.items()}
    bound = cores / sum(seconds.values())
    return {
        "bound_cores": cores,
        "bound_agent_steps_per_second": bound,
        "fraction_of_bound": rate / bound,
        "alone": {
            "seconds_per_step": seconds,
            "least_and_most_seconds_per_step": {part: (min(measured[part]), max(measured[part])) for part in seconds},
        },
    }


def make_works(config: RunConfig, spec: EnvironmentSpec) -> dict[str, Work]:
    """Environment, acting and gradient of one actor in plain Keras, by name."""
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


def _plain_network(config: RunConfig, spec: EnvironmentSpec) -> keras.Model:
    """Policy logits and values [N, …] of images [N, …]."""

    def activated(x: keras.KerasTensor) -> keras.KerasTensor:
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


def main(words: Sequence[str]) -> None:
    arguments = parse(ThroughputArguments, "bench throughput", words)
    run = resolve_request(arguments.request()).config
    spec, actors = environment_spec(run.environment), thread_budget(run).actors
    is_atari = atari_game(run.environment.id) is not None
    if run.network.name not in PLAIN_NETWORKS or run.network.recurrent != "none" or not is_atari:
        sys.exit(f"the bound is known for Atari games with the networks {', '.join(PLAIN_NETWORKS)}, without a memory")
    works = make_works(divided_among(run, actors), spec)
    before = measure_alone(works)
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, "-m", "launch.cli", "bench", "throughput", *words, "--json", file.name]
        subprocess.run(command, check=True)
        system = json.loads(Path(file.name).read_text(encoding="utf-8"))
    after = measure_alone(works)
    sums = [sum(float(np.median(repeats)) for repeats in alone.values()) for alone in (before, after)]
    # With fewer actors than cores, the other cores are the learner's.
    cores, rate = min(usable_cores(), actors), system["agent_steps_per_second"]
    figures = bound_figures({part: before[part] + after[part] for part in before}, cores, rate)
    for part, seconds in figures["alone"]["seconds_per_step"].items():
        print(f"{part + ' alone':<18} {1e6 * seconds:.1f} µs per agent step and core")
    print(f"bound              {figures['bound_agent_steps_per_second']:,.0f} agent steps/s on {cores} cores")
    print(f"fraction of bound  {figures['fraction_of_bound']:.3f}")
    for reason in (busy := busy_reasons(None, {"the bound": sums})):
        print(f"busy machine: {reason}")
    if arguments.json is not None:
        result = system | figures | {"busy": system["busy"] + busy}
        arguments.json.write_text(json.dumps(result, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
