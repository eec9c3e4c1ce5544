"""What travels between processes: float32 vectors as they are, or rounded to bfloat16, which is half the bytes."""

from typing import Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from shared.types import Float32Array

WirePrecision = Literal["float32", "bfloat16"]

_DTYPES = {"float32": "float32", "bfloat16": "uint16"}


def wire_dtype(precision: WirePrecision) -> str:
    """The dtype of an encoded vector. The 16 bits of a bfloat16 travel as integers, which every library can hold."""
    return _DTYPES[precision]


def encode(vector: Float32Array, precision: WirePrecision) -> npt.NDArray[np.generic]:
    """A float32 [P] as it travels: itself, or rounded to nearest, ties to even."""
    if precision == "float32":
        return vector
    return vector.astype(ml_dtypes.bfloat16).view(np.uint16)


def decode(vector: npt.NDArray[np.generic]) -> Float32Array:
    """The float32 [P] that an encoded vector stands for: itself, or a new array."""
    if vector.dtype == np.uint16:
        return vector.view(ml_dtypes.bfloat16).astype(np.float32)
    return vector.astype(np.float32, copy=False)
