"""A task with a vector environment of its own, registered with Gymnasium when this module is imported."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

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
        return {"allowed": np.array([lower, lower, lower and self._place < 2]), "walk": {"steps": self._time}}


class Walks(SyncVectorEnv):
    """The same, many at once: NEXT_STEP, and the next observations and ends in the same memory.

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
        super().__init__([lambda: TimeLimit(Walk(), max_episode_steps)] * (copies or num_envs), copy=False)
        self.metadata = {"autoreset_mode": AutoresetMode(mode)} if mode else {}
        if images:
            self.single_observation_space = Box(0, 255, (40, 40), np.uint8)
        self.returned: dict[int, Any] = {}
        self.seed: int | None = None
        self._ends = np.zeros((2, self.num_envs), bool)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        self.seed, self._ends[:] = seed, False
        return super().reset(seed=seed, options=options)

    def step(self, actions: Any) -> tuple[Any, ...]:
        observations, rewards, terminated, truncated, info = super().step(actions)
        resetting = self._ends.any(axis=0)
        self._ends[:] = terminated, truncated
        # Numbers of a resetting step enter nothing.
        result = observations, np.where(resetting, np.nan, rewards), *self._ends, info
        return tuple(self.returned.get(i, part) for i, part in enumerate(result))


def without_limit(num_envs: int) -> Walks:
    return Walks(num_envs)


gymnasium.register("Walk-v0", Walk, vector_entry_point=Walks, max_episode_steps=LIMIT)
gymnasium.register("Walks-v0", vector_entry_point=Walks, max_episode_steps=LIMIT)
gymnasium.register("Limited-v0", Walk, vector_entry_point=without_limit, max_episode_steps=LIMIT)
