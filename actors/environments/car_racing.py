"""CarRacing that is drawn only when the agent looks."""

from typing import Any, cast

import gymnasium


class LastDrawn(gymnasium.Wrapper):
    """Draws what CarRacing-v3 shows after the last of repeated actions only; what the agent sees is the same.

    Gymnasium draws after every step, though a repeated action lets nobody look in between, and drawing is nearly all
    that a step takes. Meant for `--environment.wrappers`, with `times` equal to `--environment.frame-skip`.

    Args:
        env: CarRacing, as `gymnasium.make` returns it.
        times: how often an action is repeated.
    """

    def __init__(self, env: gymnasium.Env, times: int) -> None:
        super().__init__(env)
        self._times, self._steps = times, 0
        # Gymnasium has no switch for it: `step` asks this method of the environment for the picture.
        self._car_racing = cast(Any, env.unwrapped)
        self._draw = self._car_racing._render
        self._car_racing._render = self._render

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """See `gymnasium.Env.reset`."""
        self._steps = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env.step`: between looks, the observation is that of the last one."""
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
