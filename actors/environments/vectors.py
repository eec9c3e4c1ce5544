"""The numbers of an observation of any space as a vector: all of them side by side, and choices one-hot."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from actors.environments.pictures import inner_spaces, is_stack
from shared.types import Float32Array

# Writes observations [B, …] of one part to float32 [B, size].
_Write = Callable[[npt.NDArray[Any], Float32Array], None]


Path = tuple[Any, ...]
"""Where a part is in an observation: the keys of Dicts, and the places in Tuples, that lead to it."""


class _Part(NamedTuple):
    """A part of a space: where it is, what its numbers may be, each float32 [size], and how it is written."""

    path: Path
    low: Float32Array
    high: Float32Array
    write: _Write


class Vectors:
    """How observations of one space become vectors.

    Attributes:
        low, high: what the numbers may be, float32 [size].
        left_out: names of the parts that are text.
        images: the parts that are images, which are no part of the vector, as `Pictures` gives them.

    Args:
        space: of one observation.

    Raises:
        ValueError: there is something in it that is neither numbers nor choices nor images nor text, or only text.
    """

    def __init__(self, space: gymnasium.Space) -> None:
        self.left_out: list[str] = []
        self.images: list[tuple[Path, Box]] = []
        self._parts = list(self._parts_of(space, ()))
        if not self._parts and not self.images:
            raise ValueError(f"observations are {space}: there are no numbers in them")
        nothing = np.empty(0, np.float32)
        self.low = np.concatenate([nothing, *(part.low for part in self._parts)])
        self.high = np.concatenate([nothing, *(part.high for part in self._parts)])

    @property
    def size(self) -> int:
        """Of one vector."""
        return len(self.low)

    @property
    def sizes(self) -> tuple[tuple[str, int], ...]:
        """What the vector is made of: the names of its parts, and how many numbers each has."""
        return tuple((path_name(part.path), len(part.low)) for part in self._parts)

    def write(self, observations: Any, to: Float32Array) -> None:
        """Write a batch of observations, as a vector environment gives them, to float32 [B, size]."""
        start = 0
        for part in self._parts:
            part.write(np.asarray(found_at(part.path, observations)), to[:, start : start + len(part.low)])
            start += len(part.low)

    def _parts_of(self, space: gymnasium.Space, path: Path) -> Iterator[_Part]:
        if isinstance(space, Dict | Tuple):
            for key, inner in inner_spaces(space).items():
                yield from self._parts_of(inner, (*path, key))
        elif isinstance(space, Box) and is_stack(space):
            self.images.append((path, space))
        elif isinstance(space, Box | MultiBinary):
            low, high = (
                (space.low, space.high) if isinstance(space, Box) else (np.zeros(space.shape), np.ones(space.shape))
            )
            yield _Part(path, low.ravel().astype(np.float32), high.ravel().astype(np.float32), _write_numbers)
        elif isinstance(space, Discrete | MultiDiscrete):
            sizes = np.ravel(space.n if isinstance(space, Discrete) else space.nvec)
            size = int(sizes.sum())
            write = _write_one_hot(path_name(path), np.ravel(space.start), sizes)
            yield _Part(path, np.zeros(size, np.float32), np.ones(size, np.float32), write)
        elif isinstance(space.sample(), str):
            self.left_out.append(path_name(path))
        else:
            raise ValueError(
                f"observations are {space}: neither numbers nor choices; wrap it in an environment that gives some: "
                f"--environment.wrappers MODULE:WRAPPER"
            )


def _write_numbers(observations: npt.NDArray[Any], to: Float32Array) -> None:
    to[...] = observations.reshape(len(to), -1)


def _write_one_hot(name: str, start: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> _Write:
    """For choices of so many values each, the lowest of which are `start`."""
    first = np.cumsum(sizes) - sizes

    def write(observations: npt.NDArray[Any], to: Float32Array) -> None:
        chosen = observations.reshape(len(to), -1) - start
        # It would be written among the values of another choice.
        outside = (chosen < 0) | (chosen >= sizes)
        if outside.any():
            row, column = np.argwhere(outside)[0]
            lowest, value = start[column], chosen[row, column] + start[column]
            raise ValueError(f"a choice of {name} is {value}: its space has {lowest} to {lowest + sizes[column] - 1}")
        to[...] = 0.0
        np.put_along_axis(to, chosen + first, 1.0, axis=1)

    return write


def found_at(path: Path, observations: Any) -> Any:
    """A part of observations."""
    for key in path:
        observations = observations[key]
    return observations


def path_name(path: Path) -> str:
    """How a part is called."""
    return ".".join(map(str, path)) or "itself"
