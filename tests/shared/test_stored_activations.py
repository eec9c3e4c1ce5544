"""Gradients from the activations of acting against those of a forward pass of their own."""

import numpy as np
import pytest
import tensorflow as tf
from networks import network, observations

from shared.networks import Network, NetworkOutput
from shared.networks.stored_activations import StoredActivations

T, B = 3, 2
# A reset at time 1 of environment 0.
MASK = np.array([[1, 1], [0, 1], [1, 1]], np.float32)


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


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        *((kind, {"layer_norm": norm}) for kind in ("a3c_cnn", "nature_cnn", "multi_input") for norm in (False, True)),
        ("a3c_cnn", {"recurrent": True}),
    ],
)
def test_they_give_the_same_output_and_gradient(kind: str, settings: dict) -> None:
    made, seen, stored = network(kind, **settings), observations(kind, T, B), StoredActivations(T)
    outputs = act(made, stored, seen)
    known = gradients(made, seen, stored)
    for computed, again in zip(known, gradients(made, seen, None), strict=True):
        assert np.abs(computed - again).max() <= 1e-4 * np.abs(again).max()
    for t, output in enumerate(outputs):
        np.testing.assert_allclose(known[0][t], output.heads["policy"], rtol=1e-4, atol=1e-6)
    # No forward pass of images is computed: for others, it would give another output.
    other = observations(kind, T, B, seed=1)
    assert not np.allclose(gradients(made, other, stored)[0], gradients(made, other, None)[0], rtol=1e-3)
