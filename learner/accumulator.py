"""Accumulate gradients in a graph-mode variable, and apply when K of them have arrived."""

from typing import NamedTuple

import tensorflow as tf

from learner.optimizer import make_optimizer
from shared.config import LearnerConfig, OptimizerConfig
from shared.graph import Graph, aligned, tensor_on
from shared.types import Float32Array


class PushResult(NamedTuple):
    """What became of one gradient.

    `finite` is False when it was refused; `applied` is True when it completed an update, and then `gradient_norm`
    is the global norm of the accumulated gradient before clipping (else that of the pushed one alone).
    """

    finite: bool
    applied: bool
    gradient_norm: float


class GradientAccumulator:
    """Parameters, their optimizer, and the sum of the gradients that wait for the next update.

    `push` is one graph call. The gradient enters it as an argument, computed by another graph, so no gradient in it
    can see weights that it has already changed.

    Args:
        parameters: initial float32 [P].
        learner: K, and whether the K gradients are summed or averaged.
        optimizer: which optimizer with which constants, and the norm to clip to.
    """

    def __init__(self, parameters: Float32Array, learner: LearnerConfig, optimizer: OptimizerConfig) -> None:
        self.parameters = tf.Variable(parameters, name="parameters")
        self.accumulated = tf.Variable(tf.zeros_like(self.parameters), name="accumulated")
        self.pending = tf.Variable(0, dtype=tf.int32, name="pending")
        self.optimizer = make_optimizer(len(parameters), optimizer)
        self._gradients_per_update = learner.gradients_per_update
        self._scale = 1.0 / learner.gradients_per_update if learner.accumulation == "mean" else 1.0
        self._max_gradient_norm = optimizer.max_gradient_norm
        # Written anew for each push: two tensors of one number each would take longer to make than the array to write.
        self._learning_rate_and_count = aligned((2,), "float32")
        self._numbers = tensor_on(self._learning_rate_and_count)
        self.push_graph = Graph(
            self._push, [tf.TensorSpec(parameters.shape, tf.float32), tf.TensorSpec((2,), tf.float32)]
        )

    def push(self, gradient: Float32Array, learning_rate: float, count: int = 1) -> PushResult:
        """Add a gradient float32 [P]; apply the sum, and reset it to exact zero, if it is the K-th.

        `count` says how many gradients it is the sum of. A gradient whose norm is not finite changes nothing.
        """
        self._learning_rate_and_count[:] = learning_rate, count
        (result,) = self.push_graph(gradient, self._numbers)
        finite, applied, norm = result.numpy().tolist()
        return PushResult(bool(finite), bool(applied), norm)

    def discard(self) -> None:
        """Forget the gradients that wait for an update."""
        self.accumulated.assign(tf.zeros_like(self.accumulated))
        self.pending.assign(0)

    def _push(self, gradient: tf.Tensor, learning_rate_and_count: tf.Tensor) -> tf.Tensor:
        learning_rate, count = learning_rate_and_count[0], tf.cast(learning_rate_and_count[1], tf.int32)
        norm = _norm(gradient)
        finite = tf.math.is_finite(norm)

        def add() -> tf.Tensor:
            if self._gradients_per_update == 1:
                # Decided while the graph is traced: K = 1 needs neither the sum nor its reset, two passes over memory.
                return self._apply(gradient, norm, learning_rate)
            self.accumulated.assign_add(gradient)
            pending = self.pending.assign_add(count)
            return tf.cond(pending >= self._gradients_per_update, lambda: self._apply_sum(learning_rate), hold)

        def hold() -> tf.Tensor:
            return tf.stack([1.0, 0.0, norm])

        return tf.cond(finite, add, lambda: tf.stack([0.0, 0.0, norm]))

    def _apply_sum(self, learning_rate: tf.Tensor) -> tf.Tensor:
        # Reading comes before resetting, and resetting before applying: without these dependencies a graph may run
        # them in any order.
        gradient = self.accumulated.read_value() * self._scale
        with tf.control_dependencies([gradient]):
            reset = [self.accumulated.assign(tf.zeros_like(gradient)), self.pending.assign(0)]
        with tf.control_dependencies(reset):
            return self._apply(gradient, _norm(gradient), learning_rate)

    def _apply(self, gradient: tf.Tensor, norm: tf.Tensor, learning_rate: tf.Tensor) -> tf.Tensor:
        most = self._max_gradient_norm
        if most is not None:
            # `tf.clip_by_global_norm` would multiply every gradient, also those that need no clipping.
            gradient = tf.cond(norm > most, lambda: gradient * (most / norm), lambda: gradient)
        self.optimizer.apply(self.parameters, gradient, learning_rate)
        return tf.stack([1.0, 1.0, norm])


def _norm(gradient: tf.Tensor) -> tf.Tensor:
    """The global norm, in one pass over memory where `tf.norm` takes three."""
    return tf.sqrt(2.0 * tf.nn.l2_loss(gradient))
