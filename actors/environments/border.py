"""The border to environments of users: checks returned values by the spaces, and turns exceptions into one line.

Each copy has its border, inside Gymnasium's vector environments, which would cast any value or fail in the middle of
a batch. Values are converted without loss, or refused.
"""

import inspect
import logging
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import nan
from typing import Any, NoReturn

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

from shared.errors import EnvironmentFailedError, place, typed_line

# The entries of info that a copy passes on: the numbers of `log_info`, float64 [N], and its error.
LOGGED, FAULT = "tributary.logged", "tributary.fault"

LOGGER = logging.getLogger("tributary")

_LONGEST = 60
_STEP_RESULT = "(observation, reward, terminated, truncated, info)"
_TRUTH = (True, False, 0, 1)

# Returns an observation of a space, or raises a ValueError with the received and the expected form.
_Check = Callable[[Any], Any]


class Border(gymnasium.Wrapper):
    """Passes on the results of an environment in the dtypes and shapes of its spaces.

    Raises an `EnvironmentFailedError` for an exception of the environment, and for results that do not fit. Only the
    numbers of `log_info` in info are passed on, and only where an episode ends: vector environments assemble arrays of
    every entry. A `log_info` of None passes all of info on.
    """

    def __init__(self, env: gymnasium.Env, name: str, log_info: Sequence[str] | None = ()) -> None:
        super().__init__(env)
        for part in ("observation_space", "action_space"):
            # None, or a space of the older library Gym, would raise an error far from here.
            if not isinstance(space := getattr(env, part), gymnasium.Space):
                raise TypeError(
                    f"its {part} is {space!r} ({type(space).__module__}), where one of Gymnasium is expected"
                )
        self._name, self._log_info = name, log_info
        self._passes_no_info = log_info is not None and not log_info
        # Looked up once: a wrapper has a __getattr__, which makes all its attributes slow.
        self._step = env.step
        space = env.observation_space
        self._checked = observation_check(space)
        # Arrays of a Box in its dtype and shape need no conversion. `step` finds that out without a call: 80 ns of the
        # 300 that the border takes. Arrays of other spaces have values to look at.
        self._dtype: np.dtype | None = space.dtype if isinstance(space, Box) else None
        self._shape = space.shape

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        try:
            result = self.env.reset(seed=seed, options=options)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._raised("reset", error)
        if not (isinstance(result, tuple | list) and len(result) == 2 and isinstance(result[1], Mapping | None)):
            self.refuse("reset", f"returned {described(result)}, where (observation, info) is expected")
        try:
            return self._checked(result[0]), (result[1] or {}) if self._log_info is None else {}
        except ValueError as error:
            self.refuse("reset", str(error))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        try:
            result = self._step(action)
        # Also SystemExit, and panics of extensions in Rust: each would end this process without a word.
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._raised("step", error)
        try:
            observation, reward, terminated, truncated, info = result
        except (TypeError, ValueError):
            self.refuse("step", f"returned {described(result)}, where {_STEP_RESULT} is expected")
        try:
            # The dtype by identity, which is faster; another object for the same dtype takes the longer way.
            fits = type(observation) is np.ndarray and observation.dtype is self._dtype
            if not (fits and observation.shape == self._shape):
                observation = self._checked(observation)
            if type(reward) is not float:
                reward = _number("the reward", reward)
            if type(terminated) is not bool:
                terminated = _truth("terminated", terminated)
            if type(truncated) is not bool:
                truncated = _truth("truncated", truncated)
        except ValueError as error:
            self.refuse("step", str(error))
        if self._passes_no_info:
            return observation, reward, terminated, truncated, {}
        if self._log_info is None:
            return observation, reward, terminated, truncated, info or {}
        logged = logged_numbers(info, self._log_info, terminated or truncated)
        return observation, reward, terminated, truncated, logged

    def close(self) -> None:
        try:
            self.env.close()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            LOGGER.warning("%s: close() raised %s%s", self._name, typed_line(error), place(error))

    def _raised(self, method: str, error: BaseException) -> NoReturn:
        where = place(error) or self._place_of(method)
        raise EnvironmentFailedError(f"{self._name}: {method}() raised {typed_line(error)}{where}") from error

    def refuse(self, method: str, problem: str) -> NoReturn:
        raise EnvironmentFailedError(f"{self._name}: {method}(): {problem}{self._place_of(method)}") from None

    def _place_of(self, method: str) -> str:
        try:
            code = inspect.unwrap(getattr(type(self.env.unwrapped), method)).__code__
        except (AttributeError, ValueError):
            return ""
        return f" ({code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}, in {method})"


class CopyInProcess(gymnasium.Wrapper):
    """A copy in a process of its own, which reports an error in its info, and ends silently after its parent.

    Gymnasium's own process would end, print the traceback, and raise a new exception with the same text.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        try:
            return self.env.reset(seed=seed, options=options)
        except EnvironmentFailedError as error:
            return self.observation_space.sample(), {FAULT: str(error)}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        try:
            return self.env.step(action)
        except EnvironmentFailedError as error:
            return self.observation_space.sample(), 0.0, False, False, {FAULT: str(error)}

    def close(self) -> None:
        self.env.close()
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():
            # Gymnasium's loop, which closes its copy last, would raise the error of its broken pipe.
            os._exit(1)


def observation_check(space: gymnasium.Space, part: str = "the observation") -> _Check:
    """A function that returns an observation of `space`, or of a batched space, in its dtypes and shapes.

    Raises a ValueError for an observation that cannot be converted without loss. Bounds of choices and of MultiBinary
    are checked; bounds of a Box are not, because many environments exceed them slightly. Unread text is replaced.
    """
    match space:
        case Dict():
            return _dict_check(
                {key: observation_check(s, f"{part}'s {key!r}") for key, s in space.spaces.items()}, part
            )
        case Tuple():
            return _tuple_check([observation_check(s, f"{part}'s part {i}") for i, s in enumerate(space.spaces)], part)
        case Box():
            return _array_check(part, np.dtype(space.dtype), space.shape, None)
        case Discrete():
            start = int(space.start)
            return _choice_check(part, start, start + int(space.n) - 1)
        case MultiDiscrete():
            return _array_check(part, space.dtype, space.shape, (space.start, space.start + space.nvec - 1))
        case MultiBinary():
            return _array_check(part, space.dtype, space.shape, (0, 1))
        case Text():
            text = space.sample()
            return lambda _: text
    return lambda observation: observation


def _dict_check(checks: dict[Any, _Check], part: str) -> _Check:
    def check(observation: Any) -> dict[Any, Any]:
        if not isinstance(observation, Mapping) or not checks.keys() <= observation.keys():
            names = ", ".join(map(repr, checks))
            raise ValueError(f"{part} is {described(observation)}, where a dictionary with {names} is expected")
        return {key: inner(observation[key]) for key, inner in checks.items()}

    return check


def _tuple_check(checks: list[_Check], part: str) -> _Check:
    def check(observation: Any) -> tuple[Any, ...]:
        if not isinstance(observation, tuple | list | np.ndarray) or len(observation) != len(checks):
            raise ValueError(f"{part} is {described(observation)}, where a tuple of {len(checks)} is expected")
        return tuple(inner(value) for inner, value in zip(checks, observation, strict=True))

    return check


def _choice_check(part: str, first: int, last: int) -> _Check:
    def check(observation: Any) -> Any:
        if type(observation) is not int and type(observation) is not np.int64:
            expected = f"a whole number from {first} to {last}"
            observation = int(as_array(part, observation, np.dtype(np.int64), (), expected))
        if not first <= observation <= last:
            raise ValueError(f"{part} is {observation}, where its space has {first} to {last}")
        return observation

    return check


def _array_check(part: str, dtype: np.dtype, shape: tuple[int, ...], bounds: tuple[Any, Any] | None) -> _Check:
    expected = f"{dtype} {list(shape)}"

    def check(observation: Any) -> Any:
        # By identity, which is faster; another object for the same dtype takes the longer way.
        if type(observation) is np.ndarray and observation.dtype is dtype and observation.shape == shape:
            return observation
        return as_array(part, observation, dtype, shape, expected)

    if bounds is None:
        return check

    def check_values(observation: Any) -> Any:
        observation = check(observation)
        outside = (observation < bounds[0]) | (observation > bounds[1])
        if outside.any():
            raise ValueError(f"{part} has {observation[outside].ravel()[0]}, which its space {expected} has not")
        return observation

    return check_values


def as_array(part: str, value: Any, dtype: np.dtype, shape: tuple[int, ...], expected: str) -> npt.NDArray[Any]:
    """`value` as an array of this dtype and shape; a ValueError if values would be lost."""
    given = None
    try:
        # The number under a mask is not a value.
        given = np.asarray(None if np.ma.is_masked(value) else value)
        fits = given.dtype.kind in "biuf" and (given.shape == shape or (given.size == 1 and np.prod(shape) == 1))
    # Ragged lists, and whatever a class of a library raises.
    except Exception:
        fits = False
    if given is None or not fits:
        seen = described(value) if given is None or given.dtype.kind not in "biuf" else described(given)
        raise ValueError(f"{part} is {seen}, where {expected} is expected")
    # Numbers beyond the range of a float become infinite, as those of the environment's own dtype may be.
    with np.errstate(all="ignore"):
        cast = given.astype(dtype).reshape(shape)
        same = dtype.kind == "f" or (cast == given.reshape(shape))
    if not np.all(same):
        lost = given.reshape(shape)[~same].ravel()[0]
        raise ValueError(f"{part} is {described(given)} with {lost}, where {expected} is expected")
    return cast


def _number(name: str, value: Any, expected: str = "a number") -> float:
    if isinstance(value, int):
        # Integers of any size, for which NumPy has no type.
        with suppress(OverflowError):
            return float(value)
    return float(as_array(name, value, np.dtype(np.float64), (), expected))


def _truth(name: str, value: Any) -> bool:
    expected = "True or False"
    number = value if isinstance(value, np.bool_) else _number(name, value, expected)
    if number not in _TRUTH:
        raise ValueError(f"{name} is {described(value)}, where {expected} is expected")
    return bool(number)


def logged_numbers(info: Any, names: Sequence[str], ended: bool) -> dict[str, Any]:
    return {LOGGED: np.array([info_number(info, name) if ended else nan for name in names])}


def info_number(info: Any, name: str) -> float:
    """A number of an environment's info by its name, or by a path like episode.r. NaN where there is no number."""
    found = info
    for key in [name] if isinstance(info, Mapping) and name in info else name.split("."):
        if not isinstance(found, Mapping) or key not in found:
            return nan
        found = found[key]
    try:
        return nan if found is None else _number(name, found)
    except ValueError:
        return nan


def described(value: Any) -> str:
    match value:
        case np.ndarray():
            masked = " with masked numbers" if np.ma.is_masked(value) else ""
            return f"an array {value.dtype} {list(value.shape)}{masked}"
        case tuple() | list():
            inside = ", ".join("None" if part is None else type(part).__name__ for part in value[:6])
            return f"a {type(value).__name__} of {len(value)} ({inside}{', …' if len(value) > 6 else ''})"
        case Mapping():
            return f"a {type(value).__name__} with {', '.join(map(repr, list(value)[:6])) or 'nothing in it'}"
        # Python writes no more than 4,300 digits.
        case int() if value.bit_length() > 1024:
            return f"a whole number of {value.bit_length()} bits"
        case None | bool() | int() | float() | complex() | np.generic():
            return str(value)
        case str():
            return repr(value[:_LONGEST])
    return f"a {type(value).__name__}"
