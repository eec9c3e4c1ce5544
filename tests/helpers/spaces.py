"""An environment of any spaces, which says what it was given."""

from typing import Any

import gymnasium


class Given(gymnasium.Env):
    """Shows `observations` one after another, over and over, and keeps the actions that it takes in `taken`.

    An episode has as many steps as there are observations.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, observation_space: gymnasium.Space, action_space: gymnasium.Space, observations: list) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self._observations = observations
        self.taken: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed, options=options)
        self._t = 0
        return self._observations[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert self.action_space.contains(action), action
        self.taken.append(action)
        self._t += 1
        ended = self._t >= len(self._observations)
        return self._observations[self._t % len(self._observations)], 1.0, ended, False, {"t": self._t}


def registered(name: str, environment: gymnasium.Env) -> str:
    gymnasium.register(name, entry_point=lambda: environment, disable_env_checker=True)
    return name
