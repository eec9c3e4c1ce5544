"""Any registered environment that is no Atari game, played by Gymnasium."""

import importlib
import inspect
import math
import multiprocessing
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import load_env_creator
from gymnasium.spaces import Tuple
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.utils import RunningMeanStd

from actors.environments.adapter import Adapter, EnvironmentSpec
from actors.environments.border import Border, CopyInProcess
from actors.environments.masks import ActionMasks, split_masks
from actors.environments.pictures import Frames, Pictures, channels_together, has_pictures, is_stack, shape_together
from actors.environments.spaces import Actions, PackedObservations, Vectors, reading_notes
from shared.config import EnvironmentConfig, OptionValue
from shared.config.task import STICKY, option_of_type, read_wrapper
from shared.errors import place, setting_error, typed_line
from shared.registry import import_modules
from shared.types import Float32Array

UNSAVED = (
    "has running statistics, which differ between copies and are not saved; --network.observation-scaling running and "
    "--environment.normalise-rewards have statistics of all training, which are saved"
)


class GymnasiumAdapter(Adapter):
    """The adapter of Gymnasium's vector environments. `render_mode` is that of `gymnasium.make`."""

    def __init__(self, config: EnvironmentConfig, render_mode: str | None = None) -> None:
        super().__init__(config)
        self._render_mode = render_mode
        self._masked = config.action_mask is not None
        # What `make_vector` finds out. The shape of an observation for networks is without its mask.
        self._count: int
        self._shape: tuple[int, ...]
        # Writes a batch of observations to an array for networks.
        self._write: Callable[[Any, npt.NDArray[Any]], None]
        self._actions: Actions
        self._notes: list[str]
        # None if an observation is a single image.
        self._vectors: Vectors | None
        # None if an observation is a single image, or numbers only.
        self._packed: PackedObservations | None = None

    def check(self) -> None:
        config = self._config
        if config.sticky_action_probability:
            name = "environment.sticky_action_probability"
            raise STICKY.refused(name, config.sticky_action_probability, config.id)
        if config.action_mask is not None and config.frame_skip > 1:
            problem = f"--environment.frame-skip {config.frame_skip} would repeat actions that are not allowed any more"
            raise setting_error("environment.action_mask", config.action_mask, f"{problem}; set it to 1")

    def make_vector(self, count: int, threads: int = 1) -> gymnasium.vector.VectorEnv:  # noqa: ARG002
        vector = vectorize(self._config, count, self._render_mode)
        space = vector.single_observation_space
        if self._masked:
            space = cast(Tuple, space).spaces[0]
        self._notes = reading_notes(space)
        try:
            self._actions = Actions(vector.single_action_space)
            self._vectors = None if is_stack(space) else Vectors(space)
        except ValueError as error:
            vector.close()
            raise setting_error("environment.id", self._config.id, str(error)) from error
        self._count = count
        if self._vectors is None:
            self._shape, self._write = shape_together(space.shape or ()), channels_together
        elif self._vectors.images:
            self._packed = PackedObservations(self._vectors)
            self._shape, self._write = (self._packed.parts.row_size,), self._packed.write
        else:
            self._shape, self._write = (self._vectors.size,), self._vectors.write
        return vector

    def make_single(self, render_mode: str | None = None) -> gymnasium.Env:
        return make_env(self._config, render_mode, with_info=True)

    def frames(self) -> Frames | None:
        environment = make_env(self._config, with_info=True)
        environment.close()
        return environment.frames if isinstance(environment, Pictures) else None

    def spec(self, vector: gymnasium.vector.VectorEnv) -> EnvironmentSpec:  # noqa: ARG002
        vectors = self._vectors
        return EnvironmentSpec(
            observation_shape=self._shape,
            observation_dtype=self._dtype,
            actions=self._actions.spec,
            action_set=self._actions.names,
            images=self._dtype == "uint8",
            has_lives=False,
            frames_per_agent_step=self._config.frame_skip,
            observation_bounds=None if vectors is None else (tuple(vectors.low.tolist()), tuple(vectors.high.tolist())),
            parts=None if self._packed is None else self._packed.parts,
            numbers=() if vectors is None else vectors.sizes,
            left_out=() if vectors is None else tuple(vectors.left_out),
            notes=(*self._notes, *(() if vectors is None else vectors.notes)),
            action_space=self._actions.description(),
            masked=self._masked,
        )

    def seeds(self, seed: int | npt.NDArray[np.int64]) -> Any:
        # Environments accept Python integers only.
        return seed if isinstance(seed, int) else seed.tolist()

    def actions(self, actions: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        return self._actions.of_space(actions)

    def observations(self, observations: Any, to: npt.NDArray[Any] | None) -> npt.NDArray[np.generic]:
        if to is None:
            shape = self._shape
            if self._masked:
                shape = (math.prod(shape) + self._actions.spec.size,)
            to = np.empty((self._count, *shape), self._dtype)
        if not self._masked:
            self._write(observations, to)
            return to
        without_masks, masks = split_masks(to, self._shape, self._actions.spec)
        self._write(observations[0], without_masks)
        masks[...] = observations[1]
        return to

    def numbers(self, observations: npt.NDArray[np.generic]) -> Float32Array | None:
        if self._packed is not None:
            return self._packed.parts.vectors(cast(npt.NDArray[np.uint8], observations))
        return None if self._vectors is None else cast(Float32Array, observations)

    def number_name(self, index: int) -> str:
        assert self._vectors is not None
        return self._vectors.number_name(index)

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
        config = self._config
        rules: dict[str, Any] = {"options": config.options}
        if config.wrappers:
            rules["wrappers"] = list(config.wrappers)
        return rules if config.action_mask is None else rules | {"action_mask": config.action_mask}

    def score_protocol(self, spec: EnvironmentSpec) -> dict[str, Any]:
        score = {"frames_per_agent_step": spec.frames_per_agent_step, **self.training_protocol()}
        return {**score, "images": self._pictures()} if spec.images else score

    @property
    def _dtype(self) -> str:
        return "float32" if self._packed is None and self._vectors is not None else "uint8"

    def _pictures(self) -> str:
        config, size = self._config, self._config.screen_size
        colours = "in grey" if config.greyscale else "in their colours"
        resized = "in their size" if size is None else f"resized to {size} x {size}"
        return f"{colours}, {resized}; the newest of {config.frame_stack} is last"


def vectorize(config: EnvironmentConfig, count: int, render_mode: str | None = None) -> gymnasium.vector.VectorEnv:
    """`count` copies of an environment, stepped in turn or in processes."""
    copies = [partial(make_env, config, render_mode)] * count
    # The adapter copies observations.
    if config.vectorization == "sync":
        return SyncVectorEnv(copies, autoreset_mode=AutoresetMode.NEXT_STEP, copy=False)
    # A fork server: its processes have no copy of TensorFlow's threads nor of other processes' pipes, and end with this
    # process.
    mode = AutoresetMode.NEXT_STEP
    start = partial(AsyncVectorEnv, copies, context="forkserver", autoreset_mode=mode, copy=False)
    with _clean_children():
        try:
            return start()
        except (TypeError, ValueError) as error:
            # Custom spaces cannot be put into shared memory, nor those of dynamic shape, by a TypeError.
            if isinstance(error, ValueError) and not isinstance(error.__cause__, gymnasium.error.CustomSpaceError):
                raise
            return start(shared_memory=False)


@contextmanager
def _clean_children() -> Iterator[None]:
    """Keep new processes from running this process's main module again, which in Ray's workers would import Ray.

    And Python's tracker of semaphores from printing a warning when this process is killed.
    """
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {name: vars(main).pop(name) for name in ("__file__", "__spec__") if name in vars(main)}
    main.__spec__ = None
    warnings = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (warnings, "ignore:resource_tracker")))
    try:
        yield
    finally:
        vars(main).update(hidden)
        os.environ.pop("PYTHONWARNINGS", None)
        if warnings is not None:
            os.environ["PYTHONWARNINGS"] = warnings


def make_env(config: EnvironmentConfig, render_mode: str | None = None, *, with_info: bool = False) -> gymnasium.Env:
    """One copy of an environment, in this process or in that of an asynchronous vector environment.

    Its info has the numbers of `log_info` only, and its observation is a pair with the mask, if there are masks; unless
    it is `with_info`.
    """
    in_child = config.vectorization == "async" and multiprocessing.parent_process() is not None
    if in_child:
        # Ctrl-C and a closed terminal signal this process too, but its parent ends it when its work is done.
        for kind in (signal.SIGINT, signal.SIGHUP):
            signal.signal(kind, signal.SIG_IGN)
    import_modules(config.modules)
    spec = gymnasium.spec(config.registered_id)
    options = _typed(config.options, gymnasium.make, _creator(spec.entry_point))
    if render_mode is not None:
        options["render_mode"] = render_mode
        if render_mode != "human":
            _draw_without_display()
    # The border checks what Gymnasium's checker looks at, and more, at every step; and all here reset before they step.
    spec = replace(spec, order_enforce=False)
    environment = gymnasium.make(spec, **{"disable_env_checker": True, **options})
    for wrapper in config.wrappers:
        environment = _wrapped(environment, wrapper)
    _refuse_statistics(environment, config)
    masked = config.action_mask is not None and not with_info
    border = environment = Border(environment, config.id, None if with_info or masked else config.log_info)
    if config.frame_skip > 1:
        environment = RepeatedAction(environment, config.frame_skip)
    if has_pictures(environment.observation_space):
        environment = Pictures(
            environment, size=config.screen_size, greyscale=config.greyscale, stack=config.frame_stack
        )
    if masked:
        environment = ActionMasks(environment, border, config)
    return CopyInProcess(environment) if in_child else environment


def _refuse_statistics(environment: gymnasium.Env, config: EnvironmentConfig) -> None:
    """Refuse running statistics: of the settings' wrappers, of those that the environment comes with, and its own.

    Each copy has its own, and none are saved: an evaluation would begin with others than those of training.
    """
    for layer in layers(environment):
        own = list(vars(layer).values())
        own += [part for value in own if isinstance(value, Mapping) for part in value.values()]
        own += [part for value in own if isinstance(value, list | tuple) for part in value]
        if any(isinstance(value, RunningMeanStd) for value in own):
            setting, value = ("wrappers", ",".join(config.wrappers)) if config.wrappers else ("id", config.id)
            raise setting_error(f"environment.{setting}", value, f"{type(layer).__name__} {UNSAVED}")


def layers(environment: Any) -> Iterator[Any]:
    """The wrappers of an environment, also those that are no `gymnasium.Wrapper`, and the environment itself."""
    while isinstance(environment, gymnasium.Env):
        yield environment
        environment = vars(environment).get("env")


def _creator(entry_point: Any) -> Any:
    return load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point


def _typed(options: Mapping[str, OptionValue], *takers: Any) -> dict[str, Any]:
    """Options in the types that the parameters of `takers` have, by their annotations and defaults."""
    parameters: dict[str, inspect.Parameter] = {}
    for taker in takers:
        with suppress(TypeError, ValueError):
            parameters |= inspect.signature(taker).parameters
    return {name: option_of_type(value, _types(parameters.get(name))) for name, value in options.items()}


def _types(parameter: inspect.Parameter | None) -> set[str]:
    if parameter is None:
        return set()
    given = set[str]() if parameter.default in (inspect.Parameter.empty, None) else {type(parameter.default).__name__}
    if parameter.annotation is inspect.Parameter.empty:
        return given
    return given | set(re.findall(r"\w+", str(parameter.annotation)))


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
    if isinstance(made, type) and issubclass(made, gymnasium.vector.VectorWrapper):
        problem = f"is a wrapper of vectors; those of single environments are in {module.removesuffix('.vector')}"
        raise setting_error("environment.wrappers", wrapper, problem)
    try:
        wrapped = made(environment, **_typed(options, made))
    except Exception as error:
        problem = f"cannot be made: {typed_line(error)}{place(error)}"
        raise setting_error("environment.wrappers", wrapper, problem) from error
    if not isinstance(wrapped, gymnasium.Env):
        raise setting_error("environment.wrappers", wrapper, f"gives {type(wrapped).__name__}, and no environment")
    return wrapped
