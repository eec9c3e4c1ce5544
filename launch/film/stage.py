"""Play episodes in colour at the environment's frame rate, in step with what the agent sees."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from actors.environments import AtariAdapter, GymnasiumAdapter, VectorEnvironment, atari_game
from shared.config import EnvironmentConfig
from shared.errors import ConfigurationError, one_line, setting_error
from shared.types import Float32Array

if TYPE_CHECKING:
    # It imports TensorFlow, which the command that only looks whether there is a picture does without.
    from actors.policy import Acted, Policy, State

Frame = npt.NDArray[np.uint8]
Act = Callable[[npt.NDArray[np.generic], "State"], "Acted"]

# The NTSC console's.
_ATARI_FRAMES_PER_SECOND = 60
_ATARI_ENLARGEMENT = 3
# On a television of 4:3.
_ATARI_PIXEL_ASPECT = 12 / 7
_DEFAULT_FRAMES_PER_SECOND = 30


class PlayedStep(NamedTuple):
    """One agent step: its frames uint8 [height, width, 3], and what had happened by its end.

    `value` is what the network expects from the observation that was acted on, in units of training's rewards, and
    `preferences` are how it weighed its actions there, float32 [A]; None for a vector of actions. `action` is what it
    did, an int32 or float32 [D]; None before the first one.
    """

    frames: list[Frame]
    episode_return: float
    value: float
    ended: bool
    preferences: Float32Array | None
    action: npt.NDArray[np.generic] | None


class Stage(Protocol):
    """An environment that is watched. `reset` gives (observations [1, …], frame), `step` an agent step.

    `enlargement` is how many times as wide and high a video shows its frames, and `pixel_aspect` how many times as
    wide as high a pixel is on the screen that they are made for.
    """

    frames_per_second: int
    enlargement: int
    pixel_aspect: float

    def reset(self, seed: int) -> tuple[npt.NDArray[np.generic], Frame]: ...
    def step(self, actions: npt.NDArray[np.generic]) -> tuple[npt.NDArray[np.generic], float, bool, list[Frame]]: ...
    def close(self) -> None: ...


class AtariStage:
    """A game twice: once as the agent sees it, and once in colour, frame by frame, with the same seed and actions.

    The two cannot part as long as ale-py draws its random numbers alike for both; it is checked at every step.
    """

    frames_per_second = _ATARI_FRAMES_PER_SECOND
    enlargement = _ATARI_ENLARGEMENT
    pixel_aspect = _ATARI_PIXEL_ASPECT

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
    """Any other environment, by its own `rgb_array` rendering.

    Raises:
        ConfigurationError: it has none. Some say so only when they are to draw: `reset` and `step` raise it, too.
    """

    enlargement = 1
    pixel_aspect = 1.0

    def __init__(self, config: EnvironmentConfig) -> None:
        self._id = config.id
        if "mujoco" in sys.modules:
            # In a process without TensorFlow: with Mesa's driver, which brings an LLVM too, the two crash.
            config = replace(config, vectorization="async")
        try:
            self._environment = VectorEnvironment(config, 1, adapter=GymnasiumAdapter(config, render_mode="rgb_array"))
        except Exception as error:
            raise self._not_shown(one_line(error)) from error
        metadata: dict[str, Any] = self._environment.unwrapped.metadata
        frames_per_second = int(metadata.get("render_fps") or _DEFAULT_FRAMES_PER_SECOND)
        # Of the frames that an action is repeated for the last is shown.
        self.frames_per_second = max(1, frames_per_second // config.frame_skip)

    def reset(self, seed: int) -> tuple[npt.NDArray[np.generic], Frame]:
        return self._environment.reset(seed), self._frame()

    def step(self, actions: npt.NDArray[np.generic]) -> tuple[npt.NDArray[np.generic], float, bool, list[Frame]]:
        result = self._environment.step(actions)
        ended = bool(result.terminated[0] or result.truncated[0])
        return result.observations, float(result.rewards[0]), ended, [self._frame()]

    def close(self) -> None:
        self._environment.close()

    def _frame(self) -> Frame:
        try:
            frames = self._environment.unwrapped.render()
        except Exception as error:
            raise self._not_shown(one_line(error)) from error
        if frames is None or frames[0] is None:
            raise self._not_shown("it draws nothing")
        return np.asarray(frames[0], np.uint8)

    def _not_shown(self, why: str) -> ConfigurationError:
        return setting_error("environment.id", self._id, f"cannot be shown: {why}")


def make_stage(config: EnvironmentConfig) -> Stage:
    """The environment of a run, to be watched.

    Raises:
        ConfigurationError: it has no pictures.
    """
    return RenderedStage(config) if atari_game(config.id) is None else AtariStage(config)


def play_episode(stage: Stage, policy: "Policy", act: Act, seed: int) -> Iterator[PlayedStep]:
    """One whole episode, from `seed`. The first step is the picture before any action."""
    observations, frame = stage.reset(seed)
    memory = policy.first_state(1)
    value, preferences = _thoughts(policy, observations, memory)
    episode_return, ended = 0.0, False
    yield PlayedStep([frame], 0.0, value, ended, preferences, None)
    while not ended:
        acted = act(observations, memory)
        value, preferences = _thoughts(policy, observations, memory)
        memory = acted.state
        observations, reward, ended, frames = stage.step(acted.actions)
        episode_return += reward
        yield PlayedStep(frames, episode_return, value, ended, preferences, acted.actions[0])


def _thoughts(
    policy: "Policy", observations: npt.NDArray[np.generic], memory: "State"
) -> tuple[float, Float32Array | None]:
    preferences = policy.preferences(observations, memory)
    return float(policy.values(observations, memory)[0]), None if preferences is None else preferences[0]
