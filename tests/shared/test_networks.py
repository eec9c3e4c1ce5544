"""Networks against layers written out, and the layers that they export; their weights at the start."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import HEADS, PARTS, network, observations, shape_of

from shared.config import NetworkConfig
from shared.layout import ParameterLayout
from shared.networks import RUNNING_MEAN, RUNNING_VARIANCE, KerasNetwork, Network, ObservationScale
from shared.networks.composed import MaskedNetwork, MultiInputNetwork
from shared.networks.convolutional import ConvolutionalNetwork
from shared.networks.perceptron import MultilayerPerceptron
from shared.types import ActionSpec, ImagePart, ObservationParts


def weights_of(network: Network) -> dict[str, np.ndarray]:
    return {variable.path: variable.numpy().astype(np.float64) for variable in network.variables}


def test_layers_of_one_shape_start_from_different_weights() -> None:
    made = network("mlp", shape=(6,), hidden_sizes=(6, 6), trained=False)
    alike = [values for path, values in weights_of(made).items() if values.shape == (6, 6)]
    assert len(alike) >= 2
    assert not any(np.allclose(one, other) for i, one in enumerate(alike) for other in alike[:i])


class Nested(KerasNetwork):
    """Its layers have names, except those of the model within."""

    def __init__(self, *within: keras.Layer) -> None:
        super().__init__(HEADS)
        seen = keras.Input((4,))
        x = keras.Sequential(within, name="within")(seen)
        self.model = keras.Model(seen, [*(keras.layers.Dense(h.units, name=h.name)(x) for h in HEADS), x])


def test_named_layers_within_layers_have_the_same_paths_in_each_network() -> None:
    named = [Nested(keras.layers.Dense(3, name="hidden"), keras.layers.Dropout(0.1, name="drop")) for _ in range(2)]
    # The state of the dropout's generator, whose name a process numbers, is no parameter.
    assert weights_of(named[0]).keys() == weights_of(named[1]).keys()


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0)


def normalised(x: np.ndarray, weights: dict[str, np.ndarray], name: str) -> np.ndarray:
    axes = tuple(range(1, x.ndim))
    x = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)
    return x * weights[f"{name}_norm/gamma"] + weights[f"{name}_norm/beta"]


def test_layers_are_float32_whatever_an_environment_has_set() -> None:
    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    try:
        for settings in ({"layer_norm": True}, {"observation_scaling": "running"}):
            mlp = network("mlp", **settings)
            assert {str(tensor.dtype) for tensor in (*mlp.model.outputs, *mlp.model.weights)} == {"float32"}
    finally:
        keras.config.set_floatx(before)
        # Keras keeps the policy of its first layer for all later ones.
        keras.config.set_dtype_policy(before)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_the_perceptron_normalises_its_layers_before_they_activate(activation: str) -> None:
    mlp, seen = network("mlp", activation=activation, layer_norm=True), observations("mlp", 7)
    weights, output = weights_of(mlp), mlp(seen)
    activate = np.tanh if activation == "tanh" else relu
    for head in HEADS:
        x = seen.astype(np.float64)
        for layer in (f"{head.name}_hidden1", f"{head.name}_hidden2"):
            x = activate(normalised(x @ weights[f"{layer}/kernel"] + weights[f"{layer}/bias"], weights, layer))
        if head.name == "policy":
            np.testing.assert_allclose(output.features, x, rtol=1e-4, atol=1e-5)
        expected = x @ weights[f"{head.name}/kernel"] + weights[f"{head.name}/bias"]
        np.testing.assert_allclose(output.heads[head.name], expected, rtol=1e-4, atol=1e-5)


def test_vectors_are_scaled_by_bounds_or_by_running_moments() -> None:
    observation = np.array([[3.0, 1e6]], np.float32)
    scale = ObservationScale(np.array([1.0, 0.0], np.float32), np.array([2.0, 1e6], np.float32))
    bounds = MultilayerPerceptron(NetworkConfig(name="mlp", observation_scaling="bounds"), (2,), HEADS, 1, scale)
    running = MultilayerPerceptron(NetworkConfig(name="mlp", observation_scaling="running"), (2,), HEADS, 1)
    running.variables[-2].assign([1.0, 0.0])
    running.variables[-1].assign([4.0, 1.0])
    for made, layer, expected in ((bounds, "scale", [1.0, 1.0]), (running, "observation_scaling", [1.0, 10.0])):
        scaled = keras.Model(made.model.input, made.model.get_layer(layer).output)(observation)
        np.testing.assert_allclose(scaled, [expected], rtol=1e-6)
    # Far from 0, where a product and a sum would cancel, the exported layers give the same.
    running.variables[-2].assign([1e6, 300.0])
    running.variables[-1].assign([1.0, 1e-6])
    far = np.array([[1e6 + 1, 300.001]], np.float32)
    for name, output in running.as_keras()(far).items():
        np.testing.assert_allclose(output, running(tf.constant(far)).heads[name], atol=1e-5)


@pytest.mark.parametrize(("centred", "layer_norm"), [(False, False), (True, False), (False, True)])
def test_the_residual_network_is_that_of_the_paper_written_out(centred: bool, layer_norm: bool) -> None:
    images = observations("impala_resnet", 2)
    mean = np.random.default_rng(1).uniform(0, 255, images.shape[1:]).astype(np.float32) if centred else None
    resnet = network("impala_resnet", mean=mean, layer_norm=layer_norm)
    weights = weights_of(resnet)

    def layer(x: np.ndarray, name: str) -> np.ndarray:
        return tf.nn.conv2d(x, weights[f"{name}/kernel"], 1, "SAME").numpy() + weights[f"{name}/bias"]

    def activated(x: np.ndarray, name: str) -> np.ndarray:
        return relu(normalised(x, weights, name) if layer_norm else x)

    x = images / 255.0 if mean is None else (images - mean.astype(np.float64)) * 4.0 / 255.0
    for stage in (1, 2, 3):
        x = tf.nn.max_pool2d(layer(x, f"stage{stage}_conv"), 3, 2, "SAME").numpy()
        for block in (1, 2):
            name, before = f"stage{stage}_block{block}", x
            for half in (1, 2):
                x = layer(activated(x, f"{name}_{half}"), f"{name}_conv{half}")
            x = before + x
    x = activated(x, "trunk").reshape(len(x), -1)
    x = activated(x @ weights["hidden/kernel"] + weights["hidden/bias"], "hidden")
    output = resnet(tf.constant(images))
    np.testing.assert_allclose(output.features, x, rtol=1e-3, atol=1e-4)
    expected = x @ weights["value/kernel"] + weights["value/bias"]
    np.testing.assert_allclose(output.heads["value"], expected, rtol=1e-3, atol=1e-4)


def test_images_beside_numbers_are_centred_by_their_part_of_the_mean() -> None:
    """Where they are that part, they are to the network what black ones are to one without a mean."""
    rows = observations("multi_input", 1)
    mean, black = rows[0].astype(np.float32), rows.copy()
    for _, where in PARTS.image_bytes():
        black[:, where] = 0
    centred, plain = (network("multi_input", mean=of_rows) for of_rows in (mean, None))
    np.testing.assert_allclose(centred(tf.constant(rows)).features, plain(tf.constant(black)).features, rtol=1e-5)


@pytest.mark.parametrize(("mean", "scale"), [(None, 1.0 / 255.0), (np.zeros((36, 36, 4), np.float32), 4.0 / 255.0)])
def test_pixels_are_scaled_by_the_first_kernel_of_the_exported_layers(mean: np.ndarray | None, scale: float) -> None:
    made = network("a3c_cnn", mean=mean)
    kernel, _ = made.as_keras().get_layer("conv1").get_weights()
    np.testing.assert_allclose(kernel, scale * made.variables[0].numpy(), rtol=1e-6)


@pytest.mark.parametrize("recurrent", [False, True], ids=["", "recurrent"])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("mlp", {"activation": "tanh", "layer_norm": True, "observation_scaling": "running"}),
        ("mlp", {"activation": "relu"}),
        ("a3c_cnn", {"layer_norm": True}),
        ("nature_cnn", {}),
        ("impala_resnet", {}),
        ("multi_input", {}),
        ("multi_input", {"layer_norm": True, "observation_scaling": "running"}),
    ],
)
def test_the_exported_layers_give_the_same_outputs(kind: str, settings: dict, recurrent: bool) -> None:
    """They take images and numbers each by its name, and a state."""
    rows = observations(kind, 6)
    if kind == "mlp":
        # Scaled by running moments it is clipped.
        rows[0] *= 1e3
    mean = None if kind == "mlp" else np.random.default_rng(2).uniform(0, 255, rows.shape[1:]).astype(np.float32)
    made = network(kind, mean=mean, recurrent=recurrent, **settings)
    state = [tf.fill((6, units), 0.3) for units in made.state_units]
    output = made(tf.constant(rows), state)
    if kind == "multi_input":
        images = {image.name: rows[:, where].reshape(6, *image.shape) for image, where in PARTS.image_bytes()}
        inputs = {**images, "vector": PARTS.vectors(rows)}
    else:
        inputs = {"observations": rows}
    named = dict(zip(("hidden", "cell"), state, strict=False))
    tensors = {name: tf.constant(value) for name, value in (inputs | named).items()}
    exported = made.as_keras()(tensors if len(tensors) > 1 else tensors["observations"])
    expected = output.heads | dict(zip(("hidden", "cell"), output.state, strict=False))
    assert exported.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(exported[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "parameters"), [("a3c_cnn", 677_943), ("nature_cnn", 1_687_719), ("impala_resnet", 1_091_031)]
)
def test_networks_have_the_papers_sizes(name: str, parameters: int) -> None:
    assert ParameterLayout.of(network(name, shape=(84, 84, 4)).variables).size == parameters


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("kind", "recurrent"), [("mlp", False), ("mlp", True), ("multi_input", False)])
def test_weights_are_alike_in_every_process(kind: str, recurrent: bool, masked: bool) -> None:
    networks = [network(kind, recurrent=recurrent, trained=False, observation_scaling="running") for _ in range(2)]
    if masked:
        networks = [MaskedNetwork(inner, shape_of(kind), ActionSpec(6), "policy") for inner in networks]
    one, other = (made.variables for made in networks)
    assert ParameterLayout.of(one).fingerprint == ParameterLayout.of(other).fingerprint
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert [v.path for v in one[-2:]] == [RUNNING_MEAN, RUNNING_VARIANCE]
    # No gradient trains them.
    assert [v.path for v in one if not v.trainable] == [RUNNING_MEAN, RUNNING_VARIANCE]


def test_trunks_start_with_weights_of_their_own() -> None:
    two = ObservationParts((), (ImagePart("image_0", (36, 36, 1)), ImagePart("image_1", (36, 36, 1))))
    weights = weights_of(MultiInputNetwork(NetworkConfig(), two, HEADS, 1, ConvolutionalNetwork))
    assert np.abs(weights["image_0/conv1_kernel"] - weights["image_1/conv1_kernel"]).max() > 0.01


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
    np.testing.assert_array_equal(flat[layout.range_of("v0")], np.ravel(variables[0]))


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
    with pytest.raises(ValueError, match="shorter"):
        layout.flatten([])


@pytest.mark.parametrize(
    ("kind", "recurrent"),
    [("mlp", False), ("mlp", True), ("a3c_cnn", False), ("impala_resnet", False), ("multi_input", False)],
)
def test_kernels_start_orthogonal_with_the_gain_of_their_layer(kind: str, recurrent: bool) -> None:
    gains = {"policy": 0.01, "value": 1.0, "lstm": 1.0, "lstm_recurrent": 1.0}
    weights = weights_of(network(kind, recurrent=recurrent, trained=False))
    kernels = {path.replace("/", "_").removesuffix("_kernel"): weights[path] for path in weights if "kernel" in path}
    assert len(kernels) > 3
    for name, values in kernels.items():
        singular = np.linalg.svd(values.reshape(-1, values.shape[-1]), compute_uv=False)
        np.testing.assert_allclose(singular, gains.get(name, 2**0.5), rtol=1e-4, err_msg=name)
