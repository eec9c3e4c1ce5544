"""A task that shows an image and numbers together, registered with Gymnasium when this module is imported."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Text


class Sides(gymnasium.Env):
    """One half of the camera's picture is bright. That side is the right answer, or the other one where `turned` is 1.

    Neither tells anything by itself. Episodes have 10 steps.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = Dict(
        {
            "camera": Box(0, 255, (36, 36, 3), np.uint8),
            "turned": Discrete(2),
            "speed": Box(-9, 9, (2,)),
            "word": Text(9),
        }
    )
    action_space = Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        super().reset(seed=seed, options=options)
        self._time = 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[dict, float, bool, bool, dict]:
        reward = float(action == self._side ^ self._turned)
        self._time += 1
        return self._observation(), reward, False, self._time == 10, {}

    def render(self) -> np.ndarray:
        picture = np.zeros((36, 36, 3), np.uint8)
        picture[:, 18 * self._side :][:, :18] = 200
        return picture

    def _observation(self) -> dict:
        self._side, self._turned = (int(n) for n in self.np_random.integers(2, size=2))
        speed = self.np_random.uniform(-9, 9, 2).astype(np.float32)
        return {"camera": self.render(), "turned": self._turned, "speed": speed, "word": "word"}


class Camera(gymnasium.ObservationWrapper):
    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.observation_space = Sides.observation_space["camera"]

    def observation(self, observation: dict) -> np.ndarray:
        return observation["camera"]


gymnasium.register("Sides-v0", Sides)
