"""Observations of any space without images as vectors: all its numbers side by side, and choices one-hot."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from actors.environments.pictures import is_picture
from shared.types import Float32Array

# Writes observations [B, …] of one part to float32 [B, size].
_Write = Callable[[npt.NDArray[Any], Float32Array], None]


class _Part(NamedTuple):
    """A part of a space: where it is, what its numbers may be, each float32 [size], and how it is written."""

    path: tuple[Any, ...]
    low: Float32Array
    high: Float32Array
    write: _Write


class Vectors:
    """How observations of one space become vectors. Text is left out, and `left_out` names it.

    Args:
        space: of one observation.

    Raises:
        ValueError: it has images in it, or what is neither numbers nor choices nor text.
    """

    def __init__(self, space: gymnasium.Space) -> None:
        self.left_out: list[str] = []
        self._parts = list(self._parts_of(space, ()))
        if not self._parts:
            raise ValueError(f"observations are {space}: there are no numbers in them")
        self.low = np.concatenate([part.low for part in self._parts])
        self.high = np.concatenate([part.high for part in self._parts])

    @property
    def size(self) -> int:
        """Of one vector."""
        return len(self.low)

    def write(self, observations: Any, to: Float32Array) -> None:
        """Write a batch of observations, as a vector environment gives them, to float32 [B, size]."""
        start = 0
        for part in self._parts:
            found = observations
            for key in part.path:
                found = found[key]
            part.write(np.asarray(found), to[:, start : start + len(part.low)])
            start += len(part.low)

    def _parts_of(self, space: gymnasium.Space, path: tuple[Any, ...]) -> Iterator[_Part]:
        if isinstance(space, Dict):
            for key, inner in space.spaces.items():
                yield from self._parts_of(inner, (*path, key))
        elif isinstance(space, Tuple):
            for i, inner in enumerate(space.spaces):
                yield from self._parts_of(inner, (*path, i))
        elif isinstance(space, Box | MultiBinary):
            if path and is_picture(space):
                raise ValueError(
                    f"observation {_name(path)} is an image beside others: only images alone can be played so far; "
                    f"choose it, or the rest, by a wrapper: --environment.wrappers MODULE:WRAPPER"
                )
            low, high = (
                (space.low, space.high) if isinstance(space, Box) else (np.zeros(space.shape), np.ones(space.shape))
            )
            yield _Part(path, low.ravel().astype(np.float32), high.ravel().astype(np.float32), _write_numbers)
        elif isinstance(space, Discrete | MultiDiscrete):
            sizes = np.ravel(space.n if isinstance(space, Discrete) else space.nvec)
            size = int(sizes.sum())
            write = _write_one_hot(np.ravel(space.start), np.cumsum(sizes) - sizes)
            yield _Part(path, np.zeros(size, np.float32), np.ones(size, np.float32), write)
        elif isinstance(space.sample(), str):
            self.left_out.append(_name(path))
        else:
            raise ValueError(
                f"observations are {space}: neither numbers nor choices; wrap it in an environment that gives some: "
                f"--environment.wrappers MODULE:WRAPPER"
            )


def _write_numbers(observations: npt.NDArray[Any], to: Float32Array) -> None:
    to[...] = observations.reshape(len(to), -1)


def _write_one_hot(start: npt.NDArray[np.int64], first: npt.NDArray[np.int64]) -> _Write:
    """For choices whose lowest values are `start`, and whose first columns are `first`."""

    def write(observations: npt.NDArray[Any], to: Float32Array) -> None:
        to[...] = 0.0
        np.put_along_axis(to, observations.reshape(len(to), -1) - start + first, 1.0, axis=1)

    return write


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path)) or "itself"
