"""Environment, acting and gradient of an actor, done plainly: what the system is held against.

Keras layers on uint8 images that lie in memory as tensors with channels last, one forward pass for acting, one forward
and one backward pass for the gradient in each epoch, by minibatches. A memory is Keras' LSTM: over one time to act,
over whole sequences for the gradient. What an actor adds to that (turning images, calls, reading results) counts
against it, and what it saves counts for it.
"""

import itertools

import keras
import numpy as np
import tensorflow as tf

from actors.environments import EnvironmentSpec, VectorEnvironment
from launch.bench.work import Work
from shared.config import RunConfig

# (filters, kernel, stride) and units, written out again on purpose: this is what ours is held against.
_NETWORKS = {
    "a3c_cnn": (((16, 8, 4), (32, 4, 2)), 256),
    "nature_cnn": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
}


def make_works(config: RunConfig, spec: EnvironmentSpec) -> dict[str, Work]:
    """Environment, acting and gradient of an actor, by name."""
    return {
        "environment": _environment(config, spec),
        "acting": _acting(config, spec),
        "gradient": _gradient(config, spec),
    }


def _environment(config: RunConfig, spec: EnvironmentSpec) -> Work:
    count = config.actor.environments
    environment = VectorEnvironment(config.environment, count)
    # The environment as it is, without what ours does to its observations.
    environment.unwrapped.reset(seed=config.seed)
    actions = np.random.default_rng(config.seed).integers(0, spec.actions.size, (1_000, count))
    turn = itertools.cycle(actions)
    return Work(lambda: environment.unwrapped.step(next(turn)), count)


def _acting(config: RunConfig, spec: EnvironmentSpec) -> Work:
    network = _plain_network(config, spec, times=1)
    images = _images((config.actor.environments, *network.input_shape[1:]))
    act = tf.function(lambda x: network(x), input_signature=[tf.TensorSpec.from_tensor(images)], autograph=False)
    return Work(lambda: act(images), len(images))


def _gradient(config: RunConfig, spec: EnvironmentSpec) -> Work:
    actor = config.actor
    agent_steps = actor.environments * actor.unroll_length // actor.minibatches
    times = actor.unroll_length if _remembers(config) else 1
    network = _plain_network(config, spec, times)
    images = _images((agent_steps // times, *network.input_shape[1:]))
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
    return Work(lambda: [graph(images) for _ in range(actor.epochs)], agent_steps)


def _remembers(config: RunConfig) -> bool:
    return config.network.recurrent != "none"


def _plain_network(config: RunConfig, spec: EnvironmentSpec, times: int) -> keras.Model:
    """Policy logits and values [N, …] of images [N, …]; with a memory of sequences, [N / times, times, …]."""
    policy = "mixed_bfloat16" if config.network.precision == "bfloat16" else "float32"
    sequence = (times,) if _remembers(config) else ()
    inputs = keras.Input((*sequence, *spec.observation_shape), dtype="uint8")
    images = keras.ops.reshape(inputs, (-1, *spec.observation_shape)) if sequence else inputs
    x = keras.layers.Rescaling(1 / 255, dtype=policy)(images)
    x = _residual(x, config, policy) if config.network.name == "impala_resnet" else _convolutional(x, config, policy)
    if sequence:
        steps = keras.ops.reshape(x, (-1, times, x.shape[-1]))
        remembered = keras.layers.LSTM(config.network.recurrent_units, return_sequences=True, dtype="float32")(steps)
        x = keras.ops.reshape(remembered, (-1, config.network.recurrent_units))
    heads = [keras.layers.Dense(n, dtype="float32")(x) for n in (spec.actions.size, 1)]
    return keras.Model(inputs, heads)


def _convolutional(x: keras.KerasTensor, config: RunConfig, policy: str) -> keras.KerasTensor:
    convolutions, units = _NETWORKS[config.network.name]
    relu = None if config.network.layer_norm else "relu"
    for filters, kernel, stride in convolutions:
        x = keras.layers.Conv2D(filters, kernel, stride, activation=relu, dtype=policy)(x)
        x = x if relu else _normalised_relu(x, policy)
    x = keras.layers.Dense(units, relu, dtype=policy)(keras.layers.Flatten(dtype=policy)(x))
    return x if relu else _normalised_relu(x, policy)


def _residual(x: keras.KerasTensor, config: RunConfig, policy: str) -> keras.KerasTensor:
    def activated(x: keras.KerasTensor) -> keras.KerasTensor:
        return _normalised_relu(x, policy) if config.network.layer_norm else keras.layers.ReLU(dtype=policy)(x)

    for filters in (16, 32, 32):
        x = keras.layers.Conv2D(filters, 3, padding="same", dtype=policy)(x)
        x = keras.layers.MaxPooling2D(3, 2, "same", dtype=policy)(x)
        for _ in range(2):
            before = x
            for _ in range(2):
                x = keras.layers.Conv2D(filters, 3, padding="same", dtype=policy)(activated(x))
            x = keras.layers.Add(dtype=policy)([before, x])
    x = keras.layers.Flatten(dtype=policy)(activated(x))
    return activated(keras.layers.Dense(256, dtype=policy)(x))


def _normalised_relu(x: keras.KerasTensor, policy: str) -> keras.KerasTensor:
    x = keras.layers.LayerNormalization(list(range(1, len(x.shape))), 1e-5, dtype=policy)(x)
    return keras.layers.ReLU(dtype=policy)(x)


def _images(shape: tuple[int, ...]) -> tf.Tensor:
    return tf.constant(np.random.default_rng(0).integers(0, 256, shape, np.uint8))
