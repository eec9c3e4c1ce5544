"""The perceptron with layer norm, against NumPy written out."""

import numpy as np
import pytest

from shared.config import NetworkConfig
from shared.networks import Head
from shared.networks.perceptron import MultilayerPerceptron

HEADS = (Head("policy", 3, 0.01), Head("value", 1, 1.0))
OBSERVATIONS = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)


def make(activation: str = "tanh", *, layer_norm: bool = True) -> MultilayerPerceptron:
    config = NetworkConfig(name="mlp", hidden_sizes=(8, 6), activation=activation, layer_norm=layer_norm)
    network = MultilayerPerceptron(config, (5,), HEADS, seed=1)
    random = np.random.default_rng(1)
    for variable in network.variables:
        if "norm" in variable.path:
            variable.assign(variable.numpy() + random.normal(0.0, 0.3, variable.shape))
    return network


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_layers_are_normalised_before_they_activate(activation: str) -> None:
    network = make(activation)
    weights = {variable.path: variable.numpy().astype(np.float64) for variable in network.variables}
    activate = np.tanh if activation == "tanh" else lambda x: np.maximum(x, 0.0)
    output = network(OBSERVATIONS)
    for head in HEADS:
        x = OBSERVATIONS.astype(np.float64)
        for layer in (f"{head.name}_hidden1", f"{head.name}_hidden2"):
            x = x @ weights[f"{layer}/kernel"] + weights[f"{layer}/bias"]
            x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
            x = activate(x * weights[f"{layer}_norm/gamma"] + weights[f"{layer}_norm/beta"])
        if head.name == "policy":
            np.testing.assert_allclose(output.features, x, rtol=1e-4, atol=1e-5)
        expected = x @ weights[f"{head.name}/kernel"] + weights[f"{head.name}/bias"]
        np.testing.assert_allclose(output.heads[head.name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer_norm", [False, True], ids=["", "layer norm"])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_the_exported_layers_give_the_same_outputs(activation: str, layer_norm: bool) -> None:
    network = make(activation, layer_norm=layer_norm)
    exported, heads = network.as_keras()(OBSERVATIONS), network(OBSERVATIONS).heads
    for head in heads:
        np.testing.assert_allclose(exported[head], heads[head], rtol=1e-6, atol=1e-6)


def test_layer_norm_leaves_the_initial_weights_of_the_layers_as_they_are() -> None:
    plain, normalised = (
        {variable.path: variable.numpy() for variable in make(layer_norm=on).variables} for on in (False, True)
    )
    added = normalised.keys() - plain.keys()
    assert added == {
        f"{head}_hidden{i}_norm/{part}" for head in ("policy", "value") for i in (1, 2) for part in ("gamma", "beta")
    }
    for name, value in plain.items():
        np.testing.assert_array_equal(normalised[name], value)
