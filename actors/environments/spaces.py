"""Gymnasium's spaces: actions of a method as those of a space, and observations of any space as one array."""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from actors.environments.pictures import Stack, channels_together, inner_spaces, is_stack, shape_together
from shared.types import ActionSpec, Float32Array, ImagePart, ObservationParts

# Sides of arrays that may be images.
_IMAGE_SIDE = 16
# With more choices or outputs each observation takes megabytes, and a rollout gigabytes; with more numbers the first
# layer takes gigabytes.
_MOST_CHOICES, _MOST_NUMBERS = 100_000, 1_000_000
# float32 has all whole numbers up to here.
_LARGEST_WHOLE = 2**24
# Observations in which `Vectors` looks for changes that float32 loses.
_LOOKS = 10


class Actions:
    """Conversion of a method's actions to those of a Gymnasium space; a ValueError for other spaces."""

    def __init__(self, space: gymnasium.Space) -> None:
        self._shape: tuple[int, ...] = space.shape or ()
        self._dtype = space.dtype
        self._start: Any = 0
        self._range: tuple[npt.NDArray[np.float64], ...] = ()
        count = _size(space) * (2 if isinstance(space, MultiBinary) else 1)
        if count > _MOST_CHOICES:
            raise ValueError(
                f"actions are {space}: a network with {count:,} outputs takes gigabytes; wrap it in an environment "
                f"that takes fewer or smaller actions: --environment.wrappers MODULE:WRAPPER"
            )
        if isinstance(space, Discrete):
            self.spec = ActionSpec(int(space.n))
            self._start = int(space.start)
        elif isinstance(space, MultiDiscrete):
            choices = tuple(map(int, space.nvec.ravel()))
            self.spec = ActionSpec(sum(choices), choices=choices)
            self._start = space.start
        elif isinstance(space, MultiBinary):
            choices = (2,) * int(np.prod(space.shape))
            self.spec = ActionSpec(sum(choices), choices=choices)
        elif isinstance(space, Box) and np.prod(space.shape):
            self.spec = ActionSpec(int(np.prod(space.shape)), continuous=True)
            self._range = _range(space)
        else:
            raise ValueError(
                f"actions are {space}: a choice, several choices or an array can be played, and no mixture of them; "
                f"wrap it in an environment that takes one of these: --environment.wrappers MODULE:WRAPPER"
            )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(str(i) for i in range(self.spec.shape[0] if self.spec.shape else self.spec.size))

    def of_space(self, actions: npt.NDArray[Any]) -> npt.NDArray[np.generic]:
        """Actions [B, …] of the space, from int32 [B(, C)], or float32 [B, D] that are clipped to the bounds.

        NaN is the middle of the bounds, or the number closest to 0 where there are not two.
        """
        if not self.spec.continuous:
            if not self.spec.shape:
                return actions.astype(self._dtype) + self._start if self._start else actions
            return (actions.reshape(-1, *self._shape) + self._start).astype(self._dtype)
        middle, half, low, high = self._range
        wanted = middle + half * actions.astype(np.float64).reshape(-1, *self._shape)
        # Half the time of `np.clip`.
        shaped = np.minimum(np.maximum(wanted, low), high)
        # A network whose numbers overflow has NaN for an action. Its gradient is dropped, and the loss named.
        if not math.isfinite(np.vdot(shaped, shaped)):
            shaped = np.where(np.isnan(shaped), np.clip(middle, low, high), shaped)
        # Spaces of integers and of truth values.
        whole = not np.issubdtype(self._dtype, np.inexact)
        return (np.rint(shaped) if whole else shaped).astype(self._dtype)

    def description(self) -> dict[str, Any]:
        """The space for descriptions in JSON: dtype, shape, and the start of choices, or bounds."""
        described: dict[str, Any] = {"dtype": str(self._dtype), "shape": list(self._shape)}
        if not self.spec.continuous:
            return {**described, "start": np.asarray(self._start).tolist()}
        return {**described, "low": json_bounds(self._range[2]), "high": json_bounds(self._range[3])}


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


def _range(space: Box) -> tuple[npt.NDArray[np.float64], ...]:
    """Middle, half of the width, lowest and highest value of each dimension of actions, float64.

    Actions are in units of half the range. Without two bounds they are passed unchanged, and one bound still clips.
    float64, because in float32 the width of a range may overflow.
    """
    low, high = (space.low.astype(np.float64), space.high.astype(np.float64))
    least, most = _limits(space.dtype)
    has_low, has_high = is_bound(low), is_bound(high)
    middle, half = np.zeros(space.shape), np.ones(space.shape)
    both = has_low & has_high
    middle[both], half[both] = 0.5 * low[both] + 0.5 * high[both], 0.5 * high[both] - 0.5 * low[both]
    lowest = np.where(has_low, _inside(low, space.low, 1), least)
    return middle, half, lowest, np.where(has_high, _inside(high, space.high, -1), most)


def _limits(dtype: Any) -> tuple[float, float]:
    if np.issubdtype(dtype, np.floating):
        return float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    if dtype == np.bool_:
        return 0.0, 1.0
    ends = np.iinfo(dtype).min, np.iinfo(dtype).max
    return float(ends[0]), float(_inside(np.float64(ends[1]), np.asarray(ends[1], dtype), -1))


def _inside(rounded: Any, exact: npt.NDArray[Any], step: int) -> npt.NDArray[np.float64]:
    """Bounds in float64, one step further inside where rounding has moved the end of an integer range outside."""
    if not np.issubdtype(exact.dtype, np.integer):
        return np.asarray(rounded)
    pairs = zip(np.ravel(rounded).tolist(), np.ravel(exact).tolist(), strict=True)
    # As integers, which are exact: a difference of floats would be rounded again.
    moved = np.array([(int(float_) - int_) * step < 0 for float_, int_ in pairs], bool).reshape(exact.shape)
    return np.where(moved, np.nextafter(rounded, step * np.inf), rounded)


def random_actions(
    spec: ActionSpec, count: int, generator: np.random.Generator, masks: npt.NDArray[Any] | None = None
) -> npt.NDArray[np.generic]:
    """`count` uniform random actions [count, …], in the form of methods; of those that masks [count, A] allow."""
    if masks is not None:
        draws = np.where(masks > 0, generator.random(masks.shape), -1.0)
        parts = np.split(draws, np.cumsum(spec.choices)[:-1], axis=1) if spec.choices else [draws]
        return np.stack([part.argmax(axis=1) for part in parts], axis=1).astype(np.int32).reshape(count, *spec.shape)
    if spec.continuous:
        return generator.uniform(-1.0, 1.0, (count, *spec.shape)).astype(np.float32)
    return generator.integers(0, spec.choices or spec.size, (count, *spec.shape), np.int32)


# Writes the observations [B, …] of one part to float32 [B, size].
_Write = Callable[[npt.NDArray[Any], Float32Array], None]


def reading_notes(space: gymnasium.Space, path: "Path" = ()) -> list[str]:
    """Remarks on how observations of a space are read, where another meaning is as likely."""
    if isinstance(space, Dict | Tuple):
        return [note for key, inner in inner_spaces(space).items() for note in reading_notes(inner, (*path, key))]
    if not isinstance(space, Box):
        return []
    if isinstance(space, Stack):
        where = "" if not path else f"{path_name(path)}: "
        return [f"{where}{space.description()} (--environment.screen-size, greyscale, frame-stack)"]
    what = f"{'observations' if not path else path_name(path)} of {space.dtype} {list(space.shape)}"
    if is_stack(space):
        return [f"{what} are read as {space.shape[0]} images of {space.shape[3]} channels"]
    long = [side for side in space.shape if side >= _IMAGE_SIDE]
    numbers = f"{what} are read as {int(np.prod(space.shape)):,} numbers"
    if len(space.shape) in (2, 3) and len(long) >= 2:
        return [f"{numbers}; images {'have values to 255' if space.dtype == np.uint8 else 'are uint8'}"]
    return []


_ROUNDED = (
    f"the network sees float32, in which neighbours beyond {_LARGEST_WHOLE:,} are equal; subtract, divide or split "
    f"them in a wrapper (--environment.wrappers MODULE:WRAPPER)"
)


def _largest_whole(space: Box) -> int:
    """The largest bound of whole numbers that is not the last number of its dtype; 0 without one."""
    dtype: Any = space.dtype
    if not np.issubdtype(dtype, np.integer):
        return 0
    limits = np.iinfo(dtype)
    ends = np.unique([space.low, space.high]).tolist()
    return max((abs(end) for end in ends if end not in (limits.min, limits.max)), default=0)


Path = tuple[Any, ...]
"""The keys of Dicts and indices of Tuples that lead to a part of an observation."""


class _Part(NamedTuple):
    path: Path
    low: Float32Array
    high: Float32Array
    write: _Write


class Vectors:
    """Conversion of observations of a space to vectors: all numbers side by side, choices one-hot.

    `low` and `high` are the bounds of the numbers, float32 [size]; `left_out` the names of text parts; `images` the
    image parts in the form of `Pictures`, which are not part of the vector. `notes` are remarks on the first
    observations. A part of another kind is a ValueError.
    """

    def __init__(self, space: gymnasium.Space) -> None:
        self.left_out: list[str] = []
        self.notes: list[str] = []
        self._looks, self._last = _LOOKS, dict[Path, npt.NDArray[Any]]()
        self.images: list[tuple[Path, Box]] = []
        self._parts = list(self._parts_of(space, ()))
        if not self.images and not any(len(part.low) for part in self._parts):
            raise ValueError(f"observations are {space}: there are no numbers in them")
        nothing = np.empty(0, np.float32)
        self.low = np.concatenate([nothing, *(part.low for part in self._parts)])
        self.high = np.concatenate([nothing, *(part.high for part in self._parts)])

    @property
    def size(self) -> int:
        return len(self.low)

    @property
    def sizes(self) -> tuple[tuple[str, int], ...]:
        return tuple((path_name(part.path), len(part.low)) for part in self._parts)

    def number_name(self, index: int) -> str:
        for name, size in self.sizes:
            if index < size:
                return f"[{index}]" if name == path_name(()) else f"{name}[{index}]"
            index -= size
        raise IndexError(index)

    def write(self, observations: Any, to: Float32Array) -> None:
        """Write a batch of observations of a vector environment to float32 [B, size]."""
        start = 0
        if self._looks:
            self._looks -= 1
            self._look(observations)
        for part in self._parts:
            part.write(np.asarray(found_at(part.path, observations)), to[:, start : start + len(part.low)])
            start += len(part.low)

    def _look(self, observations: Any) -> None:
        """Add a note for the first large number that float32 has not, or that changes by less than it shows."""
        for part in self._parts:
            values = np.array(found_at(part.path, observations))
            last, self._last[part.path] = self._last.get(part.path, values), values
            if self.notes or values.dtype.kind not in "fiu" or part.write is not _write_numbers:
                continue
            with np.errstate(all="ignore"):
                shown = values.astype(np.float32)
                lost = (values != last) & (shown == last.astype(np.float32))
                if values.dtype.kind != "f":
                    lost |= shown.astype(np.float64) != values
            lost &= (np.abs(values.astype(np.float64)) >= _LARGEST_WHOLE) & np.isfinite(values)
            if lost.any():
                self.notes.append(f"observation {path_name(part.path)} has {values[lost][0]}: {_ROUNDED}")

    def _parts_of(self, space: gymnasium.Space, path: Path) -> Iterator[_Part]:
        if isinstance(space, Dict | Tuple):
            for key, inner in inner_spaces(space).items():
                yield from self._parts_of(inner, (*path, key))
        elif isinstance(space, Box) and is_stack(space):
            self.images.append((path, space))
        elif isinstance(space, Box | MultiBinary):
            _check_size(space, "numbers", _MOST_NUMBERS)
            if isinstance(space, Box) and (most := _largest_whole(space)) > _LARGEST_WHOLE:
                self.notes.append(f"observation {path_name(path)} has whole numbers to {most:,}: {_ROUNDED}")
            low, high = (
                (space.low, space.high) if isinstance(space, Box) else (np.zeros(space.shape), np.ones(space.shape))
            )
            yield _Part(path, low.ravel().astype(np.float32), high.ravel().astype(np.float32), _write_numbers)
        elif isinstance(space, Discrete | MultiDiscrete):
            size = _check_size(space, "one-hot numbers", _MOST_CHOICES)
            sizes = np.ravel(space.n if isinstance(space, Discrete) else space.nvec)
            write = _write_one_hot(path_name(path), np.ravel(space.start), sizes)
            yield _Part(path, np.zeros(size, np.float32), np.ones(size, np.float32), write)
        elif isinstance(space.sample(), str):
            self.left_out.append(path_name(path))
        else:
            raise ValueError(
                f"observations are {space}: neither numbers nor choices; wrap it in an environment that gives some: "
                f"--environment.wrappers MODULE:WRAPPER"
            )


def _check_size(space: gymnasium.Space, numbers: str, most: int) -> int:
    size = _size(space)
    if size > most:
        raise ValueError(
            f"observations are {space}: {size:,} {numbers} take gigabytes; wrap it in an environment that gives fewer, "
            f"such as the digits of a large one: --environment.wrappers MODULE:WRAPPER"
        )
    return size


def _write_numbers(observations: npt.NDArray[Any], to: Float32Array) -> None:
    to[...] = observations.reshape(len(to), -1)


def _write_one_hot(name: str, start: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> _Write:
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
    for key in path:
        observations = observations[key]
    return observations


def path_name(path: Path) -> str:
    return ".".join(map(str, path)) or "itself"


class PackedObservations:
    """Writer of observations with images, in the layout `parts`."""

    def __init__(self, vectors: Vectors) -> None:
        self._vectors = vectors
        self._paths = [path for path, _ in vectors.images]
        shapes = [shape_together(space.shape) for _, space in vectors.images]
        names = _distinct([f"image_{_identifier(path)}" for path in self._paths])
        self.parts = ObservationParts(vectors.sizes, tuple(map(ImagePart, names, shapes)))

    def write(self, observations: Any, to: npt.NDArray[np.uint8]) -> None:
        self._vectors.write(observations, self.parts.vectors(to))
        for path, (image, where) in zip(self._paths, self.parts.image_bytes(), strict=True):
            # Views: of the bytes of one row after another, each split into its axes.
            channels_together(found_at(path, observations), to[:, where].reshape(-1, *image.shape))


def _identifier(path: Path) -> str:
    return re.sub(r"\W", "_", path_name(path))


def _distinct(names: list[str]) -> list[str]:
    """The names, with a number added to repeated ones."""
    return [f"{name}_{i}" if name in names[:i] else name for i, name in enumerate(names)]
