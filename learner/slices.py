"""The tensors of a run in slices that are updated each by itself, and in one order.

What needs the whole vector is one number, its norm: it says whether a gradient is finite, and by what it is clipped. It
is summed by blocks that do not depend on the slices (`shared.norm`), so that any number of slices makes the same
weights to the bit.

A gradient must not be in some slices when another finds that it is not finite. So its norm is known before any slice
gets it: whoever makes a gradient in another process says so with it (`GradientPieces`). Slices that found it out
themselves would have to keep each gradient until all have answered, and the learner to wait for them every time.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from learner.accumulator import sum_scale
from learner.optimizer import make_optimizer
from learner.slice import Slice
from learner.tensors import PushResult
from shared.blocks import block_size, slice_bounds
from shared.config import LearnerConfig, OptimizerConfig
from shared.graph import Graph
from shared.norm import BlockwiseNorm
from shared.types import Float32Array, GradientPieces

State = dict[str, npt.NDArray[Any]]


class Part(Protocol):
    """A `Slice`, wherever it is. Its calls are done in their order, and may be under way when they have returned.

    A gradient is float32 [N], or what stands for it there. What has to be waited for is given as a function that waits.
    """

    def add(self, gradient: Any, weight: float) -> None: ...
    def complete(self, gradient: Any, weight: float, scale: float) -> Callable[[], Float32Array]: ...
    def update(self, gradient: Any | None, learning_rate: float, factor: float) -> None: ...
    def discard(self) -> None: ...
    def write(self, begin: int, values: Float32Array) -> None: ...
    def keep_target(self) -> None: ...
    def state(self) -> Callable[[], State]: ...
    def restore(self, state: State) -> None: ...
    def read(self) -> Callable[[], Float32Array]: ...
    def read_target(self) -> Callable[[], Float32Array]: ...

    def piece(self) -> Any:
        """What stands for the parameters as they are now, where the slice is in another process."""
        ...

    def target_piece(self) -> Any:
        """What stands for the target network's."""
        ...


class Slices:
    """`Tensors` in slices.

    Args:
        initial: float32 [P].
        learner: K, whether the K gradients are summed or averaged, and whether old ones weigh less.
        optimizer: which optimizer with which constants, and the norm to clip to.
        parts: the slices, with these initial parameters: those that `slice_bounds` says.
        target: whether there is a target network.
        elsewhere: the parts are in other processes, and take gradients as `GradientPieces`.
    """

    def __init__(
        self,
        initial: Float32Array,
        learner: LearnerConfig,
        optimizer: OptimizerConfig,
        parts: Sequence[Part],
        *,
        target: bool,
        elsewhere: bool,
    ) -> None:
        assert not learner.keeps_versions, "the settings refuse to compare slices with former weights"
        self._bounds, self._parts = slice_bounds(len(initial), len(parts)), parts
        self._elsewhere = elsewhere
        self._weighs = learner.staleness == "inverse"
        # None: it may be another one in each update.
        self._fixed_k = learner.gradients_per_update if learner.target_policy_lag is None else None
        self._mean = learner.accumulation == "mean"
        self._max_gradient_norm = optimizer.max_gradient_norm
        self._norms = BlockwiseNorm(len(initial))
        self._scale_graph = Graph(self._scales, [tf.TensorSpec([2], tf.float32)])
        self._pending, self._weights = 0, np.float32(0.0)
        # What a checkpoint is written from and read into; in between it is of no use.
        slots = make_optimizer(len(initial), optimizer)
        self._common = slots.common
        self.variables: dict[str, tf.Variable] = {
            "parameters": tf.Variable(initial, name="parameters"),
            "accumulated": tf.Variable(tf.zeros(initial.shape), name="accumulated"),
            "pending": tf.Variable(0, dtype=tf.int32, name="pending"),
            **slots.variables,
        }
        if self._weighs:
            self.variables["weights"] = tf.Variable(0.0, name="weights")
        if target:
            self.variables["target_parameters"] = tf.Variable(initial, trainable=False, name="target_parameters")

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
        assert former is None, "the settings refuse to compare slices with former weights"
        if not isinstance(gradient, GradientPieces):
            pieces = tuple(gradient[begin:end] for begin, end in self._bounds)
            gradient = GradientPieces(pieces, self._norms.block_norms(gradient))
        norm = self._norms.norm(gradient.block_norms)
        weight = np.float32(1.0) / np.float32(max(1, lag)) if self._weighs else np.float32(1.0)
        if not np.isfinite(norm):
            return PushResult(False, False, float(norm), float(weight))
        k = gradients_per_update if self._fixed_k is None else self._fixed_k
        rate = np.float32(learning_rate) * np.float32(rate_factor)
        if k <= 1:
            self._update(gradient.slices, rate * weight, norm)
            return PushResult(True, True, float(norm), float(weight))
        self._pending += count
        if self._weighs:
            self._weights += weight
        if self._pending < k:
            for part, piece in zip(self._parts, gradient.slices, strict=True):
                part.add(piece, float(weight))
            return PushResult(True, False, float(norm), float(weight))
        scale, mean_weight = self._scale(k)
        completed = [
            part.complete(piece, float(weight), float(scale))
            for part, piece in zip(self._parts, gradient.slices, strict=True)
        ]
        norm = self._norms.norm(np.concatenate([norms() for norms in completed]))
        self._pending, self._weights = 0, np.float32(0.0)
        self._update([None] * len(self._parts), rate * mean_weight, norm)
        return PushResult(True, True, float(norm), float(weight))

    def discard(self) -> None:
        """See `Tensors.discard`."""
        self._pending, self._weights = 0, np.float32(0.0)
        for part in self._parts:
            part.discard()

    def write(self, where: slice, values: Float32Array) -> None:
        """See `Tensors.write`."""
        for part, (begin, end) in zip(self._parts, self._bounds, strict=True):
            first, last = max(begin, where.start), min(end, where.stop)
            if first < last:
                part.write(first - begin, values[first - where.start : last - where.start])

    def read(self) -> Float32Array:
        """See `Tensors.read`."""
        return _joined([part.read() for part in self._parts])

    def pieces(self) -> tuple[Any, ...]:
        """See `Tensors.pieces`."""
        return tuple(part.piece() for part in self._parts) if self._elsewhere else ()

    def keep_target(self) -> None:
        """See `Tensors.keep_target`."""
        for part in self._parts:
            part.keep_target()

    def read_target(self) -> Float32Array:
        """See `Tensors.read_target`."""
        return _joined([part.read_target() for part in self._parts])

    def target_pieces(self) -> tuple[Any, ...]:
        """See `Tensors.target_pieces`."""
        return tuple(part.target_piece() for part in self._parts) if self._elsewhere else ()

    def gather(self) -> None:
        """See `Tensors.gather`."""
        asked = [part.state() for part in self._parts]
        states = [state() for state in asked]
        for name in states[0]:
            first, *others = [state[name] for state in states]
            self.variables[name].assign(first if name in self._common else np.concatenate([first, *others]))
        self.variables["pending"].assign(self._pending)
        if self._weighs:
            self.variables["weights"].assign(self._weights)

    def scatter(self) -> None:
        """See `Tensors.scatter`."""
        self._pending = int(self.variables["pending"])
        if self._weighs:
            self._weights = np.float32(self.variables["weights"])
        whole = {
            name: variable.numpy() for name, variable in self.variables.items() if name not in ("pending", "weights")
        }
        for part, bounds in zip(self._parts, self._bounds, strict=True):
            part.restore({name: self._cut(name, values, *bounds) for name, values in whole.items()})

    def _cut(self, name: str, values: npt.NDArray[Any], begin: int, end: int) -> npt.NDArray[Any]:
        # What an optimizer does without has no entries, and none in a slice.
        return values if name in self._common else values[begin:end]

    def _update(self, gradients: Sequence[Any], learning_rate: np.float32, norm: np.float32) -> None:
        most, factor = self._max_gradient_norm, np.float32(1.0)
        if most is not None and norm > np.float32(most):
            factor = np.float32(most) / norm
        for part, gradient in zip(self._parts, gradients, strict=True):
            part.update(gradient, float(learning_rate), float(factor))

    def _scale(self, k: int) -> tuple[np.float32, np.float32]:
        """See `sum_scale`."""
        scale, mean_weight = self._scale_graph(np.array([self._weights, k], np.float32))[0].numpy()
        return scale, mean_weight

    def _scales(self, numbers: tf.Tensor) -> tf.Tensor:
        k = numbers[1] if self._fixed_k is None else float(self._fixed_k)
        return tf.stack(sum_scale(numbers[0] if self._weighs else None, k, mean=self._mean))


class _PartHere:
    """A slice in this process."""

    def __init__(self, part: Slice) -> None:
        self._slice = part
        self.add, self.update, self.discard = part.add, part.update, part.discard
        self.write, self.keep_target, self.restore = part.write, part.keep_target, part.restore

    def complete(self, gradient: Float32Array, weight: float, scale: float) -> Callable[[], Float32Array]:
        norms = self._slice.complete(gradient, weight, scale)
        return lambda: norms

    def state(self) -> Callable[[], State]:
        return self._slice.state

    def read(self) -> Callable[[], Float32Array]:
        return self._slice.read

    def read_target(self) -> Callable[[], Float32Array]:
        return self._slice.read_target

    def piece(self) -> Any:
        raise AssertionError("it is in no other process")

    target_piece = piece


def parts_here(
    initial: Float32Array, learner: LearnerConfig, optimizer: OptimizerConfig, *, target: bool
) -> Sequence[Part]:
    """The slices of a run in one process.

    Raises:
        ConfigurationError: there are too few parameters for so many slices.
    """
    block = block_size(len(initial))
    return [
        _PartHere(Slice(initial[begin:end], block, optimizer, target=target))
        for begin, end in slice_bounds(len(initial), learner.shards)
    ]


def _joined(pieces: Sequence[Callable[[], Float32Array]]) -> Float32Array:
    """The whole vector, read-only."""
    whole = np.concatenate([piece() for piece in pieces])
    whole.flags.writeable = False
    return whole
