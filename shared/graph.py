"""Graphs that are called a thousand times a second: traced once, called with little around the call."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from shared.types import Float32Array


class Graph:
    """A function of tensors, traced at its first call with the one signature it has.

    Calling a `tf.function` with arrays costs about 190 µs before the graph starts (its arguments are matched to a
    trace, and copied), and twice that when caches are cold. On the CPU this one is called as the operation that it
    is, on the memory where its arguments lie: 10 µs. Not copied are arrays that start at a multiple of 64 bytes, see
    `aligned`, and are writeable; they may change again when the call has returned. Nothing here runs before an
    earlier call has ended.

    Args:
        function: of as many tensors as `signature` has; returns a tensor, a tuple of tensors, or None.
        signature: shapes and dtypes of its arguments.
    """

    def __init__(self, function: Callable[..., Any], signature: Sequence[tf.TensorSpec]) -> None:
        self._function = tf.function(function, input_signature=signature, autograph=False)
        self._signature = [(tuple(spec.shape), spec.dtype) for spec in signature]
        self._concrete: Any = None
        self._has_gpu = False
        self._captured: list[tf.Tensor] = []
        self._output_dtypes: list[tf.DType] = []

    @property
    def traces(self) -> int:
        """How often it was traced."""
        return self._function.experimental_get_tracing_count()

    def __call__(self, *arguments: npt.NDArray[np.generic] | np.generic | tf.Tensor) -> list[tf.Tensor]:
        """The tensors that the function returns for arrays of its signature. A tensor is passed on as it is.

        Raises:
            ValueError: an argument has another shape or dtype.
        """
        if tf.config.functions_run_eagerly():
            return _flat(self._function(*arguments))
        if self._concrete is None:
            self._trace()
        tensors = [self._tensor(x, *spec) for x, spec in zip(arguments, self._signature, strict=True)]
        if self._has_gpu:
            # There the runtime decides what is copied where.
            return _flat(self._concrete(*tensors))
        # The operation that a `tf.function` ends in, without the Python around it.
        return tf.raw_ops.StatefulPartitionedCall(
            args=[*tensors, *self._captured], Tout=self._output_dtypes, f=self._concrete
        )

    def _trace(self) -> None:
        self._concrete = self._function.get_concrete_function()
        self._captured = self._concrete.captured_inputs
        self._has_gpu = bool(tf.config.list_logical_devices("GPU"))
        self._output_dtypes = [output.dtype for output in self._concrete.outputs]

    @staticmethod
    def _tensor(
        array: npt.NDArray[np.generic] | np.generic | tf.Tensor, shape: tuple[int | None, ...], dtype: tf.DType
    ) -> tf.Tensor:
        if isinstance(array, tf.Tensor):
            return array
        if (
            array.dtype != dtype.as_numpy_dtype
            or array.ndim != len(shape)
            or any(wanted not in (None, actual) for wanted, actual in zip(shape, array.shape, strict=True))
        ):
            raise ValueError(f"an array {array.dtype} {array.shape}, where the graph takes {dtype.name} {shape}")
        if (
            isinstance(array, np.ndarray)
            and array.nbytes >= _LEAST_SHARED_BYTES
            and array.flags.writeable
            and array.flags.c_contiguous
            and array.ctypes.data % ALIGNMENT == 0
        ):
            # NumPy exports no read-only array this way: it is copied below.
            return tensor_on(array)
        return tf.convert_to_tensor(array)


# What TensorFlow's kernels count on.
ALIGNMENT = 64
# Below, a copy is cheaper than what it takes to avoid it.
_LEAST_SHARED_BYTES = 4096


def aligned(shape: tuple[int, ...], dtype: str) -> npt.NDArray[np.generic]:
    """An empty array that a `Graph` takes as it is: it starts at a multiple of 64 bytes."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def tensor_on(array: npt.NDArray[np.generic]) -> tf.Tensor:
    """A tensor that uses the memory of an `aligned` array: what is written there later, graphs see."""
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())  # type: ignore[misc]


def as_array(tensor: tf.Tensor) -> Float32Array:
    """The values of a tensor, read-only, and where that is possible in its own memory."""
    if tensor.device.endswith("CPU:0"):
        return np.asarray(memoryview(tensor))
    return tensor.numpy()


def values_of(variable: tf.Variable) -> Float32Array:
    """The values of a variable, read-only, as `as_array`. They may change when the variable does."""
    # `variable.value()` looks for gradient tapes first: with caches as cold as a learner's, 270 µs in place of 120.
    return as_array(tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype))


def _flat(outputs: Any) -> list[tf.Tensor]:
    return [tensor for tensor in tf.nest.flatten(outputs) if tensor is not None]
