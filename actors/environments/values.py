"""Values of users in the dtype and shape of a space, converted without loss or refused with the expected form."""

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

from shared.types import ActionSpec

_LONGEST = 60

# Returns an observation of a space, or raises a ValueError with the received and the expected form.
_Check = Callable[[Any], Any]


def observation_check(space: gymnasium.Space, part: str = "the observation") -> _Check:
    """A function that returns an observation of `space`, or of a batched space, in its dtypes and shapes.

    Raises a ValueError for an observation that cannot be converted without loss. Bounds of choices and of MultiBinary
    are checked; bounds of a Box are not, because many environments exceed them slightly. Text, which networks do not
    read, is replaced, and may be missing in a dictionary.
    """
    match space:
        case Dict():
            checks = {key: observation_check(inner, f"{part}'s {key!r}") for key, inner in space.spaces.items()}
            needed = [key for key, inner in space.spaces.items() if not isinstance(inner, Text)]
            return _dict_check(checks, needed, part)
        case Tuple():
            return _tuple_check([observation_check(s, f"{part}'s part {i}") for i, s in enumerate(space.spaces)], part)
        case Box():
            return _array_check(part, np.dtype(space.dtype), space.shape, None)
        case Discrete():
            start = int(space.start)
            return _choice_check(part, start, start + int(space.n) - 1, space.dtype)
        case MultiDiscrete():
            return _array_check(part, space.dtype, space.shape, (space.start, space.start + space.nvec - 1))
        case MultiBinary():
            return _array_check(part, space.dtype, space.shape, (0, 1))
        case Text():
            text = space.sample()
            return lambda _: text
    return lambda observation: observation


def _dict_check(checks: dict[Any, _Check], needed: list[Any], part: str) -> _Check:
    names = ", ".join(map(repr, needed))

    def check(observation: Any) -> dict[Any, Any]:
        if not isinstance(observation, Mapping) or any(key not in observation for key in needed):
            raise ValueError(f"{part} is {describe(observation)}, where a dictionary with {names} is expected")
        return {key: inner(observation.get(key)) for key, inner in checks.items()}

    return check


def _tuple_check(checks: list[_Check], part: str) -> _Check:
    def check(observation: Any) -> tuple[Any, ...]:
        if not isinstance(observation, tuple | list | np.ndarray) or len(observation) != len(checks):
            raise ValueError(f"{part} is {describe(observation)}, where a tuple of {len(checks)} is expected")
        return tuple(inner(value) for inner, value in zip(checks, observation, strict=True))

    return check


def _choice_check(part: str, first: int, last: int, dtype: Any) -> _Check:
    # NumPy casts int64 to signed dtypes only.
    typed = None if np.issubdtype(dtype, np.signedinteger) else dtype.type

    def check(observation: Any) -> Any:
        if type(observation) is not int and type(observation) is not np.int64:
            expected = f"a whole number from {first} to {last}"
            observation = int(as_array(part, observation, np.dtype(np.int64), (), expected))
        if not first <= observation <= last:
            raise ValueError(f"{part} is {observation}, where its space has {first} to {last}")
        return observation if typed is None else typed(observation)

    return check


def _array_check(part: str, dtype: np.dtype, shape: tuple[int, ...], bounds: tuple[Any, Any] | None) -> _Check:
    expected = f"{dtype} {list(shape)}"

    def check(observation: Any) -> Any:
        # By identity, which is faster; another object for the same dtype takes the longer way.
        if not (type(observation) is np.ndarray and observation.dtype is dtype and observation.shape == shape):
            observation = as_array(part, observation, dtype, shape, expected)
        if bounds is not None:
            outside = (observation < bounds[0]) | (observation > bounds[1])
            if outside.any():
                raise ValueError(f"{part} has {observation[outside].ravel()[0]}, which its space {expected} has not")
        return observation

    return check


def as_array(part: str, value: Any, dtype: np.dtype, shape: tuple[int, ...], expected: str) -> npt.NDArray[Any]:
    """`value` as an array of this dtype and shape; a ValueError if values would be lost."""
    array = None
    try:
        # The number under a mask is not a value.
        array = np.asarray(None if np.ma.is_masked(value) else value)
        fits = array.dtype.kind in "biuf" and (array.shape == shape or (array.size == 1 and np.prod(shape) == 1))
    # Ragged lists raise an error, and so may classes of libraries.
    except Exception:
        fits = False
    if array is None or not fits:
        description = describe(value) if array is None or array.dtype.kind not in "biuf" else describe(array)
        raise ValueError(f"{part} is {description}, where {expected} is expected")
    # Numbers beyond the range of a float become infinite, as those of the environment's own dtype may be.
    with np.errstate(all="ignore"):
        cast = array.astype(dtype).reshape(shape)
        same = dtype.kind == "f" or (cast == array.reshape(shape))
    if not np.all(same):
        lost = array.reshape(shape)[~same].ravel()[0]
        raise ValueError(f"{part} is {describe(array)} with {lost}, where {expected} is expected")
    return cast


def as_number(name: str, value: Any, expected: str = "a number") -> float:
    # NumPy has no type for integers of any size.
    return float(value if isinstance(value, int) else as_array(name, value, np.dtype(np.float64), (), expected))


def as_truth(name: str, value: Any) -> bool:
    expected = "True or False"
    number = value if isinstance(value, np.bool_) else as_number(name, value, expected)
    if number not in (0, 1):
        raise ValueError(f"{name} is {describe(value)}, where {expected} is expected")
    return bool(number)


def as_mask(
    name: str, value: Any, actions: ActionSpec, shape: tuple[int, ...], *, ended: Any = False
) -> npt.NDArray[np.bool_]:
    """Masks of allowed actions, bool of `shape` [A] or [B, A], from truth values, or a tuple of arrays of each choice.

    A mask without an allowed action raises a ValueError, but allows all actions where the episode has `ended`, a truth
    value or bool [B].
    """
    if actions.choices and isinstance(value, tuple) and len(value) == len(actions.choices):
        try:
            value = np.concatenate(value, axis=-1)
        except (TypeError, ValueError):
            value = np.empty(0, object)
    expected = f"a truth value for each of {actions.size} actions {list(shape)}"
    mask = as_array(name, value, np.dtype(np.bool_), shape, expected)
    possible = np.logical_or.reduceat(mask, np.cumsum((0, *actions.choices[:-1])), axis=-1)
    impossible = ~possible.all(axis=-1, keepdims=True)
    if not np.any(impossible & ~np.asarray(ended)[..., None]):
        return mask | impossible
    of_choice = f" of choice {np.argwhere(~possible)[0][-1]}" if actions.choices else ""
    raise ValueError(f"{name} allows no action{of_choice}; only a terminated episode may end so")


def describe(value: Any) -> str:
    match value:
        case np.ndarray():
            masked = " with masked numbers" if np.ma.is_masked(value) else ""
            return f"an array {value.dtype} {list(value.shape)}{masked}"
        case tuple() | list():
            inside = ", ".join("None" if part is None else type(part).__name__ for part in value[:6])
            return f"a {type(value).__name__} of {len(value)} ({inside}{', …' if len(value) > 6 else ''})"
        case Mapping():
            return f"a {type(value).__name__} with {', '.join(map(repr, list(value)[:6])) or 'nothing in it'}"
        case None | bool() | int() | float() | complex() | np.generic():
            return str(value)
        case str():
            return repr(value[:_LONGEST])
    return f"a {type(value).__name__}"
