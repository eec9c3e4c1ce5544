"""The update of the parameters: accumulate gradients, clip, apply and reset, as one graph call per gradient."""

from typing import NamedTuple

import tensorflow as tf

from learner.optimizer import OPTIMIZERS
from shared.config import OptimizerConfig
from shared.graph import Graph, aligned, tensor_on, values_of
from shared.types import Float32Array

# Blocks of the global norm. Other sizes would change its last bit, and with it every clipped update of a resumed run.
# Several threads may share a reduction of more elements than `_MAX_BLOCK`; fewer than `_MIN_BLOCK` are not worth one.
_MAX_BLOCKS = 32
_MIN_BLOCK, _MAX_BLOCK = 1024, 65_536
# Elements of one cache line of 64 bytes.
_ALIGNMENT = 16


def global_norm(vector: tf.Tensor) -> tf.Tensor:
    """The Euclidean norm of float32 [P], a float32 scalar.

    The norm of each block is computed first, then the norm of the norms: the result is the same to the bit with 1, 2
    and 4 threads, and no block is copied. It overflows to infinity where the sum of squares does.
    """
    size = vector.shape[0]
    each = -(-size // _MAX_BLOCKS)
    block = min(max(-(-each // _ALIGNMENT) * _ALIGNMENT, _MIN_BLOCK), _MAX_BLOCK)
    whole = size // block
    rows = [tf.reshape(vector[: whole * block], [whole, block])] if whole else []
    if size % block:
        rows.append(vector[None, whole * block :])
    norms = [tf.raw_ops.EuclideanNorm(input=row, axis=[1]) for row in rows]
    return tf.sqrt(tf.reduce_sum(tf.square(tf.concat(norms, axis=0))))


class PushResult(NamedTuple):
    """The effect of one gradient on the parameters.

    `finite` is False for a gradient that was refused. `applied` is True for the one that completed an update;
    `gradient_norm` is then the global norm of the accumulated gradient before clipping, else of the pushed one.
    `discarded` is True for the one that completed a sum with a non-finite norm: all its gradients are discarded.
    """

    finite: bool
    applied: bool
    gradient_norm: float
    discarded: bool = False


class GradientAccumulator:
    """Parameters float32 [P], their optimizer, their target network, and the sum of the gradients of the next update.

    Gradients enter the graph of `push` as an argument, computed by another graph: none can depend on parameters that
    the same graph has already changed. An update takes the sum of its gradients, or their `mean`. `variables` are all
    tensors of a checkpoint, by name.
    """

    def __init__(
        self,
        parameters: Float32Array,
        gradients_per_update: int,
        optimizer: OptimizerConfig,
        *,
        mean: bool = False,
        target: bool = False,
    ) -> None:
        self.parameters = tf.Variable(parameters, name="parameters")
        self.accumulated = tf.Variable(tf.zeros_like(self.parameters), name="accumulated")
        self.pending = tf.Variable(0, dtype=tf.int32, name="pending")
        self._optimizer = OPTIMIZERS[optimizer.name](len(parameters), optimizer)
        self._gradients_per_update, self._mean = gradients_per_update, mean
        self._max_gradient_norm = optimizer.max_gradient_norm
        # The learning rate and the number of gradients, written anew for each push: two new tensors would take longer.
        self._values = aligned((2,), "float32")
        self._scalars = tensor_on(self._values)
        self._graph = Graph(self._push, [tf.TensorSpec(parameters.shape, tf.float32), tf.TensorSpec([2], tf.float32)])
        # Their names are the names of tensors in every checkpoint that was ever written.
        self.variables: dict[str, tf.Variable] = {
            "parameters": self.parameters,
            "accumulated": self.accumulated,
            "pending": self.pending,
            **self._optimizer.variables,
        }
        if target:
            self.variables["target_parameters"] = tf.Variable(parameters, trainable=False, name="target_parameters")

    def push(self, gradient: Float32Array, learning_rate: float, count: int = 1) -> PushResult:
        """Add a gradient float32 [P]. The K-th one since the last update completes an update.

        A gradient whose norm is not finite changes nothing. `count` is the number of gradients in a sum.
        """
        self._values[:] = learning_rate, count
        (result,) = self._graph(gradient, self._scalars)
        finite, applied, norm, discarded = result.numpy().tolist()
        return PushResult(bool(finite), bool(applied), norm, bool(discarded))

    def discard_pending(self) -> None:
        self.accumulated.assign(tf.zeros_like(self.accumulated))
        self.pending.assign(0)

    def read(self) -> Float32Array:
        """The parameters, float32 [P]: a read-only view that the next push may change."""
        return values_of(self.parameters)

    def read_target(self) -> Float32Array:
        return values_of(self.variables["target_parameters"])

    def update_target(self) -> None:
        self.variables["target_parameters"].assign(self.parameters)

    def _push(self, gradient: tf.Tensor, scalars: tf.Tensor) -> tf.Tensor:
        learning_rate, count = tf.unstack(scalars)
        norm = global_norm(gradient)

        def accept() -> tf.Tensor:
            # Decided at trace time: K = 1 needs neither the sum nor its reset, two passes over memory.
            if self._gradients_per_update == 1:
                return self._apply(gradient, norm, learning_rate)
            return self._accumulate(gradient, norm, learning_rate, count)

        return tf.cond(tf.math.is_finite(norm), accept, lambda: tf.stack([0.0, 0.0, norm, 0.0]))

    def _accumulate(
        self, gradient: tf.Tensor, norm: tf.Tensor, learning_rate: tf.Tensor, count: tf.Tensor
    ) -> tf.Tensor:
        number = tf.cast(count, tf.int32)
        # A complete sum that meets no pending gradient needs neither an addition nor a reset: 0.7 ms in place of 1.1.
        return tf.cond(
            tf.logical_and(self.pending == 0, number >= self._gradients_per_update),
            lambda: self._apply_sum(gradient, learning_rate, number),
            lambda: self._add(gradient, norm, learning_rate, number),
        )

    def _add(self, gradient: tf.Tensor, norm: tf.Tensor, learning_rate: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        self.accumulated.assign_add(gradient)
        # Read here: the variable is 0 again when `_apply_sum` asks for its number.
        pending = tf.identity(self.pending.assign_add(number))
        return tf.cond(
            pending >= self._gradients_per_update,
            lambda: self._apply_accumulated(learning_rate, pending),
            lambda: tf.stack([1.0, 0.0, norm, 0.0]),
        )

    def _apply_accumulated(self, learning_rate: tf.Tensor, pending: tf.Tensor) -> tf.Tensor:
        gradient = self.accumulated.read_value()
        # Read, reset, apply: without these dependencies a graph may run the three in any order.
        with tf.control_dependencies([gradient]):
            reset = [self.accumulated.assign(tf.zeros_like(gradient)), self.pending.assign(0)]
        with tf.control_dependencies(reset):
            return self._apply_sum(gradient, learning_rate, pending)

    def _apply_sum(self, gradient: tf.Tensor, learning_rate: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        if self._mean:
            k, count = float(self._gradients_per_update), tf.cast(number, tf.float32)
            gradient *= 1.0 / k
            # More than K are pending where a sum arrives at others: sums of nodes differ in size.
            gradient = tf.cond(count > k, lambda: gradient * (k / count), lambda: gradient)
        norm = global_norm(gradient)
        # Finite gradients may have a non-finite sum, which would stay in the optimizer's running means.
        return tf.cond(
            tf.math.is_finite(norm),
            lambda: self._apply(gradient, norm, learning_rate),
            lambda: tf.stack([0.0, 0.0, norm, 1.0]),
        )

    def _apply(self, gradient: tf.Tensor, norm: tf.Tensor, learning_rate: tf.Tensor) -> tf.Tensor:
        limit = self._max_gradient_norm
        if limit is not None:
            # `tf.clip_by_global_norm` would multiply every gradient, also those below the limit.
            gradient = tf.cond(norm > limit, lambda: gradient * (limit / norm), lambda: gradient)
        self._optimizer.apply(self.parameters, gradient, learning_rate)
        return tf.stack([1.0, 1.0, norm, 0.0])
