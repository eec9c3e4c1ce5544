"""A slice of the parameters, with all that goes along with each of them."""

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from learner.optimizer import make_optimizer
from shared.config import OptimizerConfig
from shared.graph import Graph, values_of
from shared.norm import block_norms
from shared.types import Float32Array


class Slice:
    """Contiguous parameters, the sum of gradients that waits for an update, optimizer's slots and target network.

    It decides nothing: what is added, by which factor the whole gradient is clipped and when is said by `Slices`. All
    that it computes is element-wise, and so to the bit what is computed of these elements in one piece.

    Args:
        parameters: initial float32 [N].
        block: elements of a block of the whole vector; the slice begins with one.
        optimizer: which optimizer with which constants.
        target: whether there is a target network.
    """

    def __init__(self, parameters: Float32Array, block: int, optimizer: OptimizerConfig, *, target: bool) -> None:
        self._block = block
        self._parameters = tf.Variable(parameters, name="parameters")
        self._accumulated = tf.Variable(tf.zeros_like(self._parameters), name="accumulated")
        self._optimizer = make_optimizer(len(parameters), optimizer)
        self._variables = {
            "parameters": self._parameters,
            "accumulated": self._accumulated,
            **self._optimizer.variables,
        }
        if target:
            self._variables["target_parameters"] = tf.Variable(parameters, trainable=False, name="target_parameters")
        # The gradient of an update whose norm is not known yet.
        self._summed: tf.Tensor | None = None
        vector, number = tf.TensorSpec(parameters.shape, tf.float32), tf.TensorSpec([], tf.float32)
        self._add_graph = Graph(self._add, [vector, number])
        self._complete_graph = Graph(self._complete, [vector, number, number])
        self._update_graph = Graph(self._update, [vector, number, number])

    def add(self, gradient: Float32Array, weight: float) -> None:
        """Add a gradient float32 [N] times its weight to the sum."""
        self._add_graph(gradient, np.float32(weight))

    def complete(self, gradient: Float32Array, weight: float, scale: float) -> Float32Array:
        """Add the last gradient of an update. Returns the `block_norms` of the scaled sum; `update` follows."""
        self._summed, norms = self._complete_graph(gradient, np.float32(weight), np.float32(scale))
        return norms.numpy()

    def update(self, gradient: Float32Array | None, learning_rate: float, factor: float) -> None:
        """Update by a gradient float32 [N], or by the sum that was completed, times `factor`, which is 1 at most."""
        by = self._summed if gradient is None else gradient
        assert by is not None, "a sum is completed before it is applied"
        self._summed = None
        self._update_graph(by, np.float32(learning_rate), np.float32(factor))

    def discard(self) -> None:
        """Forget the gradients that wait for an update."""
        self._accumulated.assign(tf.zeros_like(self._accumulated))

    def write(self, begin: int, values: Float32Array) -> None:
        """Set the parameters from the index `begin` on."""
        self._parameters[begin : begin + len(values)].assign(values)

    def read(self) -> Float32Array:
        """The parameters, float32 [N]. Read-only; what it shows may change with the next call."""
        return values_of(self._parameters)

    def keep_target(self) -> None:
        """Copy the parameters into the target network."""
        self._variables["target_parameters"].assign(self._parameters)

    def read_target(self) -> Float32Array:
        """The target network's, as `read`."""
        return values_of(self._variables["target_parameters"])

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """All that it remembers, by the names of a checkpoint."""
        return {name: variable.numpy() for name, variable in self._variables.items()}

    def restore(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """The inverse of `state`."""
        for name, variable in self._variables.items():
            variable.assign(state[name])

    def _add(self, gradient: tf.Tensor, weight: tf.Tensor) -> None:
        self._accumulated.assign_add(tf.cond(tf.equal(weight, 1.0), lambda: gradient, lambda: weight * gradient))

    def _complete(self, gradient: tf.Tensor, weight: tf.Tensor, scale: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        self._add(gradient, weight)
        # Reading comes before resetting: without this dependency a graph may run them in any order.
        summed = self._accumulated.read_value() * scale
        with tf.control_dependencies([summed]):
            self._accumulated.assign(tf.zeros_like(summed))
        return summed, block_norms(summed, self._block)

    def _update(self, gradient: tf.Tensor, learning_rate: tf.Tensor, factor: tf.Tensor) -> None:
        # Most gradients need no clipping, and so no pass over memory for it.
        gradient = tf.cond(factor < 1.0, lambda: gradient * factor, lambda: gradient)
        self._optimizer.apply(self._parameters, gradient, learning_rate)
