"""The update of the parameters: add gradients, then clip and apply their sum in one graph call per update."""

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from learner.optimizer import Optimizer
from shared.config import OptimizerConfig
from shared.graph import Graph, aligned, tensor_on, values_of
from shared.layout import ParameterLayout
from shared.registry import OPTIMIZERS, make_registered
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

    `finite` is False for the gradient that completed a sum with a non-finite norm: the whole sum is discarded.
    `applied` is True for the one that completed an update; `gradient_norm` is then the global norm of the sum before
    clipping, and NaN while the sum is incomplete.
    """

    finite: bool
    applied: bool
    gradient_norm: float


_INCOMPLETE = PushResult(True, False, math.nan)


class GradientAccumulator:
    """Parameters float32 [P], their optimizer, their target network, and the sum of the gradients of the next update.

    Gradients are added on arrival, in NumPy: one pass over a gradient, while the sum stays in the cache. The first of a
    sum is read when the second arrives, without a copy. One graph call per update then takes the sum as an argument,
    computed outside it: no gradient can depend on parameters that the same graph has already changed. An update takes
    the sum of its gradients, or their `mean`.

    Milliseconds a gradient of 677,943 numbers on one core of an AMD EPYC: 0.17 by NumPy; 0.14 to 0.17 by `tf.add_n` of
    4 to 16 gradients at once, which would hold their memory until the K-th (docs/studies/throughput.md).
    """

    def __init__(
        self,
        parameters: Float32Array,
        layout: ParameterLayout,
        gradients_per_update: int,
        optimizer: OptimizerConfig,
        *,
        mean: bool = False,
        target: bool = False,
    ) -> None:
        self.parameters = tf.Variable(parameters, name="parameters")
        self._sum: Float32Array = aligned(parameters.shape, "float32")  # type: ignore[assignment]
        self._pending = 0
        # The only gradient of an incomplete sum, in the memory of its actor.
        self._first: Float32Array | None = None
        self._optimizer: Optimizer = make_registered(
            "optimizer.name", optimizer.name, OPTIMIZERS, Optimizer, layout, optimizer
        )
        self._gradients_per_update, self._mean = gradients_per_update, mean
        self._max_gradient_norm = optimizer.max_gradient_norm
        # The learning rate and the factor of the mean, written anew for each update: two new tensors would take longer.
        self._values = aligned((2,), "float32")
        self._scalars = tensor_on(self._values)
        self._graph = Graph(self._update, [tf.TensorSpec(parameters.shape, tf.float32), tf.TensorSpec([2], tf.float32)])
        # The names are those of a checkpoint's tensors. `accumulated` has the incomplete sum of the last checkpoint.
        self.variables: dict[str, tf.Variable] = {
            "parameters": self.parameters,
            "accumulated": tf.Variable(tf.zeros_like(self.parameters), name="accumulated"),
            **{f"optimizer_{name}": variable for name, variable in self._optimizer.variables.items()},
        }
        if target:
            self.variables["target_parameters"] = tf.Variable(parameters, trainable=False, name="target_parameters")

    def push(self, gradient: Float32Array, learning_rate: float, count: int = 1) -> PushResult:
        """Add a gradient float32 [P], or a sum of `count`. The K-th one since the last update completes an update.

        A non-finite gradient makes the norm of its sum non-finite: that sum changes nothing. Its memory must not
        change before the next call of `push` or `keep_pending`.
        """
        before, self._pending = self._pending, self._pending + count
        if before:
            first, self._first = self._sum if self._first is None else self._first, None
            # Finite gradients may have a non-finite sum, which the norm tells.
            with np.errstate(over="ignore", invalid="ignore"):
                np.add(first, gradient, out=self._sum)
            gradient = self._sum
        if self._pending < self._gradients_per_update:
            if not before:
                self._first = gradient
            return _INCOMPLETE
        # More than K are pending where a sum arrives at others: sums of nodes differ in size.
        self._values[:] = learning_rate, 1.0 / self._pending if self._mean else 1.0
        self._pending = 0
        (result,) = self._graph(gradient, self._scalars)
        norm = float(result.numpy())
        finite = math.isfinite(norm)
        return PushResult(finite, finite, norm)

    def discard_pending(self) -> None:
        self._pending, self._first = 0, None

    def keep_pending(self) -> None:
        """Copy a gradient that is pending alone: its memory may change after this."""
        if self._first is not None:
            np.copyto(self._sum, self._first)
            self._first = None

    def save_pending(self) -> None:
        """Write the incomplete sum to the variables, for a checkpoint."""
        self.keep_pending()
        self.variables["accumulated"].assign(self._sum if self._pending else np.zeros_like(self._sum))

    def restore_pending(self, count: int) -> None:
        """Go on with the incomplete sum of `count` gradients in the variables, from a checkpoint."""
        self._pending, self._first = count, None
        np.copyto(self._sum, values_of(self.variables["accumulated"]))

    def read(self) -> Float32Array:
        """The parameters, float32 [P]: a read-only view that the next push may change."""
        return values_of(self.parameters)

    def read_target(self) -> Float32Array:
        return values_of(self.variables["target_parameters"])

    def update_target(self) -> None:
        self.variables["target_parameters"].assign(self.parameters)

    def _update(self, gradient: tf.Tensor, scalars: tf.Tensor) -> tf.Tensor:
        """Scale, clip and apply the sum of an update. Returns its global norm before clipping."""
        learning_rate, factor = tf.unstack(scalars)
        norm = global_norm(gradient) * factor

        def apply() -> tf.Tensor:
            limit = self._max_gradient_norm
            # The mean and the clip are one pass over memory, without which a gradient is only read.
            scale = factor if limit is None else tf.where(norm > limit, factor * (limit / norm), factor)
            scaled = tf.cond(tf.equal(scale, 1.0), lambda: gradient, lambda: gradient * scale)
            self._optimizer.apply(self.parameters, scaled, learning_rate)
            return norm

        # A non-finite sum would stay in the optimizer's running means.
        return tf.cond(tf.math.is_finite(norm), apply, lambda: norm)
