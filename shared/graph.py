"""Graphs that are called a thousand times a second: traced once, with little overhead per call."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from shared.types import Float32Array


class Graph:
    """A function of tensors with one signature, traced at its first call.

    A call of a `tf.function` with arrays takes about 190 µs before the graph starts, to match its arguments to a trace
    and to copy them, and twice that with cold caches. On the CPU this class calls the traced operation directly on the
    arrays' memory: 10 µs. Arrays that start at a multiple of 64 bytes, see `aligned`, are not copied; they may change
    after the call. A variable that is assigned from one shares its memory: it changes with it, and may be changed by
    `assign` alone. Calls are synchronous.

    `function` returns a tensor, a tuple of tensors, or None. Its arguments may be nested tuples, as the signature is.
    With `compiled` XLA compiles it at its first call, which the operation alone would not: then a call costs what that
    of a `tf.function` does.
    """

    def __init__(self, function: Callable[..., Any], signature: Sequence[Any], *, compiled: bool = False) -> None:
        self._function = tf.function(
            function, input_signature=signature, autograph=False, jit_compile=True if compiled else None
        )
        self._signature = [(tuple(spec.shape), spec.dtype) for spec in tf.nest.flatten(signature)]
        self._concrete: Any = None
        self._compiled = compiled
        self._by_runtime = False
        self._captured: list[tf.Tensor] = []
        self._output_dtypes: list[tf.DType] = []

    @property
    def traces(self) -> int:
        return self._function.experimental_get_tracing_count()

    def __call__(self, *arguments: Any) -> list[tf.Tensor]:
        """The tensors that the function returns. Arguments are arrays of the signature, or tensors; others a
        ValueError.
        """
        if tf.config.functions_run_eagerly():
            return _flat(self._function(*tf.nest.map_structure(tf.convert_to_tensor, arguments)))
        if self._concrete is None:
            self._concrete = self._function.get_concrete_function()
            self._captured = self._concrete.captured_inputs
            self._by_runtime = self._compiled or has_gpu()
            self._output_dtypes = [output.dtype for output in self._concrete.outputs]
        tensors = [self._tensor(x, *spec) for x, spec in zip(tf.nest.flatten(arguments), self._signature, strict=True)]
        if self._by_runtime:
            # It copies arguments to the GPU.
            return _flat(self._concrete(*tf.nest.pack_sequence_as(arguments, tensors)))
        # The operation of a `tf.function`, without its Python code.
        return tf.raw_ops.StatefulPartitionedCall(
            args=[*tensors, *self._captured], Tout=self._output_dtypes, f=self._concrete
        )

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
            and array.nbytes >= _MIN_SHARED_BYTES
            and array.flags.c_contiguous
            and array.ctypes.data % ALIGNMENT == 0
        ):
            return tensor_on(array)
        return tf.convert_to_tensor(array)


def has_gpu() -> bool:
    """True if TensorFlow computes on a GPU in this process."""
    return bool(tf.config.list_logical_devices("GPU"))


# Required by TensorFlow's kernels.
ALIGNMENT = 64
# A smaller array is cheaper to copy.
_MIN_SHARED_BYTES = 4096


def aligned(shape: tuple[int, ...], dtype: str) -> npt.NDArray[np.generic]:
    """An empty array that a `Graph` does not copy: it starts at a multiple of 64 bytes."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def aligned_copy(array: Float32Array) -> Float32Array:
    copy = aligned(array.shape, "float32")
    copy[...] = array
    return copy  # type: ignore[return-value]


def tensor_on(array: npt.NDArray[np.generic]) -> tf.Tensor:
    """A tensor on the memory of an `aligned` array, which it keeps alive. Graphs see later writes."""
    if not array.flags.writeable:
        # As arrays of Ray's object store are. NumPy does not export them by DLPack.
        memory: Any = (ctypes.c_char * array.nbytes).from_address(array.ctypes.data)
        memory.owner = array
        array = np.frombuffer(memory, array.dtype).reshape(array.shape)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())  # type: ignore[misc]


def as_array(tensor: tf.Tensor) -> Float32Array:
    """The values of a tensor, read-only, without a copy on the CPU."""
    if tensor.device.endswith("CPU:0"):
        return np.asarray(memoryview(tensor))
    return tensor.numpy()


def values_of(variable: tf.Variable) -> Float32Array:
    """The values of a variable, read-only, as `as_array`. They may change with the variable."""
    # `variable.value()` looks for gradient tapes first: 270 µs instead of 120 with a learner's cold caches.
    return as_array(tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype))


def _flat(outputs: Any) -> list[tf.Tensor]:
    return [tensor for tensor in tf.nest.flatten(outputs) if tensor is not None]
