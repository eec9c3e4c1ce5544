"""Any registered environment that is no Atari game, played by Gymnasium."""

import importlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from actors.environments.adapter import EnvironmentSpec
from actors.environments.pictures import Frames, Pictures, channels_together, has_pictures, is_stack, shape_together
from actors.environments.spaces import Actions, PackedObservations, Vectors
from shared.config import EnvironmentConfig
from shared.config.task import read_wrapper
from shared.errors import ConfigurationError, setting_error, typed_line
from shared.registry import import_modules


class GymnasiumAdapter:
    """The adapter of Gymnasium's vector environments; see `Adapter`.

    Args:
        render_mode: of `gymnasium.make`; rgb_array for pictures.
    """

    protocols: ClassVar[dict[str, dict[str, Any]]] = {}

    def __init__(self, config: EnvironmentConfig, render_mode: str | None = None) -> None:
        self._config = config
        self._render_mode = render_mode
        # The shape of a batch of observations for networks.
        self._shape: tuple[int, ...] = ()
        self._actions: Actions | None = None
        # None if an observation is a single image.
        self._vectors: Vectors | None = None
        # None if an observation is a single image, or numbers only.
        self._packed: PackedObservations | None = None

    def check(self) -> None:
        config = self._config
        if config.sticky_action_probability:
            raise setting_error(
                "environment.sticky_action_probability",
                config.sticky_action_probability,
                "is for Atari; others by a wrapper: gymnasium.wrappers:StickyAction,repeat_action_probability=0.25",
            )

    def make_vector(self, count: int, threads: int = 1) -> gymnasium.vector.VectorEnv:  # noqa: ARG002
        vector = vectorize(self._config, count, self._render_mode)
        space = vector.single_observation_space
        try:
            self._actions = Actions(vector.single_action_space)
            self._vectors = None if is_stack(space) else Vectors(space)
        except ValueError as error:
            vector.close()
            raise setting_error("environment.id", self._config.id, str(error)) from error
        if self._vectors is None:
            self._shape = (count, *shape_together(space.shape or ()))
        elif self._vectors.images:
            self._packed = PackedObservations(self._vectors)
            self._shape = (count, self._packed.parts.row_size)
        else:
            self._shape = (count, self._vectors.size)
        return vector

    def make_single(self, render_mode: str | None = None) -> gymnasium.Env:
        return make_env(self._config, render_mode)

    def frames(self) -> Frames | None:
        environment = make_env(self._config)
        environment.close()
        return environment.frames if isinstance(environment, Pictures) else None

    def spec(self, vector: gymnasium.vector.VectorEnv) -> EnvironmentSpec:  # noqa: ARG002
        assert self._actions is not None
        vectors = self._vectors
        return EnvironmentSpec(
            observation_shape=self._shape[1:],
            observation_dtype=self._dtype,
            actions=self._actions.spec,
            action_set=self._actions.names,
            images=self._dtype == "uint8",
            has_lives=False,
            frames_per_agent_step=self._config.frame_skip,
            observation_bounds=None if vectors is None else (tuple(vectors.low.tolist()), tuple(vectors.high.tolist())),
            parts=None if self._packed is None else self._packed.parts,
            left_out=() if vectors is None else tuple(vectors.left_out),
        )

    def seeds(self, seed: int | npt.NDArray[np.int64]) -> Any:
        if isinstance(seed, int):
            return seed
        # A registered vector form has a single random stream. Others accept Python integers only.
        return int(seed[0]) if self._config.vectorization == "gymnasium" else seed.tolist()

    def actions(self, actions: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        assert self._actions is not None
        return self._actions.of_space(actions)

    def observations(self, observations: Any, to: npt.NDArray[Any] | None) -> npt.NDArray[np.generic]:
        if to is None:
            to = np.empty(self._shape, self._dtype)
        if self._packed is not None:
            self._packed.write(observations, to)
        elif self._vectors is not None:
            self._vectors.write(observations, to)
        else:
            channels_together(observations, to)
        return to

    def lives(self, info: dict[str, Any]) -> npt.NDArray[np.int32] | None:  # noqa: ARG002
        return None

    def observation_meaning(self, spec: EnvironmentSpec) -> str:
        config = self._config
        if not spec.images:
            return f"observations of {config.id}: all their numbers side by side in their order, choices one-hot"
        if spec.parts is None:
            return f"[batch, height, width, stack x channels]: images of {config.id}, {self._pictures()}"
        numbers = ", ".join(f"{name} ({count})" for name, count in spec.parts.numbers)
        vector = f"; vector: {numbers} side by side, choices one-hot" if numbers else ""
        return f"observations of {config.id}: images {self._pictures()}{vector}"

    def training_protocol(self) -> dict[str, Any]:
        return self._rules()

    def score_protocol(self, spec: EnvironmentSpec) -> dict[str, Any]:
        score = {"frames_per_agent_step": spec.frames_per_agent_step, **self._rules()}
        return {**score, "images": self._pictures()} if spec.images else score

    @property
    def _dtype(self) -> str:
        """Dtype of observations for networks: that of images, if there are any."""
        return "float32" if self._packed is None and self._vectors is not None else "uint8"

    def _rules(self) -> dict[str, Any]:
        config = self._config
        rules: dict[str, Any] = {"options": config.options}
        return rules | {"wrappers": list(config.wrappers)} if config.wrappers else rules

    def _pictures(self) -> str:
        config, size = self._config, self._config.screen_size
        colours = "in grey" if config.greyscale else "in their colours"
        resized = "in their size" if size is None else f"resized to {size} x {size}"
        return f"{colours}, {resized}; the newest of {config.frame_stack} is last"


def vectorize(config: EnvironmentConfig, count: int, render_mode: str | None = None) -> gymnasium.vector.VectorEnv:
    """`count` copies of an environment, stepped in turn, in processes, or by the vector form that it has registered.

    Raises:
        ConfigurationError: a wrapper cannot be found or made, or there is no usable vector form.
    """
    copies = [partial(make_env, config, render_mode)] * count
    match config.vectorization:
        case "gymnasium":
            return _vector_form(config, count, render_mode)
        case "async":
            # A fork server: its processes have no copy of TensorFlow's threads nor of other processes' pipes, and end
            # with this process.
            start = partial(AsyncVectorEnv, copies, context="forkserver", autoreset_mode=AutoresetMode.NEXT_STEP)
            with _clean_children():
                try:
                    return start()
                except ValueError as error:
                    if not isinstance(error.__cause__, gymnasium.error.CustomSpaceError):
                        raise
                    # Custom spaces cannot be put into shared memory.
                    return start(shared_memory=False)
        case _:
            return SyncVectorEnv(copies, autoreset_mode=AutoresetMode.NEXT_STEP)


def _vector_form(config: EnvironmentConfig, count: int, render_mode: str | None) -> gymnasium.vector.VectorEnv:
    """The vector form that an environment has registered.

    Raises:
        ConfigurationError: there is none, or it cannot be used.
    """

    def refused(why: str) -> ConfigurationError:
        return setting_error("environment.vectorization", "gymnasium", f"{why}; use sync or async")

    import_modules(config.modules)
    spec = gymnasium.spec(config.registered_id)
    if spec.vector_entry_point is None:
        raise refused(f"{config.id} has registered no vector form")
    if config.wrappers or config.frame_skip > 1:
        setting = "wrappers are" if config.wrappers else "--environment.frame-skip is"
        raise refused(f"{setting} for single environments")
    options: dict[str, Any] = {**config.options, **({} if render_mode is None else {"render_mode": render_mode})}
    vector = gymnasium.make_vec(spec, count, vectorization_mode="vector_entry_point", **options)
    mode = vector.metadata.get("autoreset_mode")
    if mode != AutoresetMode.NEXT_STEP or has_pictures(vector.single_observation_space):
        vector.close()
        rule = getattr(mode, "value", "a rule that it does not name")
        raise refused(f"the vector form of {config.id} resets by {rule}, and not by NextStep, or gives images")
    return vector


@contextmanager
def _clean_children() -> Iterator[None]:
    """Keep new processes from running this process's main module again, which in Ray's workers would import Ray."""
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {name: vars(main).pop(name) for name in ("__file__", "__spec__") if name in vars(main)}
    main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(hidden)


def make_env(config: EnvironmentConfig, render_mode: str | None = None) -> gymnasium.Env:
    """One copy of an environment, in this process or in that of an asynchronous vector environment.

    Raises:
        ConfigurationError: a wrapper cannot be found or made.
    """
    if multiprocessing.parent_process() is not None:
        # Ctrl-C and a closed terminal signal this process too, but its parent ends it when its work is done.
        for kind in (signal.SIGINT, signal.SIGHUP):
            signal.signal(kind, signal.SIG_IGN)
    import_modules(config.modules)
    options = dict[str, Any](config.options)
    if render_mode is not None:
        options["render_mode"] = render_mode
        if render_mode != "human":
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
    """Draw pictures in memory, with SDL and MuJoCo, which would end the process without a display."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("MUJOCO_GL", "egl")


class RepeatedAction(gymnasium.Wrapper):
    """Repeats each action `times` times, or until the episode ends, and sums the rewards."""

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
