"""Play episodes in colour at the environment's frame rate, in step with what the agent sees."""

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from actors.environments import AtariAdapter, GymnasiumAdapter, VectorEnvironment, atari_game
from actors.policy import Acted, Policy
from shared.config import EnvironmentConfig

Frame = npt.NDArray[np.uint8]

# The NTSC console's.
_ATARI_FRAMES_PER_SECOND = 60
_ATARI_ENLARGEMENT = 3
_DEFAULT_FRAMES_PER_SECOND = 30


class PlayedStep(NamedTuple):
    """One agent step: its frames uint8 [height, width, 3], and what had happened by its end.

    `value` is what the network expects from the observation that was acted on, in units of training's rewards.
    """

    frames: list[Frame]
    episode_return: float
    value: float
    ended: bool


class Stage(Protocol):
    """An environment that is watched. `reset` gives (observations [1, …], frame), `step` an agent step.

    `enlargement` is how many times as wide and high a video shows its frames.
    """

    frames_per_second: int
    enlargement: int

    def reset(self, seed: int) -> tuple[npt.NDArray[np.generic], Frame]: ...
    def step(self, actions: npt.NDArray[np.generic]) -> tuple[npt.NDArray[np.generic], float, bool, list[Frame]]: ...
    def close(self) -> None: ...


class AtariStage:
    """A game twice: once as the agent sees it, and once in colour, frame by frame, with the same seed and actions.

    The two cannot part as long as ale-py draws its random numbers alike for both; it is checked at every step.
    """

    frames_per_second = _ATARI_FRAMES_PER_SECOND
    enlargement = _ATARI_ENLARGEMENT

    def __init__(self, config: EnvironmentConfig) -> None:
        self._skip = config.frame_skip
        self._seen = VectorEnvironment(config, 1)
        self._shown = AtariAdapter(config).make_screen()

    def reset(self, seed: int) -> tuple[npt.NDArray[np.generic], Frame]:
        return self._seen.reset(seed), self._shown.reset(seed=seed)[0][0, 0].copy()

    def step(self, actions: npt.NDArray[np.generic]) -> tuple[npt.NDArray[np.generic], float, bool, list[Frame]]:
        result = self._seen.step(actions)
        ended = bool(result.terminated[0] or result.truncated[0])
        frames, reward, shown_ended = [], 0.0, False
        for _ in range(self._skip):
            observation, rewards, terminated, truncated, _ = self._shown.step(actions)
            frames.append(observation[0, 0].copy())
            reward += float(rewards[0])
            shown_ended = bool(terminated[0] or truncated[0])
            if shown_ended:
                break
        if reward != float(result.rewards[0]) or ended != shown_ended:
            raise RuntimeError(
                f"what is shown is not what the agent plays any more: reward {reward:g} against {result.rewards[0]:g}"
            )
        return result.observations, reward, ended, frames

    def close(self) -> None:
        self._seen.close()
        self._shown.close()


class RenderedStage:
    """Any other environment, by its own `rgb_array` rendering."""

    enlargement = 1

    def __init__(self, config: EnvironmentConfig) -> None:
        # Pictures are drawn in memory, without a display.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        self._environment = VectorEnvironment(config, 1, adapter=GymnasiumAdapter(config, render_mode="rgb_array"))
        metadata: dict[str, Any] = self._environment.unwrapped.metadata
        self.frames_per_second = int(metadata.get("render_fps") or _DEFAULT_FRAMES_PER_SECOND)

    def reset(self, seed: int) -> tuple[npt.NDArray[np.generic], Frame]:
        return self._environment.reset(seed), self._frame()

    def step(self, actions: npt.NDArray[np.generic]) -> tuple[npt.NDArray[np.generic], float, bool, list[Frame]]:
        result = self._environment.step(actions)
        ended = bool(result.terminated[0] or result.truncated[0])
        return result.observations, float(result.rewards[0]), ended, [self._frame()]

    def close(self) -> None:
        self._environment.close()

    def _frame(self) -> Frame:
        frames = self._environment.unwrapped.render()
        assert frames is not None
        return np.asarray(frames[0], np.uint8)


def make_stage(config: EnvironmentConfig) -> Stage:
    """The environment of a run, to be watched."""
    return RenderedStage(config) if atari_game(config.id) is None else AtariStage(config)


def play_episode(
    stage: Stage, policy: Policy, act: Callable[[npt.NDArray[np.generic]], Acted], seed: int
) -> Iterator[PlayedStep]:
    """One whole episode, from `seed`. The first step is the picture before any action."""
    observations, frame = stage.reset(seed)
    episode_return, ended = 0.0, False
    yield PlayedStep([frame], 0.0, float(policy.values(observations)[0]), ended=False)
    while not ended:
        value = float(policy.values(observations)[0])
        observations, reward, ended, frames = stage.step(act(observations).actions)
        episode_return += reward
        yield PlayedStep(frames, episode_return, value, ended)
