"""Named tensors as one flat float32 vector, the form of weights and gradients in messages and in the learner."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.types import Float32Array


@dataclass(frozen=True)
class ParameterLayout:
    """Position of each named tensor in the flat vector of parameters.

    Layouts with the same `fingerprint` agree on the name, shape and position of every weight.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, variables: Sequence[Any]) -> "ParameterLayout":
        """The layout of Keras variables in the given order."""
        names = tuple(variable.path for variable in variables)
        if len(set(names)) != len(names):
            raise ValueError(f"parameter names must be unique, got {names}")
        return cls(names, tuple(tuple(int(n) for n in variable.shape) for variable in variables))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(int(np.prod(shape, dtype=np.int64)) for shape in self.shapes)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        return tuple(int(n) for n in np.cumsum((0, *self.sizes[:-1]))) if self.sizes else ()

    @cached_property
    def size(self) -> int:
        """P, the length of the flat vector."""
        return sum(self.sizes)

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that depend on all names, shapes and positions."""
        text = ";".join(f"{name}{shape}" for name, shape in zip(self.names, self.shapes, strict=True))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def range_of(self, name: str) -> slice:
        i = self.names.index(name)
        return slice(self.offsets[i], self.offsets[i] + self.sizes[i])

    def flatten(self, tensors: Sequence[npt.ArrayLike]) -> Float32Array:
        """Join tensors, given in the order of the layout, into a new float32 [P]; a ValueError if one does not fit."""
        flat = np.empty(self.size, np.float32)
        for name, shape, offset, tensor in zip(self.names, self.shapes, self.offsets, tensors, strict=True):
            array = np.asarray(tensor, np.float32)
            if array.shape != shape:
                raise ValueError(f"{name}: expected shape {shape}, got {array.shape}")
            flat[offset : offset + array.size] = array.ravel()
        return flat

    def split(self, flat: Float32Array) -> list[Float32Array]:
        """Views of a float32 [P] as the tensors of the layout, in its order."""
        if flat.shape != (self.size,):
            raise ValueError(f"expected a vector of {self.size} parameters, got shape {flat.shape}")
        return [
            flat[offset : offset + size].reshape(shape)
            for offset, size, shape in zip(self.offsets, self.sizes, self.shapes, strict=True)
        ]
