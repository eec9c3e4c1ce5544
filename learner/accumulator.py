"""Accumulate gradients in a graph-mode variable, and apply when K of them have arrived."""

from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from learner.optimizer import make_optimizer
from learner.staleness import Judged, make_staleness
from learner.tensors import PushResult
from shared.blocks import block_size
from shared.config import LearnerConfig, OptimizerConfig
from shared.graph import Graph, aligned, tensor_on, values_of
from shared.norm import block_norms, norm_of
from shared.types import Float32Array, GradientPieces


class _Numbers(NamedTuple):
    """What changes from push to push, in the order of the graph's argument: float32 scalars."""

    learning_rate: tf.Tensor
    rate_factor: tf.Tensor
    count: tf.Tensor
    gradients_per_update: tf.Tensor
    lag: tf.Tensor


def sum_scale(weights: tf.Tensor | None, k: tf.Tensor | float, *, mean: bool) -> tuple[tf.Tensor | float, tf.Tensor]:
    """What a sum of K gradients is multiplied by for its update, and the mean of their weights, float32 scalars.

    `weights` is the sum of their weights; None: they have none. `mean`: they are averaged, and not summed.
    """
    scale = 1.0 / k if mean else 1.0
    if weights is None:
        return scale, tf.constant(1.0)
    mean_weight = weights / k
    return scale / mean_weight, mean_weight


class GradientAccumulator:
    """Parameters, their optimizer, and the sum of the gradients that wait for the next update: `Tensors` in one piece.

    `push` is one graph call. The gradient enters it as an argument, computed by another graph, so no gradient in it
    can see weights that it has already changed.

    Where gradients have weights w for their staleness, the gradient of an update is their weighted mean, times K where
    they are summed, and its learning rate is η · mean(w). For plain SGD that is the sum of w g. RMSProp and Adam take
    the scale out of a gradient, and clipping limits it: there a weight on the gradient alone would be lost.

    Args:
        parameters: initial float32 [P].
        learner: K, whether the K gradients are summed or averaged, and what becomes of old ones.
        optimizer: which optimizer with which constants, and the norm to clip to.
        trained: 1 for each parameter that gradients train and 0 for others, float32 [P]: the gap counts the former
            only. None: all are trained.
        target: whether there is a target network.
    """

    def __init__(
        self,
        parameters: Float32Array,
        learner: LearnerConfig,
        optimizer: OptimizerConfig,
        trained: Float32Array | None = None,
        *,
        target: bool = False,
    ) -> None:
        self.parameters = tf.Variable(parameters, name="parameters")
        self._block = block_size(len(parameters))
        self.accumulated = tf.Variable(tf.zeros_like(self.parameters), name="accumulated")
        self.pending = tf.Variable(0, dtype=tf.int32, name="pending")
        self.optimizer = make_optimizer(len(parameters), optimizer)
        self._staleness = make_staleness(len(parameters), learner, optimizer)
        self._weighs = self._staleness is not None and self._staleness.weighs
        self._weights = tf.Variable(0.0, name="weights")
        self._trained = trained
        # None: it may be another one in each update.
        self._fixed_k = learner.gradients_per_update if learner.target_policy_lag is None else None
        self._mean = learner.accumulation == "mean"
        self._max_gradient_norm = optimizer.max_gradient_norm
        # Written anew for each push: a tensor of each number would take longer to make than the array to write.
        self._values = aligned((len(_Numbers._fields),), "float32")
        self._numbers = tensor_on(self._values)
        signature = [tf.TensorSpec(parameters.shape, tf.float32), tf.TensorSpec(self._values.shape, tf.float32)]
        if learner.keeps_versions:
            signature.append(tf.TensorSpec(parameters.shape, tf.float32))
        self.push_graph = Graph(self._push, signature)
        self.variables = {
            "parameters": self.parameters,
            "accumulated": self.accumulated,
            "pending": self.pending,
            **self.optimizer.variables,
        }
        if self._staleness is not None:
            self.variables |= self._staleness.variables
        if self._weighs:
            self.variables["weights"] = self._weights
        if target:
            self.variables["target_parameters"] = tf.Variable(parameters, trainable=False, name="target_parameters")

    def push(
        self,
        gradient: Float32Array | GradientPieces,
        learning_rate: float,
        count: int = 1,
        *,
        gradients_per_update: int = 1,
        rate_factor: float = 1.0,
        lag: int = 0,
        former: tf.Tensor | None = None,
    ) -> PushResult:
        """See `Tensors.push`."""
        assert not isinstance(gradient, GradientPieces), "only slices in other processes take slices of gradients"
        self._values[:] = learning_rate, rate_factor, count, gradients_per_update, lag
        (result,) = self.push_graph(gradient, self._numbers, *([] if former is None else [former]))
        finite, applied, norm, weight = result.numpy().tolist()
        return PushResult(bool(finite), bool(applied), norm, weight)

    def discard(self) -> None:
        """See `Tensors.discard`."""
        self.accumulated.assign(tf.zeros_like(self.accumulated))
        self.pending.assign(0)
        self._weights.assign(0.0)

    def write(self, where: slice, values: Float32Array) -> None:
        """See `Tensors.write`."""
        self.parameters[where].assign(values)

    def read(self) -> Float32Array:
        """See `Tensors.read`."""
        return values_of(self.parameters)

    def pieces(self) -> tuple[Any, ...]:
        """See `Tensors.pieces`."""
        return ()

    def keep_target(self) -> None:
        """See `Tensors.keep_target`."""
        self.variables["target_parameters"].assign(self.parameters)

    def read_target(self) -> Float32Array:
        """See `Tensors.read_target`."""
        return values_of(self.variables["target_parameters"])

    def target_pieces(self) -> tuple[Any, ...]:
        """See `Tensors.target_pieces`."""
        return ()

    def gather(self) -> None:
        """See `Tensors.gather`."""

    def scatter(self) -> None:
        """See `Tensors.scatter`."""

    def _push(self, gradient: tf.Tensor, values: tf.Tensor, former: tf.Tensor | None = None) -> tf.Tensor:
        numbers = _Numbers(*tf.unstack(values))
        judged = self._judge(gradient, numbers.lag, former)
        norm = norm_of(block_norms(judged.gradient, self._block))

        def add() -> tf.Tensor:
            if self._staleness is not None:
                self._staleness.accept(judged)
            if self._fixed_k == 1:
                # Decided while the graph is traced: K = 1 needs neither the sum nor its reset, two passes over memory.
                return self._apply(judged, norm, numbers, judged.weight)
            if self._fixed_k is not None:
                return self._accumulate(judged, norm, numbers)
            return tf.cond(
                numbers.gradients_per_update <= 1.0,
                lambda: self._apply(judged, norm, numbers, judged.weight),
                lambda: self._accumulate(judged, norm, numbers),
            )

        return tf.cond(tf.math.is_finite(norm), add, lambda: tf.stack([0.0, 0.0, norm, judged.weight]))

    def _judge(self, gradient: tf.Tensor, lag: tf.Tensor, former: tf.Tensor | None) -> Judged:
        if self._staleness is None:
            return Judged(gradient, tf.constant(1.0))
        moved = None if former is None else self.parameters - former
        if moved is not None and self._trained is not None:
            moved *= self._trained
        return self._staleness.judge(gradient, lag, moved)

    def _accumulate(self, judged: Judged, norm: tf.Tensor, numbers: _Numbers) -> tf.Tensor:
        if self._weighs:
            self.accumulated.assign_add(judged.weight * judged.gradient)
            self._weights.assign_add(judged.weight)
        else:
            self.accumulated.assign_add(judged.gradient)
        pending = self.pending.assign_add(tf.cast(numbers.count, tf.int32))
        wanted = tf.cast(numbers.gradients_per_update, tf.int32) if self._fixed_k is None else self._fixed_k
        return tf.cond(
            pending >= wanted,
            lambda: self._apply_sum(judged.weight, numbers, pending),
            lambda: tf.stack([1.0, 0.0, norm, judged.weight]),
        )

    def _apply_sum(self, weight: tf.Tensor, numbers: _Numbers, pending: tf.Tensor) -> tf.Tensor:
        # Reading comes before resetting, and resetting before applying: without these dependencies a graph may run
        # them in any order.
        k = numbers.gradients_per_update if self._fixed_k is None else float(self._fixed_k)
        scale, mean_weight = sum_scale(self._weights.read_value() if self._weighs else None, k, mean=self._mean)
        gradient = self.accumulated.read_value() * scale
        if self._mean and self._fixed_k is not None:
            # Of more than K gradients, if some waited when a sum of K came: as after a resume that adds them on nodes.
            count = tf.cast(pending, tf.float32)
            gradient = tf.cond(count > k, lambda: gradient * (k / count), lambda: gradient)
        with tf.control_dependencies([gradient]):
            reset = [self.accumulated.assign(tf.zeros_like(gradient)), self.pending.assign(0)]
            if self._weighs:
                reset.append(self._weights.assign(0.0))
        with tf.control_dependencies(reset):
            norm = norm_of(block_norms(gradient, self._block))
            return self._apply(Judged(gradient, weight), norm, numbers, mean_weight)

    def _apply(self, judged: Judged, norm: tf.Tensor, numbers: _Numbers, mean_weight: tf.Tensor) -> tf.Tensor:
        """Update the parameters; `judged` has the weight of the gradient that was pushed last."""
        gradient, most = judged.gradient, self._max_gradient_norm
        if most is not None:
            # `tf.clip_by_global_norm` would multiply every gradient, also those that need no clipping.
            gradient = tf.cond(norm > most, lambda: gradient * (most / norm), lambda: gradient)
        learning_rate = numbers.learning_rate * numbers.rate_factor
        if self._weighs:
            learning_rate *= mean_weight
        update = partial(self.optimizer.apply, self.parameters, gradient, learning_rate)
        if self._staleness is None:
            update()
        else:
            self._staleness.around_update(self.parameters, numbers.learning_rate * mean_weight, update)
        return tf.stack([1.0, 1.0, norm, judged.weight])
