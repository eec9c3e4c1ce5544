"""Atari and Gymnasium vector environments behind one interface, with one autoreset rule (NEXT_STEP)."""

import difflib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import ale_py
import gymnasium
import numpy as np
import numpy.typing as npt
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from shared.config import EnvironmentConfig
from shared.errors import one_line, setting_error
from shared.types import ActionSpec, Float32Array

ByteArray = npt.NDArray[np.uint8]

_SKIPPING_OPTIONS = ("frameskip", "frame_skip")
# 6,400 agent steps of random play, of which every tenth observation is kept: two seconds.
_MEAN_ENVIRONMENTS, _MEAN_STEPS, _MEAN_STRIDE = 16, 400, 10


@dataclass(frozen=True)
class EnvironmentSpec:
    """What a network needs to know of an environment, and what a reader needs to know of its protocol."""

    observation_shape: tuple[int, ...]
    observation_dtype: str
    actions: ActionSpec
    action_set: tuple[str, ...]
    is_atari: bool
    observation_bounds: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """Lowest and highest values of a vector observation, ±inf where there is no bound. None for images."""
    observation_mean: npt.NDArray[np.float32] | None = field(default=None, compare=False)
    """What to centre observations on, float32 of `observation_shape`; see `measure_observation_mean`."""


class StepResult(NamedTuple):
    """One vector step: observations [B, …], unclipped rewards float32 [B], and three bool [B].

    `lost_life` marks environments that lost a life in this step, whether or not the episode ended.
    """

    observations: npt.NDArray[np.generic]
    rewards: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    lost_life: npt.NDArray[np.bool_]


class VectorEnvironment:
    """`count` copies of an environment, stepped together; autoreset is NEXT_STEP.

    Args:
        config: which environment, by which protocol. Rewards are not clipped here.
        count: B.
        threads: of ale-py's vector environment. Other environments step in the calling thread.
        make_vector: makes the library's vector environment, where it is not the usual one.
    """

    def __init__(
        self,
        config: EnvironmentConfig,
        count: int,
        threads: int = 1,
        make_vector: Callable[[], gymnasium.vector.VectorEnv] | None = None,
    ) -> None:
        game = atari_game(config.id)
        self._environment: gymnasium.vector.VectorEnv
        options: dict[str, Any] = config.options
        if make_vector is not None:
            self._environment = make_vector()
        elif game is None:
            # The vector forms that some environments register have autoreset rules of their own.
            self._environment = SyncVectorEnv(
                [lambda: gymnasium.make(config.id, **options)] * count, autoreset_mode=AutoresetMode.NEXT_STEP
            )
        else:
            self._environment = AtariVectorEnv(
                game,
                count,
                num_threads=threads,
                max_num_frames_per_episode=config.max_episode_frames,
                repeat_action_probability=config.sticky_action_probability,
                full_action_space=config.full_action_space,
                autoreset_mode=AutoresetMode.NEXT_STEP,
                img_height=config.screen_size,
                img_width=config.screen_size,
                stack_num=config.frame_stack,
                frameskip=config.frame_skip,
                noop_max=config.max_noops,
                use_fire_reset=config.fire_on_reset,
                # Both hide what is needed: true returns, and where an episode really ends.
                reward_clipping=False,
                episodic_life=False,
            )
        self._config = config
        # Continuous actions come in units of half the range. Without two finite bounds they are taken as they are.
        self._action_bounds: tuple[Float32Array, Float32Array] | None = None
        space = self._environment.single_action_space
        if isinstance(space, gymnasium.spaces.Box) and np.isfinite(space.low).all() and np.isfinite(space.high).all():
            self._action_bounds = space.low.astype(np.float32), space.high.astype(np.float32)
        self._lives = np.zeros(count, np.int32)
        self._is_atari = game is not None
        self.count = count
        self._lost_life = np.zeros(count, bool)

    def spec(self) -> EnvironmentSpec:
        """Describe one environment.

        Raises:
            ConfigurationError: its actions are neither a choice nor a vector, or its observations neither images nor
                vectors.
        """
        environment_id = self._config.id
        actions = self._environment.single_action_space
        observations = self._environment.single_observation_space
        if isinstance(actions, gymnasium.spaces.Discrete):
            if int(actions.start) != 0:
                raise setting_error("environment.id", environment_id, f"actions start at {actions.start}, not at 0")
            action_spec = ActionSpec(int(actions.n))
        elif isinstance(actions, gymnasium.spaces.Box) and len(actions.shape) == 1:
            action_spec = ActionSpec(actions.shape[0], continuous=True)
        else:
            raise setting_error(
                "environment.id", environment_id, f"actions are {actions}: neither a choice nor a vector"
            )
        if not isinstance(observations, gymnasium.spaces.Box) or (len(observations.shape) != 1 and not self._is_atari):
            raise setting_error("environment.id", environment_id, f"observations are {observations}, not vectors")
        names = tuple(str(i) for i in range(action_spec.size))
        if isinstance(self._environment, AtariVectorEnv):
            names = tuple(ale_py.Action(action).name for action in self._environment.ale.get_action_set())
        dtype = "uint8" if self._is_atari else "float32"
        bounds = None
        if not self._is_atari:
            bounds = tuple(observations.low.tolist()), tuple(observations.high.tolist())
        shape = observations.shape
        if self._is_atari:
            shape = (*shape[1:], shape[0])
        return EnvironmentSpec(shape, dtype, action_spec, names, self._is_atari, bounds)

    def reset(self, seed: int | npt.NDArray[np.int64]) -> npt.NDArray[np.generic]:
        """Reset all environments, environment i with seed + i, or with entry i of seeds [B]. Returns [B, …]."""
        # Gymnasium's own vector environments take several as Python's integers, ale-py's as an array.
        seeds: Any = seed if isinstance(seed, int) or self._is_atari else seed.tolist()
        observations, info = self._environment.reset(seed=seeds)
        if self._is_atari:
            self._lives = info["lives"].copy()
        return self._convert(observations, None)

    def step(
        self, actions: npt.NDArray[np.generic], observations_to: npt.NDArray[np.generic] | None = None
    ) -> StepResult:
        """Take actions int32 [B], or float32 [B, D] in units of half the range, which are clipped to the bounds.

        Observations are written to `observations_to`, a contiguous array of their shape and dtype, or to a new one.
        Environments whose episode ended in the previous step ignore theirs and reset.
        """
        if self._action_bounds is not None:
            low, high = self._action_bounds
            middle, half = 0.5 * (low + high), 0.5 * (high - low)
            actions = np.clip(middle + half * actions.astype(np.float32), low, high)
        observations, rewards, terminated, truncated, info = self._environment.step(actions)
        if self._is_atari:
            self._lost_life = info["lives"] < self._lives
            self._lives = info["lives"].copy()
        observations = self._convert(observations, observations_to)
        return StepResult(observations, rewards.astype(np.float32), terminated, truncated, self._lost_life)

    @property
    def unwrapped(self) -> gymnasium.vector.VectorEnv:
        """The library's own vector environment, whose observations have its own layout."""
        return self._environment

    def close(self) -> None:
        """Release the environments."""
        self._environment.close()

    def _convert(
        self, observations: npt.NDArray[np.generic], to: npt.NDArray[np.generic] | None
    ) -> npt.NDArray[np.generic]:
        if self._is_atari:
            return channels_last(cast(ByteArray, observations), cast(ByteArray | None, to))
        if to is None:
            return observations.astype(np.float32)
        to[...] = observations
        return to


def channels_last(images: ByteArray, to: ByteArray | None = None) -> ByteArray:
    """Images uint8 [B, stack, height, width] as [B, height, width, stack], contiguous, in `to` if it is given.

    TensorFlow's convolutions on CPUs want channels last. For a stack of four the bytes of a pixel are put together
    as one integer, 4 µs for an image of 84 x 84 where NumPy's own transposed copy takes 19, and TensorFlow's 21.
    """
    count, stack, height, width = images.shape
    if to is None:
        to = np.empty((count, height, width, stack), np.uint8)
    if stack == 4 and sys.byteorder == "little":
        pixels = to.view(np.uint32)[..., 0]
        np.copyto(pixels, images[:, 3])
        for frame in (2, 1, 0):
            np.left_shift(pixels, 8, out=pixels)
            np.bitwise_or(pixels, images[:, frame], out=pixels)
    else:
        for frame in range(stack):
            to[..., frame] = images[:, frame]
    return to


def atari_game(environment_id: str) -> str | None:
    """The ROM name behind a registered Atari id, None for any other registered id."""
    _register()
    spec = gymnasium.spec(environment_id)
    return spec.kwargs["game"] if spec.entry_point == "ale_py.env:AtariEnv" else None


def environment_spec(config: EnvironmentConfig) -> EnvironmentSpec:
    """Check an environment's settings by building one copy, and describe it.

    Raises:
        ConfigurationError: the id is not registered, its actions or observations are of a kind that no method here
            takes, or it would skip frames twice.
    """
    _register()
    if config.id not in gymnasium.registry:
        near = difflib.get_close_matches(config.id, gymnasium.registry, n=3, cutoff=0.5)
        near += difflib.get_close_matches(f"ALE/{config.id}-v5", gymnasium.registry, n=2, cutoff=0.6)
        advice = f"did you mean {', '.join(dict.fromkeys(near))}?" if near else "see gymnasium.registry for the ids"
        raise setting_error("environment.id", config.id, f"no such environment; {advice}")
    _refuse_double_frame_skip(config)
    if atari_game(config.id) is not None and config.options:
        raise setting_error("environment.options", config.options, "Atari is set by the other --environment settings")
    try:
        environments = VectorEnvironment(config, 1)
    except Exception as error:
        raise setting_error("environment.id", config.id, f"cannot be made: {one_line(error)}") from error
    try:
        return environments.spec()
    finally:
        environments.close()


def measure_observation_mean(config: EnvironmentConfig, seed: int) -> npt.NDArray[np.float32]:
    """The mean observation of random play, float32 of the shape of one observation, in the observations' unit.

    A game's picture is mostly the same from frame to frame. Left in, what never changes drives the units of the
    hidden layer harder than what does: on Pong with orthogonal weights, 43 % of them are dead and 45 % always on
    before training starts. With the mean taken out, none are.
    """
    environments = VectorEnvironment(config, _MEAN_ENVIRONMENTS)
    generator = np.random.default_rng(seed)
    actions = environments.spec().actions.size
    environments.reset(seed)
    kept = []
    for step in range(1, _MEAN_STEPS + 1):
        result = environments.step(generator.integers(0, actions, _MEAN_ENVIRONMENTS, np.int32))
        if step % _MEAN_STRIDE == 0:
            kept.append(result.observations.mean(axis=0))
    environments.close()
    return np.mean(kept, axis=0, dtype=np.float32)


def _refuse_double_frame_skip(config: EnvironmentConfig) -> None:
    spec = gymnasium.spec(config.id)
    skipping = [name for name in _SKIPPING_OPTIONS if name in config.options]
    if skipping and config.frame_skip > 1:
        raise setting_error(
            "environment.options",
            f"{skipping[0]} {config.options[skipping[0]]}",
            f"would skip frames twice with --environment.frame-skip {config.frame_skip}; set only the latter",
        )
    if atari_game(config.id) is None:
        if config.frame_skip != 1:
            raise setting_error(
                "environment.frame_skip", config.frame_skip, f"frames are skipped for Atari only; set 1 for {config.id}"
            )
    elif not config.id.startswith("ALE/") and spec.kwargs.get("frameskip") != 1:
        raise setting_error(
            "environment.id",
            config.id,
            f"skips {spec.kwargs['frameskip']} frames itself, so --environment.frame-skip {config.frame_skip} would "
            f"skip twice; use ALE/{spec.name}-v5",
        )


def _register() -> None:
    # Stella's banner goes to stderr at error level only; ale-py reads the level from this function.
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    if "ALE/Pong-v5" not in gymnasium.registry:
        os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
        gymnasium.register_envs(ale_py)
