"""Atari games, played by ale-py's vector environment in C++."""

import os
import sys
from typing import Any, ClassVar

import ale_py
import gymnasium
import numpy as np
import numpy.typing as npt
from ale_py.vector_env import AtariVectorEnv
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import HumanRendering

from actors.environments.adapter import Adapter, EnvironmentSpec
from actors.environments.images import ByteArray
from shared.config import EnvironmentConfig
from shared.errors import setting_error
from shared.types import ActionSpec

_SCREEN_HEIGHT, _SCREEN_WIDTH = 210, 160
# The default of ale-py's environment.
_REGISTERED_SKIP = 4
_RULES = {
    "repeat_action_probability": "sticky_action_probability",
    "full_action_space": "full_action_space",
    "max_num_frames_per_episode": "max_episode_frames",
}


class AtariAdapter(Adapter):
    # A bound of 31 draws 0 to 30 no-ops.
    protocols: ClassVar[dict[str, dict[str, Any]]] = {
        "noop": {"max_noops": 31, "sticky_action_probability": 0.0, "max_episode_frames": 108_000},
        "machado": {
            "max_noops": 0,
            "sticky_action_probability": 0.25,
            "fire_on_reset": False,
            "max_episode_frames": 18_000,
        },
    }

    def _playable_spec(self) -> gymnasium.envs.registration.EnvSpec:
        spec = gymnasium.spec(self._config.registered_id)
        for name in ("mode", "difficulty", "continuous", "obs_type"):
            value = spec.kwargs.get(name)
            # Both kinds of images are seen in grey.
            if value and value not in ("rgb", "grayscale"):
                option = f"{name} {value}, which ale-py's vector environment cannot play"
                problem = f"is registered with {option}; register it without"
                raise setting_error("environment.id", self._config.id, problem)
        return spec

    def check(self) -> None:
        config, spec = self._config, self._playable_spec()
        skipped = spec.kwargs.get("frameskip", _REGISTERED_SKIP)
        if not config.registered_id.startswith("ALE/") and skipped != 1:
            twice = f"so --environment.frame-skip {config.frame_skip} would skip twice"
            problem = f"skips {skipped} frames itself, {twice}; use ALE/{spec.name}-v5"
            raise setting_error("environment.id", config.id, problem)
        # An id of ale-py names a game, whose rules are settings. An id of the user names a game with its rules.
        is_ale_id = spec.namespace == "ALE" or (spec.namespace is None and spec.name.endswith("NoFrameskip"))
        for name, setting in () if is_ale_id else _RULES.items():
            registered, value = spec.kwargs.get(name), getattr(config, setting)
            if registered not in (None, value):
                problem = f"{config.id} is registered with {name} {registered}; set it to {registered}"
                raise setting_error(f"environment.{setting}", value, problem)
        # Gymnasium would apply them, and ale-py's vector environment does not.
        if not is_ale_id and (spec.max_episode_steps or spec.additional_wrappers):
            name, advice = "wrappers", ""
            if spec.max_episode_steps:
                name, advice = "max_episode_steps", ", and set --environment.max-episode-frames"
            problem = f"is registered with {name}; register it without{advice}"
            raise setting_error("environment.id", config.id, problem)
        for name, only, problem in (
            ("greyscale", True, "Atari is seen in grey"),
            ("action_mask", None, "Atari games have no masks"),
            ("wrappers", (), "ale-py plays Atari, without wrappers"),
            ("vectorization", "sync", "ale-py plays Atari"),
            ("options", {}, "Atari is set by the other --environment settings"),
        ):
            value = getattr(config, name)
            if value != only:
                text = ",".join(value) if name == "wrappers" else value
                raise setting_error(f"environment.{name}", text, problem)
        if config.screen_size is None:
            raise setting_error("environment.screen_size", None, "Atari is seen in a square: set its side, such as 84")

    def make_vector(self, count: int, threads: int = 1) -> gymnasium.vector.VectorEnv:
        config = self._config
        size, image_options = config.screen_size, {"stack_num": config.frame_stack, "frameskip": config.frame_skip}
        return self._make(count, threads, img_height=size, img_width=size, **image_options)

    def make_screen(self) -> gymnasium.vector.VectorEnv:
        """One copy of the same game under the same rules, in colour and frame by frame, for people.

        Its observations are uint8 [1, 1, 210, 160, 3]. With the seed and the actions of a copy of `make_vector`, each
        action repeated for its frames, it plays the same episode.
        """
        image_options = {"stack_num": 1, "frameskip": 1, "grayscale": False, "maxpool": False}
        return self._make(1, 1, img_height=_SCREEN_HEIGHT, img_width=_SCREEN_WIDTH, **image_options)

    def make_single(self, render_mode: str | None = None) -> gymnasium.Env:
        if render_mode == "human":
            return HumanRendering(AtariEnvironment(self._config, "rgb_array"))
        return AtariEnvironment(self._config, render_mode)

    def _make(self, count: int, threads: int, **image_options: Any) -> gymnasium.vector.VectorEnv:
        # Not in `check` only: no caller plays another game in silence.
        config, spec = self._config, self._playable_spec()
        return AtariVectorEnv(
            spec.kwargs["game"],
            count,
            num_threads=threads,
            max_num_frames_per_episode=config.max_episode_frames,
            repeat_action_probability=config.sticky_action_probability,
            full_action_space=config.full_action_space,
            autoreset_mode=AutoresetMode.NEXT_STEP,
            noop_max=config.max_noops,
            use_fire_reset=config.fire_on_reset,
            # They would hide true returns and the true ends of episodes.
            reward_clipping=False,
            episodic_life=False,
            **image_options,
        )

    def spec(self, vector: gymnasium.vector.VectorEnv) -> EnvironmentSpec:
        assert isinstance(vector, AtariVectorEnv)
        stack, height, width = vector.single_observation_space.shape
        names = tuple(ale_py.Action(action).name for action in vector.ale.get_action_set())
        return EnvironmentSpec(
            observation_shape=(height, width, stack),
            observation_dtype="uint8",
            actions=ActionSpec(int(vector.single_action_space.n)),
            action_set=names,
            images=True,
        )

    def observations(self, observations: Any, to: npt.NDArray[Any] | None) -> npt.NDArray[np.generic]:
        return channels_last(observations, to)

    def lives(self, info: dict[str, Any]) -> npt.NDArray[np.int32] | None:
        return info["lives"]

    def observation_meaning(self, spec: EnvironmentSpec) -> str:  # noqa: ARG002
        config = self._config
        return (
            f"[batch, height, width, stack]: greyscale, the maximum of the last {min(2, config.frame_skip)} of "
            f"{config.frame_skip} frames, resized to {config.screen_size} x {config.screen_size}; the newest of "
            f"{config.frame_stack} is last"
        )

    def training_protocol(self) -> dict[str, Any]:
        names = ("terminal_on_life_loss", "full_action_space")
        return {**self._protocol(), "greyscale": True, **{name: getattr(self._config, name) for name in names}}

    def score_protocol(self, spec: EnvironmentSpec) -> dict[str, Any]:
        config = self._config
        return {
            **self._protocol(),
            "frames_per_agent_step": config.frame_skip,
            "start_frames": _start_frames(config, has_fire="FIRE" in spec.action_set),
            "life_loss_ends_episode": False,
            "action_set": "full" if config.full_action_space else "minimal",
        }

    def _protocol(self) -> dict[str, Any]:
        """The rules of play in training's manifest and beside a score."""
        names = ("sticky_action_probability", "fire_on_reset", "max_episode_frames", "frame_stack", "screen_size")
        limits = {"max_pooled_frames": min(2, self._config.frame_skip), "most_noops": _max_noops(self._config)}
        return {name: getattr(self._config, name) for name in names} | limits


class AtariEnvironment(gymnasium.Env):
    """One game as an agent sees it: its no-ops, repeated actions and stacked frames, [height, width, stack].

    With the render mode rgb_array a second emulator, with the same seed and actions, gives `screens`: each frame of the
    last step in colour, uint8 [210, 160, 3]. They stay in step as long as ale-py draws the same random numbers for
    both, which every step checks.
    """

    def __init__(self, config: EnvironmentConfig, render_mode: str | None) -> None:
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": max(1, 60 // config.frame_skip)}
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode {render_mode}: must be rgb_array, human or None")
        self.render_mode = render_mode
        self._frame_skip = config.frame_skip
        adapter = AtariAdapter(config)
        self._seen = adapter.make_vector(1)
        self._shown = None if render_mode is None else adapter.make_screen()
        self.screens: list[ByteArray] = []
        stack, height, width = self._seen.single_observation_space.shape or ()
        self.observation_space = Box(0, 255, (height, width, stack), np.uint8)
        self.action_space = self._seen.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ByteArray, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        # Both emulators need the same one.
        seed = int(self.np_random.integers(2**31)) if seed is None else seed
        observations, info = self._seen.reset(seed=seed)
        if self._shown is not None:
            self.screens = [self._shown.reset(seed=seed)[0][0, 0].copy()]
        return channels_last(observations)[0], _first(info)

    def step(self, action: Any) -> tuple[ByteArray, float, bool, bool, dict[str, Any]]:
        observations, *result, info = self._seen.step(np.array([action]))
        reward, terminated, truncated = (one[0].item() for one in result)
        if self._shown is not None:
            self.screens, shown_reward, ended = [], 0.0, False
            while not ended and len(self.screens) < self._frame_skip:
                screens, *colour_step, _ = self._shown.step(np.array([action]))
                self.screens.append(screens[0, 0].copy())
                shown_reward += colour_step[0][0]
                ended = bool(colour_step[1][0] or colour_step[2][0])
            if shown_reward != reward or ended != (terminated or truncated):
                rewards = f"reward {shown_reward:g} against {reward:g}"
                raise RuntimeError(f"the frames are not those of the agent's game any more: {rewards}")
        return channels_last(observations)[0], reward, terminated, truncated, _first(info)

    def render(self) -> Any:
        """The screen after the last step, uint8 [210, 160, 3]; None without a render mode."""
        return self.screens[-1] if self.screens else None

    def close(self) -> None:
        for game in (self._seen, self._shown):
            if game is not None:
                game.close()


def _first(info: dict[str, Any]) -> dict[str, Any]:
    return {name: values[0] for name, values in info.items() if not name.startswith("_")}


def atari_game(environment_id: str) -> str | None:
    """The ROM name behind a registered Atari id; None for other ids, registered or not."""
    register_games()
    spec = gymnasium.registry.get(environment_id.rpartition(":")[2])
    return spec.kwargs["game"] if spec is not None and spec.entry_point == "ale_py.env:AtariEnv" else None


def register_games() -> None:
    # Stella's banner goes to stderr at error level only; ale-py reads the level from this function.
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    if "ALE/Pong-v5" not in gymnasium.registry:
        os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
        gymnasium.register_envs(ale_py)


def channels_last(images: ByteArray, to: ByteArray | None = None) -> ByteArray:
    """Images uint8 [B, stack, height, width] as [B, height, width, stack], contiguous, in `to` if it is given.

    TensorFlow's convolutions on CPUs want channels last. For a stack of four the bytes of a pixel are put together
    as one integer: 4 µs for an image of 84 x 84, against 19 µs of NumPy's transposed copy and 21 µs of TensorFlow's.
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


def _max_noops(config: EnvironmentConfig) -> int:
    return max(config.max_noops - 1, 0)


def _start_frames(config: EnvironmentConfig, *, has_fire: bool) -> str:
    """Number of frames before the agent acts, as text.

    ale-py draws uniformly below the bound. FIRE replaces a no-op, and is pressed even if none was drawn, so that draws
    of 0 and of 1 both give one frame.
    """
    most = _max_noops(config)
    if not (config.fire_on_reset and has_fire):
        return f"0 to {most}" if most else "0"
    return f"1 to {most}, 1 twice as likely" if most > 1 else "1"
