"""Whether CarRacing looks the same when it is drawn for the agent's looks only."""

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np

from actors.environments.car_racing import LastDrawn
from actors.environments.gymnasium import make_env
from launch.presets import PRESETS
from shared.config import EnvironmentConfig


class _Ends(gymnasium.Wrapper):
    """Ends in the middle of a repeated action."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        self._left = 14
        return self.env.reset(**options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._left -= 1
        observation, reward, terminated, _, info = self.env.step(action)
        return observation, reward, terminated, self._left == 0, info


def _played(config: EnvironmentConfig) -> tuple[list[tuple], int]:
    environment = make_env(config)
    try:
        seen = [environment.reset(seed=5)[0]]
        drawn = 0
        unwrapped: Any = environment.unwrapped
        road = unwrapped._render_road

        def count(*arguments: Any) -> None:
            nonlocal drawn
            drawn += 1
            road(*arguments)

        unwrapped._render_road = count
        truncated = False
        while not truncated:
            *moment, truncated, _ = environment.step(3)
            seen.append(tuple(moment))
        return seen, drawn
    finally:
        environment.close()


def test_what_the_agent_sees_is_the_same_and_is_drawn_for_its_looks_only() -> None:
    preset = PRESETS["car-racing"].config.environment
    ends = f"{_Ends.__module__}:_Ends"
    plain, drawn = _played(replace(preset, wrappers=(ends,)))
    seen, drawn_for_looks = _played(replace(preset, wrappers=(ends, *preset.wrappers)))

    assert preset.wrappers == (f"{LastDrawn.__module__}:LastDrawn,times={preset.frame_skip}",)
    # Three actions of four frames, and the fourth until the end, after two.
    assert (drawn, drawn_for_looks) == (14, 4)
    assert len(seen) == len(plain) == 5
    for ours, theirs in zip(seen, plain, strict=True):
        np.testing.assert_equal(ours, theirs)
