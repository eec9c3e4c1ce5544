"""Gymnasium's spaces: conversion of a method's actions to a space, and of observations of any space to one array."""

import itertools
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, cast

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from actors.environments.images import Stack, channels_together, inner_spaces, is_stack, shape_together
from shared.config.task import SMALLEST_SIDE
from shared.types import ActionSpec, Float32Array, ImagePart, ObservationParts

# With more choices or outputs each observation takes megabytes, and a rollout gigabytes; with more numbers the first
# layer takes gigabytes.
_MAX_CHOICES, _MAX_NUMBERS = 100_000, 1_000_000

_WRAP = "--environment.wrappers MODULE:WRAPPER"


class Actions:
    """Conversion of a method's actions to a Gymnasium space; a ValueError for other spaces."""

    def __init__(self, space: gymnasium.Space) -> None:
        self._space, self._shape, self._dtype = space, space.shape or (), space.dtype
        self._start: Any = 0
        choices: tuple[int, ...] = ()
        count = _size(space) * (2 if isinstance(space, MultiBinary) else 1)
        if count > _MAX_CHOICES:
            raise ValueError(
                f"actions are {space}: a network with {count:,} outputs takes gigabytes; wrap it in an environment "
                f"that takes fewer or smaller actions: {_WRAP}"
            )
        if isinstance(space, Discrete):
            self._start = int(space.start)
        elif isinstance(space, MultiDiscrete):
            choices, self._start = tuple(map(int, space.nvec.ravel())), space.start
        elif isinstance(space, MultiBinary):
            choices = (2,) * (count // 2)
        elif isinstance(space, Box) and count:
            self._range = _range(space)
        else:
            raise ValueError(
                f"actions are {space}: a choice, several choices or an array can be played, and no mixture of them; "
                f"wrap it in an environment that takes one of these: {_WRAP}"
            )
        self.spec = ActionSpec(count, continuous=isinstance(space, Box), choices=choices)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(str(i) for i in range(self.spec.shape[0] if self.spec.shape else self.spec.size))

    def of_space(self, actions: npt.NDArray[Any]) -> npt.NDArray[np.generic]:
        """Actions [B, …] of the space, from int32 [B(, C)], or float32 [B, D] that are clipped to the bounds.

        NaN is the middle of the bounds, or the number closest to 0 where there are not two.
        """
        if not self.spec.continuous:
            if not self.spec.shape:
                return actions.astype(self._dtype) + self._start
            return (actions.reshape(-1, *self._shape) + self._start).astype(self._dtype)
        middle, half, low, high = self._range
        wanted = middle + half * actions.astype(np.float64).reshape(-1, *self._shape)
        # Half the time of `np.clip`.
        shaped = np.minimum(np.maximum(wanted, low), high)
        # A network whose numbers overflow has NaN for an action. Its gradient is dropped, and the loss named.
        if not math.isfinite(np.vdot(shaped, shaped)):
            shaped = np.where(np.isnan(shaped), np.clip(middle, low, high), shaped)
        if np.issubdtype(self._dtype, np.inexact):
            return shaped.astype(self._dtype)
        # Spaces of integers and of truth values. float64 has not all bounds of int64.
        bounds = cast(Box, self._space)
        with np.errstate(invalid="ignore"):
            whole = np.rint(shaped).astype(self._dtype)
        return np.where(shaped >= high, bounds.high, np.where(shaped <= low, bounds.low, whole))

    def description(self) -> dict[str, Any]:
        """The space for descriptions in JSON: dtype, shape, and the start of choices, or bounds."""
        description: dict[str, Any] = {"dtype": str(self._dtype), "shape": list(self._shape)}
        if not self.spec.continuous:
            return {**description, "start": np.asarray(self._start).tolist()}
        # Not the ends that clip: float16's largest number is none that an infinity would be known by.
        bounds = cast(Box, self._space)
        low, high = _ends(bounds)
        return {**description, "low": json_bounds(low), "high": json_bounds(high)}


def _size(space: gymnasium.Space) -> int:
    """The number of choices of a space, or of numbers. Exact: a sum of NumPy's integers may overflow."""
    if isinstance(space, Discrete):
        return int(space.n)
    if isinstance(space, MultiDiscrete):
        return sum(space.nvec.ravel().tolist())
    return 0 if space.shape is None else math.prod(space.shape)


def is_bound(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which ends of a range are bounds. Environments without one have an infinity, or the largest float."""
    return np.abs(np.asarray(values, np.float64)) < 1e30


def json_bounds(values: npt.NDArray[Any]) -> Any:
    """Ends of a range for JSON, nested as their array; None where there is no bound."""
    ends = np.array(values, object)
    ends[~is_bound(values)] = None
    return ends.tolist()


def _ends(space: Box) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Lowest and highest values, ±inf without a bound, where Gymnasium has the largest number of an integer dtype."""
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    if not np.issubdtype(space.dtype, np.integer):
        return low, high
    return np.where(space.bounded_below, low, -np.inf), np.where(space.bounded_above, high, np.inf)


def _range(space: Box) -> tuple[npt.NDArray[np.float64], ...]:
    """Middle, half of the width, lowest and highest value of each dimension of actions, float64.

    Actions are in units of half the range. Without two bounds they are passed unchanged, and one bound still clips.
    float64, because in float32 the width of a range may overflow.
    """
    low, high = _ends(space)
    dtype: Any = space.dtype
    least: Any = space.low
    most: Any = space.high
    if np.issubdtype(dtype, np.floating):
        least, most = np.finfo(dtype).min, np.finfo(dtype).max
    both = is_bound(low) & is_bound(high)
    first, last = np.where(both, low, -1.0), np.where(both, high, 1.0)
    middle, half = 0.5 * first + 0.5 * last, 0.5 * last - 0.5 * first
    return middle, half, np.where(is_bound(low), low, least), np.where(is_bound(high), high, most)


def random_actions(
    spec: ActionSpec, count: int, generator: np.random.Generator, masks: npt.NDArray[Any] | None = None
) -> npt.NDArray[np.generic]:
    """`count` uniform random actions [count, …], in the form of methods, within masks [count, A] if given."""
    if masks is not None:
        draws = np.where(masks > 0, generator.random(masks.shape), -1.0)
        parts = np.split(draws, np.cumsum(spec.choices)[:-1], axis=1) if spec.choices else [draws]
        return np.stack([part.argmax(axis=1) for part in parts], axis=1).astype(np.int32).reshape(count, *spec.shape)
    if spec.continuous:
        return generator.uniform(-1.0, 1.0, (count, *spec.shape)).astype(np.float32)
    return generator.integers(0, spec.choices or spec.size, (count, *spec.shape), np.int32)


# Writes the observations [B, …] of one part to float32 [B, size].
_Write = Callable[[npt.NDArray[Any], Float32Array], None]


Path = tuple[Any, ...]
"""The keys of Dicts and indices of Tuples that lead to a part of an observation."""


class _Part(NamedTuple):
    path: Path
    low: Float32Array
    high: Float32Array
    write: _Write


class Observations:
    """Conversion of observations of a space to arrays for networks.

    A stack of images is an image, uint8; images beside other parts are rows of bytes, uint8; all else is a vector,
    float32: all numbers side by side, choices one-hot. A part of another kind is a ValueError. For the attributes see
    `EnvironmentSpec`.
    """

    def __init__(self, space: gymnasium.Space) -> None:
        self.left_out: list[str] = []
        self.notes: list[str] = []
        self._images: list[tuple[Path, Box]] = []
        self._numbers = list(self._parts_of(space, ()))
        self.sizes = tuple((path_name(part.path), len(part.low)) for part in self._numbers)
        nothing = np.empty(0, np.float32)
        low = np.concatenate([nothing, *(part.low for part in self._numbers)])
        high = np.concatenate([nothing, *(part.high for part in self._numbers)])
        self.dtype = "uint8" if self._images else "float32"
        self.shape: tuple[int, ...] = low.shape
        self.bounds: tuple[Float32Array, Float32Array] | None = low, high
        self.parts: ObservationParts | None = None
        if is_stack(space):
            self.shape, self.bounds = shape_together(space.shape or ()), None
        elif self._images:
            names = _input_names([path for path, _ in self._images])
            shapes = [shape_together(image.shape) for _, image in self._images]
            self.parts = ObservationParts(self.sizes, tuple(map(ImagePart, names, shapes)))
            self.shape = (self.parts.row_size,)
        elif not low.size:
            raise ValueError(f"observations are {space}: there are no numbers in them")

    def number_name(self, index: int) -> str:
        for name, size in self.sizes:
            if index < size:
                return f"[{index}]" if name == path_name(()) else f"{name}[{index}]"
            index -= size
        raise IndexError(index)

    def numbers(self, rows: npt.NDArray[Any]) -> Float32Array | None:
        """The numbers float32 [B, size] of observations [B, *shape], as a view; None if they are images only."""
        if self.parts is not None:
            return self.parts.vectors(rows)
        return None if self._images else rows

    def write(self, observations: Any, to: npt.NDArray[Any]) -> None:
        """Write a batch of observations of a vector environment to `to`, [B, *shape]."""
        numbers = self.numbers(to)
        if numbers is None:
            channels_together(observations, to)
            return
        start = 0
        for part in self._numbers:
            part.write(np.asarray(found_at(part.path, observations)), numbers[:, start : start + len(part.low)])
            start += len(part.low)
        if self.parts is not None:
            for (path, _), (image, where) in zip(self._images, self.parts.image_bytes(), strict=True):
                # Views: of the bytes of one row after another, each split into its axes.
                channels_together(found_at(path, observations), to[:, where].reshape(-1, *image.shape))

    def _parts_of(self, space: gymnasium.Space, path: Path) -> Iterator[_Part]:
        if isinstance(space, Dict | Tuple):
            for key, inner in inner_spaces(space).items():
                yield from self._parts_of(inner, (*path, key))
        elif isinstance(space, Box) and is_stack(space):
            self.notes += _reading_notes(space, path)
            self._images.append((path, space))
        elif isinstance(space, Box | MultiBinary):
            _check_size(space, "numbers", _MAX_NUMBERS)
            low, high = np.zeros(space.shape), np.ones(space.shape)
            if isinstance(space, Box):
                low, high = _ends(space)
                self.notes += _reading_notes(space, path)
            yield _Part(path, low.ravel().astype(np.float32), high.ravel().astype(np.float32), _write_numbers)
        elif isinstance(space, Discrete | MultiDiscrete):
            size = _check_size(space, "one-hot numbers", _MAX_CHOICES)
            sizes = np.ravel(space.n if isinstance(space, Discrete) else space.nvec)
            write = partial(_write_one_hot, np.cumsum(sizes) - sizes - np.ravel(space.start))
            yield _Part(path, np.zeros(size, np.float32), np.ones(size, np.float32), write)
        elif isinstance(space.sample(), str):
            self.left_out.append(path_name(path))
        else:
            problem = "neither numbers nor choices; wrap it in an environment that gives some"
            raise ValueError(f"observations are {space}: {problem}: {_WRAP}")


def _reading_notes(space: Box, path: Path) -> list[str]:
    """Remarks on how an array is read, where another meaning is as likely."""
    if isinstance(space, Stack):
        where = f"{path_name(path)}: " if path else ""
        return [f"{where}{space.description()} (--environment.screen-size, greyscale, frame-stack)"]
    array = f"{path_name(path) if path else 'observations'} of {space.dtype} {list(space.shape)}"
    if is_stack(space):
        return [f"{array} are read as {space.shape[0]} images of {space.shape[3]} channels"]
    if len(space.shape) in (2, 3) and sum(side >= SMALLEST_SIDE for side in space.shape) >= 2:
        images = "have values to 255" if space.dtype == np.uint8 else "are uint8"
        return [f"{array} are read as {math.prod(space.shape):,} numbers; images {images}"]
    return []


def _check_size(space: gymnasium.Space, numbers: str, most: int) -> int:
    size = _size(space)
    if size > most:
        raise ValueError(
            f"observations are {space}: {size:,} {numbers} take gigabytes; wrap it in an environment that gives fewer, "
            f"such as the digits of a large one: {_WRAP}"
        )
    return size


def _write_numbers(observations: npt.NDArray[Any], to: Float32Array) -> None:
    to[...] = observations.reshape(len(to), -1)


def _write_one_hot(first: npt.NDArray[np.int64], observations: npt.NDArray[Any], to: Float32Array) -> None:
    """`first`: place of the value 0 of each choice."""
    to[...] = 0.0
    # Choices have any integer dtype, and NumPy adds uint64 to int64 as float64.
    np.put_along_axis(to, observations.reshape(len(to), -1).astype(np.int64) + first, 1.0, axis=1)


def found_at(path: Path, observations: Any) -> Any:
    for key in path:
        observations = observations[key]
    return observations


def path_name(path: Path) -> str:
    return ".".join(map(str, path)) or "itself"


def _input_names(paths: list[Path]) -> list[str]:
    """Names for inputs of an exported network, with a number added to repeated ones. TensorFlow's are ASCII."""
    names: list[str] = []
    for i, path in enumerate(paths):
        name = "image_" + re.sub(r"\W", "_", path_name(path), flags=re.ASCII)
        numbered = (f"{name}_{number}" for number in itertools.count(i))
        names.append(next(each for each in itertools.chain([name], numbered) if each not in names))
    return names
