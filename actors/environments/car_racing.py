"""CarRacing without the pictures between repeated actions. The module's path is part of saved settings."""

from typing import Any, cast

import gymnasium


class LastDrawn(gymnasium.Wrapper):
    """Draws CarRacing-v3 only after the last of `times` repeated actions. The agent's observations are the same.

    Gymnasium draws after every step, which is nearly all of its time, although the pictures between repeated actions
    are not observed. For `--environment.wrappers`, with `times` equal to `--environment.frame-skip`.
    """

    def __init__(self, env: gymnasium.Env, times: int) -> None:
        super().__init__(env)
        self._times, self._steps = times, 0
        # Gymnasium has no switch for it: `step` calls this method of the environment for the picture.
        self._car_racing = cast(Any, env.unwrapped)
        self._draw = self._car_racing._render
        self._car_racing._render = self._render

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._steps += 1
        observation, reward, terminated, truncated, info = self.env.step(action)
        if (terminated or truncated) and self._between_looks:
            observation = self._car_racing.state = self._draw("state_pixels")
        return observation, reward, terminated, truncated, info

    @property
    def _between_looks(self) -> bool:
        return self._steps % self._times != 0

    def _render(self, mode: str) -> Any:
        if mode == "state_pixels" and self._between_looks:
            # Gymnasium warns of two observations that are one object.
            return self._car_racing.state.copy()
        return self._draw(mode)
