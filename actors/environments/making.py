"""One copy of an environment that is no Atari game: the user's wrappers, repeated actions, and images as seen."""

import importlib
import multiprocessing
import os
import signal
from typing import Any

import gymnasium

from actors.environments.pictures import Pictures, has_pictures
from shared.config import EnvironmentConfig
from shared.config.task import read_wrapper
from shared.errors import setting_error, typed_line
from shared.imports import import_modules


def make_environment(config: EnvironmentConfig, render_mode: str | None = None) -> gymnasium.Env:
    """One copy of an environment, in this process or in that of an asynchronous vector environment.

    Raises:
        ConfigurationError: a wrapper cannot be found or made.
    """
    if multiprocessing.parent_process() is not None:
        # Ctrl-C and a closed terminal reach this process too. The one that asked for it ends it when its work is done.
        for kind in (signal.SIGINT, signal.SIGHUP):
            signal.signal(kind, signal.SIG_IGN)
    import_modules(config.modules)
    options = dict[str, Any](config.options)
    if render_mode is not None:
        options["render_mode"] = render_mode
        _draw_without_display()
    environment = gymnasium.make(config.registered_id, **options)
    for wrapper in config.wrappers:
        environment = _wrapped(environment, wrapper)
    if config.frame_skip > 1:
        environment = RepeatedAction(environment, config.frame_skip)
    if has_pictures(environment.observation_space):
        environment = Pictures(
            environment, size=config.screen_size, greyscale=config.greyscale, stack=config.frame_stack
        )
    return environment


def _draw_without_display() -> None:
    """Have pictures drawn in memory: by SDL, and by MuJoCo, which would end the process where there is no display."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("MUJOCO_GL", "egl")


class RepeatedAction(gymnasium.Wrapper):
    """Takes each action so many times, or until the episode ends. The rewards are summed."""

    def __init__(self, env: gymnasium.Env, times: int) -> None:
        super().__init__(env)
        self._times = times

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env.step`: the last observation and info."""
        total = 0.0
        for _ in range(self._times):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


def _wrapped(environment: gymnasium.Env, wrapper: str) -> gymnasium.Env:
    module, name, options = read_wrapper(wrapper)
    made = getattr(importlib.import_module(module), name, None)
    if not callable(made):
        raise setting_error("environment.wrappers", wrapper, f"{module} has no {name}")
    try:
        wrapped = made(environment, **options)
    except Exception as error:
        raise setting_error("environment.wrappers", wrapper, f"cannot be made: {typed_line(error)}") from error
    if not isinstance(wrapped, gymnasium.Env):
        raise setting_error("environment.wrappers", wrapper, f"gives {type(wrapped).__name__}, and no environment")
    return wrapped
