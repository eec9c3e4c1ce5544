"""Wrappers of users with running statistics, kept in different ways, and one without."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers.utils import RunningMeanStd


class Listed(gymnasium.Wrapper):
    """Statistics of two parts, in a list."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._parts = [RunningMeanStd(shape=()), RunningMeanStd(shape=())]


class Nested(gymnasium.Wrapper):
    """Statistics by name, in a dictionary."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._parts = {"reward": RunningMeanStd(shape=())}


class Plain(gymnasium.Wrapper):
    """Counts steps, and changes nothing."""

    steps = 0

    def step(self, action: Any) -> Any:
        self.steps += np.int64(1)
        return self.env.step(action)
