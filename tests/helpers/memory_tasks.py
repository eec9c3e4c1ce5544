"""Two tasks that need a memory, registered with Gymnasium when this module is imported."""

from typing import Any

import gymnasium
import numpy as np

DELAY = 20


class Cue(gymnasium.Env):
    """A cue is seen once, and asked for 20 steps later: nothing else counts.

    Observations are [cue, asked]: the cue is -1 or 1 at the first step and 0 after it, `asked` is 1 at the last one.
    The action there gives 1 if it names the cue (0: -1, 1: 1), else -1; all others give 0. Without a memory 0 is what
    can be expected.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed, options=options)
        self._cue, self._time = int(self.np_random.integers(2)), 0
        return np.array([2 * self._cue - 1, 0], np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._time += 1
        if self._time > DELAY:
            return np.zeros(2, np.float32), 1.0 if int(action) == self._cue else -1.0, True, False, {}
        return np.array([0, self._time == DELAY], np.float32), 0.0, False, False, {}


class Positions(gymnasium.ObservationWrapper):
    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        space = env.observation_space
        self.observation_space = gymnasium.spaces.Box(space.low[[0, 2]], space.high[[0, 2]], dtype=np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[[0, 2]]


gymnasium.register("Cue-v0", Cue)
gymnasium.register(
    "CartPolePositions-v0", lambda **options: Positions(gymnasium.make("CartPole-v1", **options).unwrapped),
    max_episode_steps=500,
)  # fmt: skip
