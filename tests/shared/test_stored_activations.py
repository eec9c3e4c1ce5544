"""Gradients from the activations of acting against those of a forward pass of their own."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from shared.config import NetworkConfig
from shared.networks import Head, Network, NetworkOutput
from shared.networks.composed import MultiInputNetwork
from shared.networks.convolutional import ConvolutionalNetwork
from shared.networks.recurrent import RecurrentNetwork
from shared.networks.stored_activations import StoredActivations
from shared.types import ImagePart, ObservationParts

HEADS = (Head("policy", 6, 0.01), Head("value", 1, 1.0))
T, B = 3, 2
# A reset at time 1 of environment 0.
MASK = np.array([[1, 1], [0, 1], [1, 1]], np.float32)
PARTS = ObservationParts((("speed", 3),), (ImagePart("left", (36, 36, 1)), ImagePart("right", (40, 40, 3))))


def convolutional(name: str, layer_norm: bool, heads: tuple[Head, ...] = HEADS) -> Network:
    return ConvolutionalNetwork(NetworkConfig(name=name, layer_norm=layer_norm), (84, 84, 4), heads, 1)


def multi_input(layer_norm: bool) -> Network:
    return MultiInputNetwork(NetworkConfig(layer_norm=layer_norm), PARTS, HEADS, 1, ConvolutionalNetwork)


def images(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (T, B, 84, 84, 4), np.uint8)


def images_and_numbers(seed: int) -> np.ndarray:
    rows = np.random.default_rng(seed).integers(0, 256, (T, B, PARTS.row_size), np.uint8)
    PARTS.vectors(rows)[...] = np.random.default_rng(seed).normal(size=(T, B, 3))
    return rows


CASES = {
    **{
        f"{name}{' layer norm' * norm}": (lambda name=name, norm=norm: convolutional(name, norm), images)
        for name in ("a3c_cnn", "nature_cnn")
        for norm in (False, True)
    },
    "recurrent": (lambda: RecurrentNetwork(convolutional("a3c_cnn", False, ()), HEADS, 7, 1), images),
    "multi-input": (lambda: multi_input(False), images_and_numbers),
    "multi-input layer norm": (lambda: multi_input(True), images_and_numbers),
}


def start(network: Network) -> tuple[tf.Tensor, ...]:
    return tuple(tf.zeros((B, units)) for units in network.state_units)


def act(network: Network, stored: StoredActivations, observations: np.ndarray) -> list[NetworkOutput]:
    """The outputs at each time, stored as an actor stores them."""
    state, outputs = start(network), []
    for t in range(T):
        with stored.recording(tf.constant(t)):
            outputs.append(network(tf.constant(observations[t]), state))
        state = tuple(part * MASK[t][:, None] for part in outputs[-1].state)
    return outputs


def gradients(network: Network, observations: np.ndarray, stored: StoredActivations | None) -> list[np.ndarray]:
    """The heads of a rollout, and the gradient of a loss over them."""

    def compute() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            arguments = tf.constant(observations), start(network), tf.constant(MASK)
            if stored is None:
                output = network.unroll(*arguments)
            else:
                with stored.replaying():
                    output = network.unroll(*arguments)
            loss = tf.reduce_mean(tf.square(output.heads["policy"] - 1.0)) + tf.reduce_mean(output.heads["value"])
        return [*output.heads.values(), *tape.gradient(loss, network.trainable_variables)]

    return [tensor.numpy() for tensor in tf.function(compute, autograph=False)()]


@pytest.mark.parametrize(("make", "observed"), CASES.values(), ids=CASES)
def test_they_give_the_same_output_and_gradient(
    make: Callable[[], Network], observed: Callable[[int], np.ndarray]
) -> None:
    network, observations, stored = make(), observed(0), StoredActivations(T)
    outputs = act(network, stored, observations)
    known = gradients(network, observations, stored)
    for computed, again in zip(known, gradients(network, observations, None), strict=True):
        assert np.abs(computed - again).max() <= 1e-4 * np.abs(again).max()
    for t, output in enumerate(outputs):
        np.testing.assert_allclose(known[0][t], output.heads["policy"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("case", ["a3c_cnn layer norm", "recurrent", "multi-input"])
def test_no_forward_pass_is_computed(case: str) -> None:
    make, observed = CASES[case]
    network, stored = make(), StoredActivations(T)
    act(network, stored, observed(1))
    other = gradients(network, observed(0), stored)[0]
    assert not np.allclose(other, gradients(network, observed(0), None)[0], rtol=1e-3)
