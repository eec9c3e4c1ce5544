"""An agent on the stage of its environment: frames in colour at its frame rate, beside the observations."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from actors.environments import AtariEnvironment, GymnasiumAdapter, VectorEnvironment, atari_game
from actors.environments.values import describe
from launch.results.evaluate import PlayArguments, load_policy
from launch.run.folder import RunFolder
from shared.config import EnvironmentConfig
from shared.errors import setting_error, typed_line
from shared.seeds import episode_seeds
from shared.types import Float32Array

Frame = npt.NDArray[np.uint8]

_DEFAULT_FRAMES_PER_SECOND, _SLOWEST = 30, Fraction(1, 1_000)


class PlayedStep(NamedTuple):
    """One agent step: its frames uint8 [height, width, 3], and the state of the episode at its end.

    `value` is the value of the observation before the action, in units of training's rewards. `preferences` are the
    method's probabilities or values of the actions, float32 [A]; None for a vector of actions. `action` is an int32, or
    float32 [D]; None before the first one.
    """

    frames: list[Frame]
    episode_return: float
    value: float
    preferences: Float32Array | None
    action: npt.NDArray[np.generic] | None
    ended: bool = False


class AtariStage:
    """A game with its screen in colour, frame by frame.

    `reset` returns (observations [1, …], frame), and `step` plays an agent step. `enlargement` is the scale of the
    frames in a video, and `pixel_aspect` the width of a pixel over its height on the original screen.
    """

    # The NTSC console's.
    frames_per_second = Fraction(60)
    enlargement = 3
    # On a television of 4:3.
    pixel_aspect = 12 / 7

    def __init__(self, config: EnvironmentConfig) -> None:
        self._game = AtariEnvironment(config, "rgb_array")

    def reset(self, seed: int) -> tuple[npt.NDArray[np.generic], Frame]:
        observation, _ = self._game.reset(seed=seed)
        return observation[None], self._game.screens[0]

    def step(self, actions: npt.NDArray[np.generic]) -> tuple[npt.NDArray[np.generic], float, bool, list[Frame]]:
        observation, reward, terminated, truncated, _ = self._game.step(actions[0])
        return observation[None], reward, terminated or truncated, self._game.screens

    def close(self) -> None:
        self._game.close()


class RenderedStage:
    """Any other environment, by its own `rgb_array` rendering; see `AtariStage`.

    `reset` and `step` raise a ConfigurationError where it gives no picture.
    """

    enlargement = 1
    pixel_aspect = 1.0

    def __init__(self, config: EnvironmentConfig) -> None:
        self._id = config.id
        if "mujoco" in sys.modules:
            # In a process without TensorFlow: together with Mesa's driver, which has an LLVM of its own, they crash.
            config = replace(config, vectorization="async")
        self._environment = VectorEnvironment(config, 1, adapter=GymnasiumAdapter(config, render_mode="rgb_array"))
        metadata: dict[str, Any] = self._environment.unwrapped.metadata
        rate = Fraction(float(metadata.get("render_fps") or _DEFAULT_FRAMES_PER_SECOND)).limit_denominator(1_000)
        # Only the last of the frames of an action repeat is drawn.
        self.frames_per_second = max(rate, _SLOWEST) / config.frame_skip

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
        # `gymnasium.Env.render` itself, or anything of the user's.
        except Exception as error:
            problem = f"cannot be shown: render() raised {typed_line(error)}"
            raise setting_error("environment.id", self._id, problem) from error
        rendered = None if frames is None else frames[0]
        frame = np.asarray(rendered)
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] not in (3, 4):
            problem = f"cannot be shown: render() gave {describe(rendered)}, where uint8 [height, width, 3] is expected"
            raise setting_error("environment.id", self._id, problem)
        # Some have an opacity, which is not shown.
        return np.ascontiguousarray(frame[..., :3])


def make_stage(config: EnvironmentConfig) -> AtariStage | RenderedStage:
    """The stage of an environment. Environments without pictures are refused."""
    return RenderedStage(config) if atari_game(config.id) is None else AtariStage(config)


class Performance:
    """The agent of a run on the stage of its environment. `episodes` is the number of seeds."""

    def __init__(self, arguments: PlayArguments, episodes: int) -> None:
        run = RunFolder(arguments.run)
        config, self.spec = arguments.settings(run)
        self._seeds = episode_seeds(config.seed, "recording", episodes)
        self.policy, snapshot, self.source = load_policy(run, config, self.spec, arguments.weights, self._seeds.actions)
        self.act = self.policy.greedy if config.evaluation.policy == "greedy" else self.policy.act
        self.stage, self.returns = make_stage(config.environment), list[float]()
        self.description = arguments.description(config, self.spec, snapshot.version, self.source, "recording")

    def play(self, seeds: Iterable[int]) -> Iterator[PlayedStep]:
        """Play the episodes of seeds by their numbers. The first step of each is the picture before any action."""
        policy, stage = self.policy, self.stage
        for number in seeds:
            observations, frame = stage.reset(int(self._seeds.environments[number]))
            memory, step = policy.first_state(1), None
            while step is None or not step.ended:
                preferences = policy.preferences(observations, memory)
                value = float(policy.values(observations, memory)[0])
                estimates = value, None if preferences is None else preferences[0]
                if step is None:
                    yield (step := PlayedStep([frame], 0.0, *estimates, None))
                output = self.act(observations, memory)
                memory = output.state
                observations, reward, ended, frames = stage.step(output.actions)
                total = step.episode_return + reward
                yield (step := PlayedStep(frames, total, *estimates, output.actions[0], ended))
            self.returns.append(step.episode_return)
