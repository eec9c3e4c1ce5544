"""Accumulate gradients in a graph-mode variable, and apply when K of them have arrived."""

from functools import partial
from typing import NamedTuple

import tensorflow as tf

from learner.optimizer import make_optimizer
from learner.staleness import Judged, make_staleness
from shared.config import LearnerConfig, OptimizerConfig
from shared.graph import Graph, aligned, tensor_on
from shared.types import Float32Array


class PushResult(NamedTuple):
    """What became of one gradient.

    `finite` is False when it was refused; `applied` is True when it completed an update, and then `gradient_norm`
    is the global norm of the accumulated gradient before clipping (else that of the pushed one alone). `weight` is
    what it counts for in its update.
    """

    finite: bool
    applied: bool
    gradient_norm: float
    weight: float


class _Numbers(NamedTuple):
    """What changes from push to push, in the order of the graph's argument: float32 scalars."""

    learning_rate: tf.Tensor
    rate_factor: tf.Tensor
    count: tf.Tensor
    gradients_per_update: tf.Tensor
    lag: tf.Tensor


class GradientAccumulator:
    """Parameters, their optimizer, and the sum of the gradients that wait for the next update.

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
    """

    def __init__(
        self,
        parameters: Float32Array,
        learner: LearnerConfig,
        optimizer: OptimizerConfig,
        trained: Float32Array | None = None,
    ) -> None:
        self.parameters = tf.Variable(parameters, name="parameters")
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

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """The variables of a checkpoint, by name."""
        variables = {
            "parameters": self.parameters,
            "accumulated": self.accumulated,
            "pending": self.pending,
            **self.optimizer.variables,
        }
        if self._staleness is not None:
            variables |= self._staleness.variables
        if self._weighs:
            variables["weights"] = self._weights
        return variables

    def push(
        self,
        gradient: Float32Array,
        learning_rate: float,
        count: int = 1,
        *,
        gradients_per_update: int = 1,
        rate_factor: float = 1.0,
        lag: int = 0,
        former: tf.Tensor | None = None,
    ) -> PushResult:
        """Add a gradient float32 [P]; apply the sum, and reset it to exact zero, if it is the K-th.

        A gradient whose norm is not finite changes nothing.

        Args:
            gradient: float32 [P].
            learning_rate: η of the schedule.
            count: how many gradients it is the sum of.
            gradients_per_update: K of the update in progress, and
            rate_factor: what η is multiplied by: both only where the settings have a target for the policy lag.
            lag: updates between the weights that the gradient was computed with and the present ones.
            former: those weights, float32 [P], where the settings keep former weights.
        """
        self._values[:] = learning_rate, rate_factor, count, gradients_per_update, lag
        (result,) = self.push_graph(gradient, self._numbers, *([] if former is None else [former]))
        finite, applied, norm, weight = result.numpy().tolist()
        return PushResult(bool(finite), bool(applied), norm, weight)

    def discard(self) -> None:
        """Forget the gradients that wait for an update."""
        self.accumulated.assign(tf.zeros_like(self.accumulated))
        self.pending.assign(0)
        self._weights.assign(0.0)

    def _push(self, gradient: tf.Tensor, values: tf.Tensor, former: tf.Tensor | None = None) -> tf.Tensor:
        numbers = _Numbers(*tf.unstack(values))
        judged = self._judge(gradient, numbers.lag, former)
        norm = _norm(judged.gradient)

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
            lambda: self._apply_sum(judged.weight, numbers),
            lambda: tf.stack([1.0, 0.0, norm, judged.weight]),
        )

    def _apply_sum(self, weight: tf.Tensor, numbers: _Numbers) -> tf.Tensor:
        # Reading comes before resetting, and resetting before applying: without these dependencies a graph may run
        # them in any order.
        k = numbers.gradients_per_update if self._fixed_k is None else float(self._fixed_k)
        scale, mean_weight = (1.0 / k if self._mean else 1.0), tf.constant(1.0)
        if self._weighs:
            mean_weight = self._weights.read_value() / k
            scale /= mean_weight
        gradient = self.accumulated.read_value() * scale
        with tf.control_dependencies([gradient]):
            reset = [self.accumulated.assign(tf.zeros_like(gradient)), self.pending.assign(0)]
            if self._weighs:
                reset.append(self._weights.assign(0.0))
        with tf.control_dependencies(reset):
            return self._apply(Judged(gradient, weight), _norm(gradient), numbers, mean_weight)

    def _apply(self, judged: Judged, norm: tf.Tensor, numbers: _Numbers, mean_weight: tf.Tensor) -> tf.Tensor:
        """Update the parameters; `judged` has the weight of the gradient that was pushed last."""
        gradient, most = judged.gradient, self._max_gradient_norm
        if most is not None:
            # `tf.clip_by_global_norm` would multiply every gradient, also those that need no clipping.
            gradient = tf.cond(norm > most, lambda: gradient * (most / norm), lambda: gradient)
        learning_rate = numbers.learning_rate
        if self._fixed_k is None:
            learning_rate *= numbers.rate_factor
        if self._weighs:
            learning_rate *= mean_weight
        update = partial(self.optimizer.apply, self.parameters, gradient, learning_rate)
        if self._staleness is None:
            update()
        else:
            self._staleness.around_update(self.parameters, numbers.learning_rate, update)
        return tf.stack([1.0, 1.0, norm, judged.weight])


def _norm(gradient: tf.Tensor) -> tf.Tensor:
    """The global norm, in one pass over memory where `tf.norm` takes three."""
    return tf.sqrt(2.0 * tf.nn.l2_loss(gradient))
