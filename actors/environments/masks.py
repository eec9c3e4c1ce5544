"""Masks of the allowed actions: read from an observation or from info, and passed on beside the observation."""

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Dict, MultiBinary, Tuple

from actors.environments.border import Border, as_array, logged_numbers
from actors.environments.spaces import Actions
from shared.config import EnvironmentConfig
from shared.errors import EnvironmentFailedError, setting_error
from shared.types import ActionSpec


class ActionMasks(gymnasium.Wrapper):
    """Makes each observation a pair: the observation without its mask, and the mask, int8 [A].

    A is `ActionSpec.size`. A key of a Dict observation goes before one of info. After a terminated step no action is
    chosen: a mask may then be missing or allow nothing, and counts as allowing all. A truncated step needs a mask,
    because values of its observation are bootstrapped. `border` reports errors.
    """

    def __init__(self, env: gymnasium.Env, border: Border, config: EnvironmentConfig) -> None:
        super().__init__(env)
        assert config.action_mask is not None
        self._key, self._id = config.action_mask, config.id
        self._border, self._log_info = border, config.log_info
        self._actions = Actions(env.action_space).spec
        if self._actions.continuous:
            problem = f"the actions of {config.id} are continuous ({env.action_space}); masks are for choices"
            raise setting_error("environment.action_mask", self._key, problem)
        space = env.observation_space
        self._in_observation = False
        if isinstance(space, Dict) and self._key in space.spaces:
            self._in_observation = True
            space = Dict({key: part for key, part in space.spaces.items() if key != self._key})
        self.observation_space = Tuple((space, MultiBinary(self._actions.size)))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._pair("reset", observation, info), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        logged = logged_numbers(info, self._log_info, terminated or truncated) if self._log_info else {}
        return self._pair("step", observation, info, terminated), reward, terminated, truncated, logged

    def _pair(self, method: str, observation: Any, info: dict[str, Any], terminated: bool = False) -> tuple[Any, Any]:
        if self._in_observation:
            given = observation[self._key]
            observation = {key: part for key, part in observation.items() if key != self._key}
        else:
            given = info.get(self._key)
        if given is None:
            if not terminated:
                raise EnvironmentFailedError(self._missing(method, info))
            return observation, np.ones(self._actions.size, np.int8)
        try:
            name, shape = f"the mask {self._key!r}", (self._actions.size,)
            mask = read_mask(name, given, self._actions, shape, ended=terminated)
        except ValueError as error:
            self._border.refuse(method, str(error))
        return observation, mask.astype(np.int8)

    def _missing(self, method: str, info: dict[str, Any]) -> str:
        space = self.env.observation_space
        kept = ", ".join(map(repr, space.spaces)) if isinstance(space, Dict) else "no keys"
        names = ", ".join(map(repr, info)) or "no keys"
        found = f"the observation has {kept}, and info has {names}, after {method}() of {self._id}"
        return f"--environment.action-mask {self._key}: {found}"


def read_mask(
    name: str, given: Any, actions: ActionSpec, shape: tuple[int, ...], *, ended: bool = False
) -> npt.NDArray[np.bool_]:
    """Masks as bool of `shape`, [A] or [B, A], from an array-like of truth values, or a tuple of one for each choice.

    A mask without an allowed action raises a ValueError, but allows all actions where the episode has `ended`.
    """
    size = actions.size
    if actions.choices and isinstance(given, tuple) and len(given) == len(actions.choices):
        try:
            given = np.concatenate(given, axis=-1)
        except (TypeError, ValueError):
            given = np.empty(0, object)
    mask = as_array(name, given, np.dtype(np.bool_), shape, f"a truth value for each of {size} actions {list(shape)}")
    starts = np.cumsum((0, *actions.choices[:-1]))
    possible = np.logical_or.reduceat(mask, starts, axis=-1)
    if possible.all():
        return mask
    if ended:
        return np.ones_like(mask)
    of_choice = f" of choice {np.argwhere(~possible)[0][-1]}" if actions.choices else ""
    raise ValueError(f"{name} allows no action{of_choice}; only a terminated episode may end so")


def split_masks(
    rows: npt.NDArray[Any], observation_shape: tuple[int, ...], actions: ActionSpec
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Views of the observations [..., *observation_shape] and of the masks [..., A] in rows, see `EnvironmentSpec`."""
    observations, masks = rows[..., : -actions.size], rows[..., -actions.size :]
    return observations.reshape(*rows.shape[:-1], *observation_shape), masks
