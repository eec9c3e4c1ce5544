"""Tasks with actions that are not allowed, registered with Gymnasium when this module is imported."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

CHOICES = (3, 4)


class Picky(gymnasium.Env):
    """Allows random actions, and raises at any other. The reward is the share of choices that are the first allowed.

    Episodes terminate or are truncated after 6 steps or more. A terminated one allows nothing at its end. With
    `several` there are two choices, among 3 and 4, instead of one among 5; with `in_observation` the mask is a part of
    a Dict observation, and not of info.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(
        self, several: bool = False, in_observation: bool = False, images: bool = False, render_mode: str | None = None
    ) -> None:
        self.render_mode = render_mode
        self._choices = CHOICES if several else (5,)
        self._in_observation, size = in_observation, sum(self._choices)
        self.action_space = MultiDiscrete(CHOICES) if several else Discrete(5)
        self.observation_space = Box(0, 255, (40, 40), np.uint8) if images else Box(0, 1, (2 * size,), np.float32)
        if in_observation:
            self.observation_space = Dict({"action_mask": MultiBinary(size), "board": self.observation_space})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed, options=options)
        self._time = 0
        return self._seen()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        chosen = np.atleast_1d(action)
        if not all(part[c] for part, c in zip(self._allowed, chosen, strict=True)):
            raise ValueError(f"{chosen} is not allowed by {self._allowed}")
        reward = float(np.mean([c == np.flatnonzero(part)[0] for part, c in zip(self._allowed, chosen, strict=True)]))
        self._time += 1
        ends = self._time >= 6 and self.np_random.random() < 0.5
        terminated = ends and bool(self.np_random.integers(2))
        return self._seen(nothing=terminated)[0], reward, terminated, ends and not terminated, self._info

    def render(self) -> np.ndarray:
        return np.full((16, 16, 3), 20 * self._time, np.uint8)

    def _seen(self, nothing: bool = False) -> tuple[Any, dict]:
        self._allowed = [self.np_random.random(n) < 0.4 for n in self._choices]
        for part in self._allowed:
            part[self.np_random.integers(len(part))] = True
        mask = np.concatenate(self._allowed).astype(np.int8)
        board: Any = np.concatenate([mask, self.np_random.random(len(mask))]).astype(np.float32)
        inner = self.observation_space["board"] if isinstance(self.observation_space, Dict) else self.observation_space
        if inner.shape == (40, 40):
            board = np.full((40, 40), 50 * int(mask.argmax()), np.uint8)
        if nothing:
            mask = np.zeros_like(mask)
        self._info: dict[str, Any] = {} if self._in_observation else {"action_mask": mask}
        return ({"action_mask": mask, "board": board} if self._in_observation else board), self._info


gymnasium.register("Picky-v0", Picky)
