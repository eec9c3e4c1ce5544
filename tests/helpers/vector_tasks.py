"""A task with a vector environment of its own, registered with Gymnasium when this module is imported."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

LIMIT = 7
PLACE = Box(-3, 3, (2,), np.float32)


class Walk(gymnasium.Env):
    """Steps of -1, 0 and 1 from 0. Terminates at -3 and 3, and draws no random number.

    At 2 the action 1 is not allowed; at the end of a terminated episode none is.
    """

    observation_space, action_space = PLACE, Discrete(3, start=-1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed, options=options)
        self._place = self._time = 0
        return self._seen(), self._info()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        self._place, self._time = self._place + action, self._time + 1
        return self._seen(), 0.5 * self._place, abs(self._place) == 3, False, self._info()

    def _seen(self) -> np.ndarray:
        return np.float32([self._place, self._time / LIMIT])

    def _info(self) -> dict:
        lower = abs(self._place) < 3
        return {"allowed": [lower, lower, lower and self._place < 2], "walk": {"steps": self._time}}


class Walks(gymnasium.vector.VectorEnv):
    """The same, many at once: NEXT_STEP, and the next observations in the same memory.

    `returned` replaces parts of the result of `step`, by their numbers.
    """

    def __init__(
        self,
        num_envs: int,
        max_episode_steps: int = LIMIT,
        mode: str = "NextStep",
        images: bool = False,
        copies: int | None = None,
    ) -> None:
        self.num_envs, self._limit = copies or num_envs, max_episode_steps
        self.returned: dict[int, Any] = {}
        self.metadata = {"autoreset_mode": AutoresetMode(mode)} if mode else {}
        self.single_observation_space = Box(0, 255, (40, 40), np.uint8) if images else PLACE
        self.single_action_space = Walk.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._place, self._time = np.zeros((2, self.num_envs), int)
        self._terminated, self._truncated = np.zeros((2, self.num_envs), bool)
        self._observations = np.zeros((self.num_envs, 2), np.float32)
        self.seed: int | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed, options=options)
        self.seed = seed
        self._place[:] = self._time[:] = self._terminated[:] = self._truncated[:] = 0
        return self._seen(), self._info()

    def step(self, actions: Any) -> tuple[Any, ...]:
        new = self._terminated | self._truncated
        self._place[:] = np.where(new, 0, self._place + actions)
        self._time[:] = np.where(new, 0, self._time + 1)
        self._terminated[:], self._truncated[:] = np.abs(self._place) == 3, self._time == self._limit
        # Numbers of a resetting step enter nothing.
        rewards = np.where(new, np.nan, 0.5 * self._place)
        result = [self._seen(), rewards, self._terminated, self._truncated, self._info()]
        return tuple(self.returned.get(i, part) for i, part in enumerate(result))

    def _seen(self) -> np.ndarray:
        self._observations[:] = np.stack([self._place, self._time / LIMIT], axis=1)
        return self._observations

    def _info(self) -> dict:
        lower = np.abs(self._place) < 3
        allowed = np.stack([lower, lower, lower & (self._place < 2)], axis=1)
        return {"allowed": allowed, "walk": {"steps": self._time}}


def without_limit(num_envs: int) -> Walks:
    return Walks(num_envs)


gymnasium.register("Walk-v0", Walk, vector_entry_point=Walks, max_episode_steps=LIMIT)
gymnasium.register("Walks-v0", vector_entry_point=Walks, max_episode_steps=LIMIT)
gymnasium.register("Limited-v0", Walk, vector_entry_point=without_limit, max_episode_steps=LIMIT)
