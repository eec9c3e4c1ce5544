import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.config import NetworkConfig
from shared.layout import ParameterLayout
from shared.networks import Head, ObservationScale
from shared.networks.convolutional import ConvolutionalNetwork
from shared.networks.perceptron import MultilayerPerceptron

HEADS = (Head("policy", 6, 0.01), Head("value", 1, 1.0))

shapes = st.lists(st.lists(st.integers(1, 4), max_size=3).map(tuple), min_size=1, max_size=5)


@settings(deadline=None, max_examples=30)
@given(shapes=shapes, seed=st.integers(0, 99))
def test_round_trip_through_live_variables(shapes: list[tuple[int, ...]], seed: int) -> None:
    variables = [keras.Variable(np.zeros(shape, np.float32), name=f"v{i}") for i, shape in enumerate(shapes)]
    layout = ParameterLayout.of(variables)
    flat = np.random.default_rng(seed).normal(size=layout.size).astype(np.float32)
    for variable, part in zip(variables, layout.split(flat), strict=True):
        variable.assign(part)
    np.testing.assert_array_equal(layout.flatten([v.numpy() for v in variables]), flat)


def test_fingerprint_tells_names_shapes_and_order_apart() -> None:
    layouts = [
        ParameterLayout(("a", "b"), ((2,), (3,))),
        ParameterLayout(("a", "c"), ((2,), (3,))),
        ParameterLayout(("a", "b"), ((3,), (2,))),
        ParameterLayout(("b", "a"), ((2,), (3,))),
    ]
    assert len({layout.fingerprint for layout in layouts}) == 4


def test_wrong_lengths_and_shapes_are_refused() -> None:
    layout = ParameterLayout(("a",), ((2,),))
    with pytest.raises(ValueError, match="vector of 2 parameters"):
        layout.split(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="a: expected shape"):
        layout.flatten([np.zeros(3)])
    with pytest.raises(ValueError, match="expected 1 tensors"):
        layout.flatten([])


@pytest.mark.parametrize(("name", "parameters"), [("a3c_cnn", 677_943), ("nature_cnn", 1_687_719)])
def test_networks_have_the_papers_sizes(name: str, parameters: int) -> None:
    network = ConvolutionalNetwork(NetworkConfig(name=name), (84, 84, 4), HEADS, seed=1)
    assert ParameterLayout.of(network.variables).size == parameters


def test_vectors_are_scaled_by_bounds_or_by_running_moments_that_no_gradient_reaches() -> None:
    observation = np.array([[3.0, 1e6]], np.float32)
    scale = ObservationScale(np.array([1.0, 0.0], np.float32), np.array([2.0, 1e6], np.float32))
    bounds = MultilayerPerceptron(NetworkConfig(name="mlp", observation_scaling="bounds"), (2,), HEADS, 1, scale)
    scaled = keras.Model(bounds.model.input, bounds.model.get_layer("scale").output)(observation)
    np.testing.assert_allclose(scaled, [[1.0, 1.0]], rtol=1e-6)

    running = MultilayerPerceptron(NetworkConfig(name="mlp", observation_scaling="running"), (2,), HEADS, 1)
    layout = ParameterLayout.of(running.variables)
    assert layout.names[-2:] == ("observation_scaling/mean", "observation_scaling/variance")
    assert len(running.trainable_variables) == len(running.variables) - 2
    running.variables[-2].assign([1.0, 0.0])
    running.variables[-1].assign([4.0, 1.0])
    scaled = keras.Model(running.model.input, running.model.get_layer("observation_scaling").output)(observation)
    np.testing.assert_allclose(scaled, [[1.0, 10.0]], rtol=1e-6)
    flat = np.arange(layout.size, dtype=np.float32)
    np.testing.assert_array_equal(flat[layout.range_of("observation_scaling/mean")], flat[-4:-2])
