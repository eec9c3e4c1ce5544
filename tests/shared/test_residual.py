"""IMPALA's residual network: its shape as published, and its arithmetic against NumPy written out."""

import numpy as np
import pytest
import tensorflow as tf

from shared.config import NetworkConfig
from shared.networks import Head
from shared.networks.convolutional import ResidualNetwork

HEADS = (Head("policy", 6, 0.01), Head("value", 1, 1.0))
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 20, 20, 2), np.uint8)
MEAN = np.random.default_rng(1).uniform(0, 255, (20, 20, 2)).astype(np.float32)


def make(*, mean: np.ndarray | None = MEAN, layer_norm: bool = False) -> ResidualNetwork:
    config = NetworkConfig(name="impala_resnet", layer_norm=layer_norm)
    return ResidualNetwork(config, (20, 20, 2), HEADS, 1, mean)


def convolved(x: np.ndarray, kernel: np.ndarray, bias: np.ndarray) -> np.ndarray:
    height, width = x.shape[1:3]
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    parts = [padded[:, i : i + height, j : j + width] @ kernel[i, j] for i in range(3) for j in range(3)]
    return sum(parts) + bias


def pooled(x: np.ndarray) -> np.ndarray:
    """3 x 3 maxima at every second place: where a side is even, "same" pads the far end only."""
    height, width = x.shape[1:3]
    before = [1 if n % 2 else 0 for n in (height, width)]
    pad = [(0, 0), *((b, 2) for b in before), (0, 0)]
    padded = np.pad(x, pad, constant_values=-np.inf)
    rows, columns = (height + 1) // 2, (width + 1) // 2
    return np.max(
        [padded[:, i : i + 2 * rows : 2, j : j + 2 * columns : 2] for i in range(3) for j in range(3)], axis=0
    )


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0)


@pytest.mark.parametrize("mean", [None, MEAN], ids=["plain", "centred"])
def test_is_the_network_of_the_paper_written_out(mean: np.ndarray | None) -> None:
    network = make(mean=mean)
    weights = {variable.path: variable.numpy().astype(np.float64) for variable in network.variables}

    def layer(x: np.ndarray, name: str) -> np.ndarray:
        return convolved(x, weights[f"{name}/kernel"], weights[f"{name}/bias"])

    x = IMAGES / 255.0 if mean is None else (IMAGES - mean.astype(np.float64)) * 4.0 / 255.0
    for stage in (1, 2, 3):
        x = pooled(layer(x, f"stage{stage}_conv"))
        for block in (1, 2):
            name = f"stage{stage}_block{block}"
            x = x + layer(relu(layer(relu(x), f"{name}_conv1")), f"{name}_conv2")
    x = relu(x).reshape(len(x), -1)
    x = relu(x @ weights["hidden/kernel"] + weights["hidden/bias"])
    output = network(tf.constant(IMAGES))
    np.testing.assert_allclose(output.features, x, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(output.heads["value"], x @ weights["value/kernel"], rtol=1e-3, atol=1e-4)


def test_has_the_parameters_of_the_paper_s_figure_at_84_by_84() -> None:
    config = NetworkConfig(name="impala_resnet")
    network = ResidualNetwork(config, (84, 84, 4), HEADS, 1)
    convolutions = 0
    channels = 4
    for filters in (16, 32, 32):
        convolutions += 9 * channels * filters + filters + 4 * (9 * filters * filters + filters)
        channels = filters
    hidden = 11 * 11 * 32 * 256 + 256
    heads = 256 * 7 + 7
    assert sum(int(np.prod(v.shape)) for v in network.trainable_variables) == convolutions + hidden + heads
    assert network.feature_size == 256


@pytest.mark.parametrize("layer_norm", [False, True], ids=["", "layer norm"])
def test_the_exported_layers_give_the_same(layer_norm: bool) -> None:
    network = make(layer_norm=layer_norm)
    output, exported = network(tf.constant(IMAGES)), network.as_keras()(IMAGES)
    for head in ("policy", "value"):
        np.testing.assert_allclose(exported[head], output.heads[head], rtol=1e-5, atol=1e-5)


def test_layer_norm_comes_before_each_relu() -> None:
    names = [layer.name for layer in make(layer_norm=True).model.layers]
    relus = [name for name in names if name.endswith("_relu")]
    assert len(relus) == 3 * 2 * 2 + 2
    assert all(f"{name.removesuffix('_relu')}_norm" in names for name in relus)
    assert not any(name.endswith("_norm") for name in (layer.name for layer in make().model.layers))
