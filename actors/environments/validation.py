"""Validation of users' environments: checks returned values against the spaces, and turns exceptions into one line.

Each copy is validated inside Gymnasium's vector environments, which would cast any value or fail in the middle of a
batch.
"""

import inspect
import logging
import multiprocessing
import os
from collections.abc import Mapping
from contextlib import suppress
from math import nan
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, MultiBinary, Tuple
from gymnasium.vector.utils import batch_space

from actors.environments.spaces import Actions
from actors.environments.values import as_array, as_mask, as_number, as_truth, describe, observation_check
from shared.config import EnvironmentConfig
from shared.errors import EnvironmentFailedError, raised_at, setting_error, typed_line
from shared.seeds import seed_global_generators

# The entries of info that a copy passes on: the numbers of `log_info`, float64 [N], and its error.
LOGGED, FAULT = "tributary.logged", "tributary.fault"

LOGGER = logging.getLogger("tributary")

_STEP_RESULT = "(observation, reward, terminated, truncated, info)"


class _Validation:
    """What `ValidatedEnvironment` and `ValidatedVectorEnvironment` share: their masks and their errors."""

    env: Any
    _name: str

    def _expect_masks(self, key: str, space: gymnasium.Space, actions: gymnasium.Space) -> gymnasium.Space:
        """The space of observations with masks, of one copy."""
        self._actions = Actions(actions).spec
        if self._actions.continuous:
            problem = f"the actions of {self._name} are continuous ({actions}); masks are for choices"
            raise setting_error("environment.action_mask", key, problem)
        self._mask_in_observation = isinstance(space, Dict) and key in space.spaces
        if isinstance(space, Dict):
            space = Dict({name: part for name, part in space.spaces.items() if name != key})
        return Tuple((space, MultiBinary(self._actions.size)))

    def _with_mask(
        self, key: str, method: str, observation: Any, info: Any, batch: tuple[int, ...] = (), terminated: Any = False
    ) -> tuple[Any, Any]:
        """The observation, and the mask: a part of a Dict observation, which its space has no more, else of info.

        After a terminated step no action is chosen: the mask may be missing or allow nothing, and allows all. A
        truncated step needs a mask, because the value of its observation is bootstrapped. In a vector environment
        `batch` is [B], the shape of `terminated` and the first dimension of masks.
        """
        mask, shape = (observation if self._mask_in_observation else info).get(key), (*batch, self._actions.size)
        if mask is None and np.all(terminated):
            return observation, np.ones(shape, np.int8)
        if mask is None:
            observation_keys = ", ".join(map(repr, observation)) if isinstance(observation, Mapping) else "no keys"
            names = ", ".join(map(repr, info)) or "no keys"
            keys = f"the observation has {observation_keys}, and info has {names}, after {method}() of {self._name}"
            raise EnvironmentFailedError(f"--environment.action-mask {key}: {keys}")
        name = f"the mask {key!r}"
        return observation, as_mask(name, mask, self._actions, shape, ended=terminated).astype(np.int8)

    def _raised(self, method: str, error: BaseException) -> NoReturn:
        where = raised_at(error) or self._place_of(method)
        raise EnvironmentFailedError(f"{self._name}: {method}() raised {typed_line(error)}{where}") from error

    def _refuse(self, method: str, problem: str) -> NoReturn:
        raise EnvironmentFailedError(f"{self._name}: {method}(): {problem}{self._place_of(method)}") from None

    def _place_of(self, method: str) -> str:
        try:
            code = inspect.unwrap(getattr(type(self.env.unwrapped), method)).__code__
        except (AttributeError, ValueError):
            return ""
        return f" ({code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}, in {method})"


class ValidatedEnvironment(_Validation, gymnasium.Wrapper):
    """Passes on the results of an environment in the dtypes and shapes of its spaces.

    Raises an `EnvironmentFailedError` for an exception of the environment, and for results that do not fit. Only the
    numbers of `log_info` in info are passed on, and only where an episode ends: vector environments assemble arrays of
    every entry. With `environment.action_mask` each observation is a pair: the observation without its mask, and the
    mask, int8 [`ActionSpec.size`].

    With `with_info` all of info is passed on, and observations are the environment's own.
    """

    def __init__(self, env: gymnasium.Env, config: EnvironmentConfig, *, with_info: bool) -> None:
        super().__init__(env)
        for part in ("observation_space", "action_space"):
            # None, or a space of the older library Gym, would raise an error far from here.
            if not isinstance(space := getattr(env, part), gymnasium.Space):
                raise TypeError(
                    f"its {part} is {space!r} ({type(space).__module__}), where one of Gymnasium is expected"
                )
        self._name, self._log_info, self._with_info = config.id, config.log_info, with_info
        # Looked up once: a wrapper has a __getattr__, which makes all its attributes slow.
        self._step = env.step
        space = env.observation_space
        self._checked = observation_check(space)
        # Arrays of a Box in its dtype and shape need no conversion. `step` finds that out without a call: 80 ns of the
        # 300 that the validation takes. Arrays of other spaces have values to look at.
        self._dtype: np.dtype | None = space.dtype if isinstance(space, Box) else None
        self._shape = space.shape
        self._mask_key = None if with_info else config.action_mask
        self._passes_no_info = not (with_info or config.log_info or self._mask_key)
        if self._mask_key is not None:
            self.observation_space = self._expect_masks(self._mask_key, space, env.action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        try:
            if seed is not None:
                # Gymnasium's reset seeds `np_random` only. A wrapper may have the only space.
                for name in ("action_space", "observation_space"):
                    with suppress(AttributeError):
                        getattr(self.unwrapped, name).seed(seed)
            result = self.env.reset(seed=seed, options=options)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._raised("reset", error)
        if not (isinstance(result, tuple | list) and len(result) == 2 and isinstance(result[1], Mapping | None)):
            self._refuse("reset", f"returned {describe(result)}, where (observation, info) is expected")
        observation: Any
        info: Any
        observation, info = result[0], result[1] or {}
        try:
            observation = self._checked(observation)
            if self._mask_key is not None:
                observation = self._with_mask(self._mask_key, "reset", observation, info)
        except ValueError as error:
            self._refuse("reset", str(error))
        return observation, info if self._with_info else {}

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
            self._refuse("step", f"returned {describe(result)}, where {_STEP_RESULT} is expected")
        try:
            # The dtype by identity, which is faster; another object for the same dtype takes the longer way.
            fits = type(observation) is np.ndarray and observation.dtype is self._dtype
            if not (fits and observation.shape == self._shape):
                observation = self._checked(observation)
            if type(reward) is not float:
                reward = as_number("the reward", reward)
            if type(terminated) is not bool:
                terminated = as_truth("terminated", terminated)
            if type(truncated) is not bool:
                truncated = as_truth("truncated", truncated)
            if self._passes_no_info:
                return observation, reward, terminated, truncated, {}
            if self._mask_key is not None:
                observation = self._with_mask(self._mask_key, "step", observation, info or {}, (), terminated)
        except (ValueError, OverflowError) as error:
            self._refuse("step", str(error))
        if self._with_info:
            return observation, reward, terminated, truncated, info or {}
        ended = terminated or truncated
        logged = [info_number(info, name) if ended else nan for name in self._log_info]
        return observation, reward, terminated, truncated, {LOGGED: np.array(logged)} if logged else {}

    def close(self) -> None:
        try:
            self.env.close()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            LOGGER.warning("%s: close() raised %s%s", self._name, typed_line(error), raised_at(error))


class ValidatedVectorEnvironment(_Validation, gymnasium.vector.VectorWrapper):
    """`ValidatedEnvironment` for an environment's own vector environment: results are checked as a batch.

    All of info is passed on.
    """

    def __init__(self, env: gymnasium.vector.VectorEnv, config: EnvironmentConfig) -> None:
        super().__init__(env)
        self._name, self._mask_key, self._batch = config.id, config.action_mask, (env.num_envs,)
        space = env.single_observation_space
        self._checked = observation_check(batch_space(space, env.num_envs), "the batch of observations")
        if self._mask_key is not None:
            self.single_observation_space = self._expect_masks(self._mask_key, space, env.single_action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observations, info = self.env.reset(seed=seed, options=options)
        return self._seen("reset", observations, info or {}), info or {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observations, rewards, terminated, truncated, info = self.env.step(actions)
        try:
            rewards = self._values("the batch of rewards", rewards, np.float64, "numbers")
            terminated = self._values("terminated", terminated, np.bool_, "truth values")
            truncated = self._values("truncated", truncated, np.bool_, "truth values")
        except ValueError as error:
            self._refuse("step", str(error))
        return self._seen("step", observations, info or {}, terminated), rewards, terminated, truncated, info or {}

    def _seen(self, method: str, observations: Any, info: Any, terminated: Any = False) -> Any:
        try:
            observations = self._checked(observations)
            if self._mask_key is not None:
                return self._with_mask(self._mask_key, method, observations, info, self._batch, terminated)
        except ValueError as error:
            self._refuse(method, str(error))
        return observations

    def _values(self, name: str, values: Any, dtype: Any, expected: str) -> Any:
        """A copy: the environment may write the next ones in the same memory."""
        # Without `as_array`, which takes 25 µs.
        if type(values) is np.ndarray and values.dtype.kind == np.dtype(dtype).kind and values.shape == self._batch:
            return values.copy()
        return as_array(name, values, np.dtype(dtype), self._batch, f"an array of {expected} {list(self._batch)}")


class CopyInProcess(gymnasium.Wrapper):
    """A copy in a process of its own, which reports an error in its info, and ends silently after its parent.

    Gymnasium's own process would end, print the traceback, and raise a new exception with the same text.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            seed_global_generators(seed)
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


def info_number(info: Any, name: str) -> float:
    """A number of an environment's info by its name, or by a path like episode.r. NaN where there is no number."""
    value, _ = _value_of(info, name)
    try:
        return nan if value is None else as_number(name, value)
    except (ValueError, OverflowError):
        return nan


def info_numbers(info: Any, name: str, count: int) -> Any:
    """The same of a vector environment's info: float64 [count]."""
    try:
        values, present = _value_of(info, name)
        return np.broadcast_to(np.where(present, np.asarray(values, np.float64), nan), count)
    except (TypeError, ValueError):
        return np.full(count, nan)


def _value_of(info: Any, name: str) -> tuple[Any, Any]:
    """A value of info, None if there is none, and whether it is there: bool [B], or True.

    Gymnasium's info of vectors has this beside each value, by the value's name after an underscore; a dictionary in it
    has its own.
    """
    value, present = info, True
    for key in [name] if isinstance(info, Mapping) and name in info else name.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return None, True
        value, present = value[key], np.logical_and(present, value.get(f"_{key}", True))
    return value, present
