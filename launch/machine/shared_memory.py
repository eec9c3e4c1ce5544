"""Vectors that processes of one machine share: a gradient or a set of weights is copied once, not four times.

The memory is that of a file without a name (`memfd_create`, Linux): it goes when the last process that maps it has
ended, however that ended, so nothing can be left behind.
"""

import functools
import mmap
import os
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_NAME = "tributary"
_PROCESSES = "/proc"


class VectorAddress(NamedTuple):
    """Where a vector is: its file is open in process `pid` of `machine` under the number `descriptor`."""

    machine: str
    pid: int
    descriptor: int
    size: int
    dtype: str


class SharedVector:
    """A vector in shared memory. Who may write it at which moment is settled by messages, not here.

    Args:
        size: elements.
        dtype: of each.
    """

    def __init__(self, size: int, dtype: str) -> None:
        self._descriptor = os.memfd_create(_NAME)
        try:
            os.ftruncate(self._descriptor, size * np.dtype(dtype).itemsize)
            self.values: npt.NDArray[np.generic] = _map(self._descriptor, size, dtype)
        except OSError:
            os.close(self._descriptor)
            raise
        self.address = VectorAddress(machine_id(), os.getpid(), self._descriptor, size, dtype)

    def close(self) -> None:
        """Close the file. The memory stays as long as a process maps it."""
        os.close(self._descriptor)


class VectorPool:
    """Vectors of one dtype and size, as many as are in use at the same time.

    Args:
        dtype: of each element.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        self._vectors: list[SharedVector] = []

    def free(self, size: int, in_use: Iterable[SharedVector | None]) -> SharedVector:
        """A vector of `size` elements that is none of those in use: a new one, if all are."""
        used = {id(vector) for vector in in_use}
        for vector in self._vectors:
            if id(vector) not in used:
                return vector
        self._vectors.append(SharedVector(size, self._dtype))
        return self._vectors[-1]

    def close(self) -> None:
        """Close the files of all vectors. Their memory stays as long as a process maps it."""
        for vector in self._vectors:
            vector.close()
        self._vectors = []


def available() -> bool:
    """Whether this system has files without a name, and shows the open files of other processes: Linux does."""
    return hasattr(os, "memfd_create") and os.path.isdir(_PROCESSES)


def attach(address: VectorAddress) -> npt.NDArray[np.generic] | None:
    """The vector that another process of this machine made; None if it cannot be reached from here."""
    if not available() or address.machine != machine_id():
        return None
    path = f"{_PROCESSES}/{address.pid}/fd/{address.descriptor}"
    try:
        # The number of a process may have gone to another one since.
        if not os.readlink(path).startswith(f"/memfd:{_NAME}"):
            return None
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        return _map(descriptor, address.size, address.dtype)
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)


def _map(descriptor: int, size: int, dtype: str) -> npt.NDArray[np.generic]:
    # A mapping starts at a page, so TensorFlow takes the array as it is, see `shared.graph.Graph`.
    return np.frombuffer(mmap.mmap(descriptor, size * np.dtype(dtype).itemsize), dtype)


@functools.cache
def machine_id() -> str:
    """Of this boot of this machine, and of this container: process ids mean the same where it is the same."""
    try:
        with open(f"{_PROCESSES}/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink(f'{_PROCESSES}/self/ns/pid')}"
    except OSError:
        return f"unknown {os.getpid()}"
