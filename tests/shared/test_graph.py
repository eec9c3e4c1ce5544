"""Graphs called on the memory of their arguments."""

import weakref
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from shared.graph import ALIGNMENT, Graph, aligned, as_array, tensor_on, values_of


@pytest.fixture
def kept() -> tf.Variable:
    return tf.Variable(tf.zeros(2_000))


@pytest.fixture
def keep(kept: tf.Variable) -> Graph:
    def assign(x: tf.Tensor) -> None:
        # A copy: a slice alone would share the memory of the argument.
        kept.assign(tf.concat([x[:1_008], x[1_008:]], axis=0))

    return Graph(assign, [tf.TensorSpec((2_000,), tf.float32)])


@pytest.mark.parametrize(("offset", "step"), [(0, 1), (1, 1), (0, 2)])
def test_the_memory_may_change_after_a_call(keep: Graph, kept: tf.Variable, offset: int, step: int) -> None:
    memory = aligned((4_064,), "float32")
    array = memory[offset : offset + 2_000 * step : step]
    array[:] = 1.0
    assert (array.ctypes.data % ALIGNMENT == 0) is (offset == 0)
    keep(array)
    array[:] = 2.0
    np.testing.assert_array_equal(kept.numpy(), np.ones(2_000))
    array.flags.writeable = False
    keep(array)
    array.flags.writeable = True
    array[:] = 3.0
    np.testing.assert_array_equal(kept.numpy(), np.full(2_000, 2.0))


@pytest.mark.parametrize("writeable", [True, False])
def test_a_variable_that_is_assigned_an_argument_shares_its_memory(kept: tf.Variable, writeable: bool) -> None:
    array = aligned((2_000,), "float32")
    array.flags.writeable = writeable
    Graph(kept.assign, [tf.TensorSpec((2_000,), tf.float32)])(array)
    assert values_of(kept).ctypes.data == array.ctypes.data


def test_a_tensor_keeps_the_memory_of_a_read_only_array() -> None:
    """As those of Ray's object store, which would give it to others."""
    array = aligned((2_000,), "float32")
    array.flags.writeable = False
    reference = weakref.ref(array)
    tensor = tensor_on(array)
    assert as_array(tensor).ctypes.data == array.ctypes.data
    del array
    assert reference() is not None
    del tensor
    assert reference() is None


def test_it_returns_what_the_tf_function_returns_to_the_bit() -> None:
    weights = tf.Variable(tf.random.stateless_normal((1_000, 50), (1, 2)))

    def function(x: tf.Tensor, t: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.relu(x @ weights.read_value() * tf.cast(t, tf.float32)) ** 2)
            loss += tf.reduce_sum(weights**2)
        return loss, tape.gradient(loss, weights)

    signature = [tf.TensorSpec((None, 1_000), tf.float32), tf.TensorSpec((), tf.int32)]
    plain, graph = tf.function(function, input_signature=signature, autograph=False), Graph(function, signature)
    for batch in (3, 70):
        x = aligned((batch, 1_000), "float32")
        x[...] = np.random.default_rng(batch).normal(size=x.shape)
        for expected, actual in zip(plain(x, np.int32(2)), graph(x, np.int32(2)), strict=True):
            np.testing.assert_array_equal(actual.numpy(), expected.numpy())
    assert graph.traces == 1


@pytest.mark.parametrize(
    "wrong", [np.zeros(1_999, np.float32), np.zeros(2_000, np.float64), np.zeros((2_000, 1), np.float32)]
)
def test_an_argument_of_another_shape_or_dtype_is_refused(keep: Graph, wrong: np.ndarray) -> None:
    with pytest.raises(ValueError, match="where the graph takes float32"):
        keep(wrong)


def test_xla_compiles_a_graph_without_a_gpu_too() -> None:
    """It refuses what it has no kernel of. A call of the operation alone would not compile, and take the string."""

    def length(x: tf.Tensor) -> tf.Tensor:
        return tf.strings.length(tf.strings.as_string(x))

    signature = [tf.TensorSpec((3,), tf.float32)]
    assert Graph(length, signature)(np.ones(3, np.float32))[0].shape == (3,)
    with pytest.raises(tf.errors.InvalidArgumentError, match="unsupported operations"):
        Graph(length, signature, compiled=True)(np.ones(3, np.float32))


class Pair(NamedTuple):
    first: tf.Tensor
    second: tf.Tensor


@pytest.mark.parametrize("way", ["operation", "runtime", "eager"])
def test_nested_arguments_are_taken_however_a_call_is_run(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the operation itself, by the runtime, which places calls where there is a GPU, or without a graph."""

    def function(pair: Pair, rest: tuple[tf.Tensor, ...]) -> tf.Tensor:
        assert all(isinstance(x, tf.Tensor) for x in (*pair, *rest))
        return tf.reduce_sum(pair.first) + 10.0 * pair.second - rest[0]

    if way != "operation":
        monkeypatch.setattr(tf.raw_ops, "StatefulPartitionedCall", None)
    if way == "runtime":
        monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [kind])
    number = tf.TensorSpec((), tf.float32)
    graph = Graph(function, [Pair(tf.TensorSpec((3,), tf.float32), number), (number,)])
    tf.config.run_functions_eagerly(way == "eager")
    try:
        results = [graph(Pair(np.ones(3, np.float32), np.float32(x)), (np.float32(2.0),)) for x in (4.0, 5.0)]
    finally:
        tf.config.run_functions_eagerly(False)
    assert [float(result.numpy()) for (result,) in results] == [41.0, 51.0]
    assert graph.traces == (way != "eager")


def test_an_array_of_a_tensor_outlives_it() -> None:
    array = as_array(tf.fill((10_000,), 4.0))
    tf.fill((10_000,), 5.0)
    np.testing.assert_array_equal(array, np.full(10_000, 4.0))


def test_the_values_of_a_variable_are_read_only_and_outlive_it() -> None:
    variable = tf.Variable(np.arange(5, dtype=np.float32))
    values = values_of(variable)
    assert not values.flags.writeable
    variable.assign_add(tf.ones(5))
    np.testing.assert_array_equal(values_of(variable), np.arange(1, 6))
    again = values_of(variable)
    del variable
    np.testing.assert_array_equal(again, np.arange(1, 6))
