"""Any registered environment that is no Atari game, played by Gymnasium."""

import difflib
import importlib
import inspect
import multiprocessing
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
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
from actors.environments.images import ImagePreprocessing, has_images
from actors.environments.spaces import Actions, Observations
from actors.environments.validation import CopyInProcess, ValidatedEnvironment, ValidatedVectorEnvironment
from shared.config import EnvironmentConfig, OptionValue
from shared.config.task import STICKY, option_of_type, read_wrapper
from shared.errors import ConfigurationError, raised_at, setting_error, typed_line
from shared.registry import import_modules

_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class GymnasiumAdapter(Adapter):
    """The adapter of Gymnasium's vector environments. `render_mode`: see `gymnasium.make`."""

    def __init__(self, config: EnvironmentConfig, render_mode: str | None = None) -> None:
        super().__init__(config)
        self._render_mode = render_mode
        # The attributes below describe the vector environment that was made last.
        self._count: int
        self._spec: EnvironmentSpec
        self._actions: Actions
        self.reader: Observations

    def check(self) -> None:
        config = self._config
        if config.sticky_action_probability:
            name = "environment.sticky_action_probability"
            raise STICKY.refused(name, config.sticky_action_probability, config.id)
        if config.action_mask is not None and config.frame_skip > 1:
            problem = f"--environment.frame-skip {config.frame_skip} would repeat actions that are not allowed any more"
            raise setting_error("environment.action_mask", config.action_mask, f"{problem}; set it to 1")
        if config.vectorization == "native":
            instead = "or use --environment.vectorization sync"
            if config.frame_skip > 1:
                problem = f"{config.id} repeats no actions in its own vector environment; set it to 1, {instead}"
                raise setting_error("environment.frame_skip", config.frame_skip, problem)
            if config.wrappers:
                problem = f"are of single copies, and {config.id} is one vector; leave them out, {instead}"
                raise setting_error("environment.wrappers", ",".join(config.wrappers), problem)

    def make_vector(self, count: int, threads: int = 1) -> gymnasium.vector.VectorEnv:  # noqa: ARG002
        config = self._config
        # A single copy renders, where there is one.
        renders = self._render_mode is not None and gymnasium.spec(config.registered_id).entry_point is not None
        if config.vectorization == "native" and not renders:
            vector = native_vector(config, count, self._render_mode)
        else:
            vector = vectorize(config, count, self._render_mode)
        space, masked = vector.single_observation_space, config.action_mask is not None
        try:
            actions = self._actions = Actions(vector.single_action_space)
            reader = self.reader = Observations(cast(Tuple, space).spaces[0] if masked else space)
        except ValueError as error:
            vector.close()
            raise setting_error("environment.id", config.id, str(error)) from error
        self._count = count
        self._spec = EnvironmentSpec(
            observation_shape=reader.shape,
            observation_dtype=reader.dtype,
            actions=actions.spec,
            action_set=actions.names,
            images=reader.dtype == "uint8",
            observation_bounds=reader.bounds and (tuple(reader.bounds[0].tolist()), tuple(reader.bounds[1].tolist())),
            parts=reader.parts,
            numbers=reader.sizes,
            left_out=tuple(reader.left_out),
            action_space=actions.description(),
            masked=masked,
            notes=tuple(reader.notes),
        )
        return vector

    def make_single(self, render_mode: str | None = None) -> gymnasium.Env:
        return make_env(self._config, render_mode, with_info=True)

    def spec(self, vector: gymnasium.vector.VectorEnv) -> EnvironmentSpec:  # noqa: ARG002
        return self._spec

    def seeds(self, seed: int | npt.NDArray[np.int64]) -> Any:
        if self._config.vectorization == "native":
            return int(np.ravel(seed)[0])
        # Environments accept Python integers only.
        return seed if isinstance(seed, int) else seed.tolist()

    def actions(self, actions: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        return self._actions.of_space(actions)

    def observations(self, observations: Any, to: npt.NDArray[Any] | None) -> npt.NDArray[np.generic]:
        if to is None:
            to = np.empty((self._count, *self._spec.row_shape), self._spec.observation_dtype)
        if not self._spec.masked:
            self.reader.write(observations, to)
            return to
        without_masks, masks = self._spec.split(to)
        self.reader.write(observations[0], without_masks)
        masks[...] = observations[1]
        return to

    def observation_meaning(self, spec: EnvironmentSpec) -> str:
        config = self._config
        if not spec.images:
            return f"observations of {config.id}: all their numbers side by side in their order, choices one-hot"
        if spec.parts is None:
            return f"[batch, height, width, stack x channels]: images of {config.id}, {self._image_description()}"
        numbers = ", ".join(f"{name} ({count})" for name, count in spec.parts.numbers)
        vector = f"; vector: {numbers} side by side, choices one-hot" if numbers else ""
        return f"observations of {config.id}: images {self._image_description()}{vector}"

    def training_protocol(self) -> dict[str, Any]:
        config = self._config
        rules: dict[str, Any] = {"options": config.options}
        if config.wrappers:
            rules["wrappers"] = list(config.wrappers)
        return rules if config.action_mask is None else rules | {"action_mask": config.action_mask}

    def score_protocol(self, spec: EnvironmentSpec) -> dict[str, Any]:
        score = {"frames_per_agent_step": self._config.frame_skip, **self.training_protocol()}
        return {**score, "images": self._image_description()} if spec.images else score

    def _image_description(self) -> str:
        config, size = self._config, self._config.screen_size
        colours = "three colours in grey" if config.greyscale else "in their colours"
        resized = "in their size" if size is None else f"resized to {size} x {size}"
        return f"{colours}, {resized}; the newest of {config.frame_stack} is last"


def vectorize(config: EnvironmentConfig, count: int, render_mode: str | None = None) -> gymnasium.vector.VectorEnv:
    """`count` copies of an environment, stepped in turn or in processes. The adapter copies their observations."""
    copies, mode = [partial(make_env, config, render_mode)] * count, AutoresetMode.NEXT_STEP
    if config.vectorization != "async":
        with ExitStack() as undo:
            # Copies that were made before one that cannot be.
            closed_again = [lambda: undo.enter_context(make_env(config, render_mode))] * count
            vector = SyncVectorEnv(closed_again, autoreset_mode=mode, copy=False)
            if len({id(environment.unwrapped) for environment in vector.envs}) < count:
                problem = "gives one object for several copies; its constructor has to make a new one each time"
                raise setting_error("environment.id", config.id, problem)
            undo.pop_all()
        return vector
    # A fork server: its processes have no copy of TensorFlow's threads nor of other processes' pipes, and end with this
    # process.
    start = partial(AsyncVectorEnv, copies, context="forkserver", autoreset_mode=mode, copy=False)
    with _clean_children():
        try:
            return start()
        except (TypeError, ValueError) as error:
            # A TypeError: custom spaces, and spaces of dynamic shape, cannot be put into shared memory.
            if isinstance(error, ValueError) and not isinstance(error.__cause__, gymnasium.error.CustomSpaceError):
                raise
            return start(shared_memory=False)


def native_vector(config: EnvironmentConfig, count: int, render_mode: str | None = None) -> gymnasium.vector.VectorEnv:
    """The vector environment of `count` copies that an environment is registered with, in a
    `ValidatedVectorEnvironment`."""
    import_modules(config.modules)
    spec = gymnasium.spec(config.registered_id)
    if spec.vector_entry_point is None:
        raise _not_native(config, "it is registered without a vector_entry_point")
    creator = _creator(spec.vector_entry_point)
    options = _typed("environment.options", config.options, creator)
    if render_mode is not None:
        options["render_mode"] = render_mode
        _draw_without_display()
    try:
        with warnings.catch_warnings():
            # A missing mode is refused below.
            warnings.filterwarnings("ignore", ".*AutoresetMode")
            vector = gymnasium.make_vec(spec, count, "vector_entry_point", **options)
    except TypeError as error:
        match, limit = _UNEXPECTED.search(str(error)), spec.max_episode_steps
        if match and match[1] == "max_episode_steps" and limit is not None:
            raise _not_native(config, f"it takes no max_episode_steps, and the id has {limit}") from error
        _refuse_argument(error, config, creator, render_mode)
        raise
    with ExitStack() as undo:
        undo.callback(vector.close)
        _refuse_unfit(vector, config, count)
        undo.pop_all()
    return ValidatedVectorEnvironment(vector, config)


def _refuse_unfit(vector: gymnasium.vector.VectorEnv, config: EnvironmentConfig, count: int) -> None:
    mode = vector.metadata.get("autoreset_mode")
    problem = ""
    if mode != AutoresetMode.NEXT_STEP:
        mode_name = mode.value if isinstance(mode, AutoresetMode) else mode
        problem = f"the autoreset_mode of its metadata is {mode_name}, where AutoresetMode.NEXT_STEP is expected"
    elif vector.num_envs != count:
        problem = f"it has {vector.num_envs} copies, where an actor asked for {count}"
    elif has_images(vector.single_observation_space):
        problem = "its images would be neither resized nor stacked"
    if problem:
        raise _not_native(config, problem)
    _refuse_statistics(vector, config)


def _not_native(config: EnvironmentConfig, problem: str) -> ConfigurationError:
    problem = f"{config.id} cannot be stepped by a vector environment of its own: {problem}; use sync"
    return setting_error("environment.vectorization", "native", problem)


def _creator(entry_point: Any) -> Any:
    return load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point


@contextmanager
def _clean_children() -> Iterator[None]:
    """Keep new processes from running this process's main module again, which in Ray's workers would import Ray.

    And Python's tracker of semaphores from printing a warning when this process is killed.
    """
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {name: vars(main).pop(name) for name in ("__file__", "__spec__") if name in vars(main)}
    main.__spec__ = None
    filters = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (filters, "ignore:resource_tracker")))
    try:
        yield
    finally:
        vars(main).update(hidden)
        os.environ.pop("PYTHONWARNINGS", None)
        if filters is not None:
            os.environ["PYTHONWARNINGS"] = filters


def make_env(config: EnvironmentConfig, render_mode: str | None = None, *, with_info: bool = False) -> gymnasium.Env:
    """One copy of an environment, in this process or that of an asynchronous vector environment, in a
    `ValidatedEnvironment`."""
    in_child = config.vectorization == "async" and multiprocessing.parent_process() is not None
    if in_child:
        # Ctrl-C and a closed terminal signal this process too, but its parent ends it when its work is done.
        for kind in (signal.SIGINT, signal.SIGHUP):
            signal.signal(kind, signal.SIG_IGN)
    import_modules(config.modules)
    spec = gymnasium.spec(config.registered_id)
    if spec.entry_point is None:
        advice = "it has no single environment" if config.vectorization == "native" else "use native"
        problem = f"{config.id} is registered with a vector_entry_point only; {advice}"
        raise setting_error("environment.vectorization", config.vectorization, problem)
    creator = _creator(spec.entry_point)
    options = _typed("environment.options", config.options, gymnasium.make, creator)
    if render_mode is not None:
        options["render_mode"] = render_mode
        if render_mode != "human":
            _draw_without_display()
    # Validation checks more than Gymnasium's checker, at every step; and all callers here reset before they step.
    spec = replace(spec, order_enforce=False)
    try:
        with warnings.catch_warnings():
            # A mode that the metadata lacks: many environments draw in it, and an error says so of the others.
            warnings.filterwarnings("ignore", ".*initialised with render_mode")
            environment = gymnasium.make(spec, **{"disable_env_checker": True, **options})
    except TypeError as error:
        _refuse_argument(error, config, creator, render_mode)
        raise
    for wrapper in config.wrappers:
        environment = _wrapped(environment, wrapper)
    _refuse_statistics(environment, config)
    environment = ValidatedEnvironment(environment, config, with_info=with_info)
    if config.frame_skip > 1:
        environment = RepeatedAction(environment, config.frame_skip)
    if has_images(environment.observation_space):
        environment = ImagePreprocessing(
            environment, size=config.screen_size, greyscale=config.greyscale, stack=config.frame_stack
        )
    return CopyInProcess(environment) if in_child else environment


def _refuse_statistics(environment: Any, config: EnvironmentConfig) -> None:
    """Refuse running statistics: of the settings' wrappers, of the environment's own wrappers, and of the environment.

    Each copy has statistics of its own, and none are saved: an evaluation would begin with other statistics than
    training's.
    """
    for layer in _layers(environment):
        values = list(vars(layer).values())
        values += [part for value in values if isinstance(value, Mapping) for part in value.values()]
        values += [part for value in values if isinstance(value, list | tuple) for part in value]
        if any(isinstance(value, RunningMeanStd) for value in values):
            setting, value = ("wrappers", ",".join(config.wrappers)) if config.wrappers else ("id", config.id)
            raise setting_error(
                f"environment.{setting}",
                value,
                f"{type(layer).__name__} has running statistics, which differ between copies and are not saved; "
                f"--network.observation-scaling running and --environment.normalise-rewards have statistics of all "
                f"training, which are saved",
            )


def _layers(environment: Any) -> Iterator[Any]:
    """The wrappers of an environment, `gymnasium.Wrapper` or not, and the environment itself."""
    while isinstance(environment, gymnasium.Env | gymnasium.vector.VectorEnv):
        yield environment
        environment = vars(environment).get("env")


def _typed(setting: str, options: Mapping[str, OptionValue], *takers: Any) -> dict[str, Any]:
    """Options in the types that the parameters of `takers` have, by their annotations and defaults.

    A ConfigurationError of `setting` for a value of another kind where an annotation has only numbers or truth values.
    """
    parameters, typed = _parameters(*takers), {}
    for name, value in options.items():
        parameter = parameters.get(name)
        types = _types(parameter)
        typed[name] = option_of_type(value, types)
        annotated = parameter is not None and parameter.annotation is not inspect.Parameter.empty
        expected = types & {"int", "float", "bool"}
        # An annotation that is a class is written <class 'int'>.
        only = annotated and expected and types <= {*expected, "None", "class"}
        if only and typed[name] is not None and not any(_is_a(kind, typed[name]) for kind in expected):
            raise setting_error(setting, f"{name} {value}", f"is no {' or '.join(sorted(expected))}")
    return typed


def _is_a(kind: str, value: Any) -> bool:
    if isinstance(value, str):
        return False
    return {"bool": value in (0, 1), "int": value == value // 1, "float": True}[kind]


def _parameters(*takers: Any) -> dict[str, inspect.Parameter]:
    parameters: dict[str, inspect.Parameter] = {}
    for taker in takers:
        with suppress(TypeError, ValueError):
            parameters |= inspect.signature(taker).parameters
    return parameters


def _types(parameter: inspect.Parameter | None) -> set[str]:
    if parameter is None:
        return set()
    default = parameter.default
    names = set[str]() if default is None or default is inspect.Parameter.empty else {type(default).__name__}
    if parameter.annotation is inspect.Parameter.empty:
        return names
    return names | set(re.findall(r"\w+", str(parameter.annotation)))


def _refuse_argument(error: TypeError, config: EnvironmentConfig, creator: Any, render_mode: str | None) -> None:
    """Refuse an option, or the `render_mode`, that is no parameter of an environment; nothing for other errors.

    By the message of the call: an environment with `**kwargs` may pass them on to a class that takes fewer.
    """
    if match := _UNEXPECTED.search(str(error)):
        name = match[1]
    elif str(error).startswith(f"{getattr(creator, '__name__', '')}() takes no arguments"):
        # A class without a constructor of its own.
        name = next(iter(config.options), "render_mode")
    else:
        return
    if name == "render_mode" and render_mode is not None:
        remedy = f"add render_mode to its constructor, and {render_mode} to the render_modes of its metadata"
        problem = f"takes no render_mode, by which it would draw; {remedy}"
        raise setting_error("environment.id", config.id, problem) from error
    if name not in config.options:
        return
    parameters = _parameters(creator)
    options = [other for other, each in parameters.items() if each.kind not in _VARIADIC and other != "render_mode"]
    if near := difflib.get_close_matches(name, options, n=1):
        advice = f"did you mean {near[0]}?"
    else:
        advice = f"it takes {', '.join(options)}" if options else "leave it out"
    value = f"{name} {config.options[name]}"
    raise setting_error("environment.options", value, f"{config.id} takes no such option; {advice}") from error


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
    wrapper_class = getattr(importlib.import_module(module), name, None)
    if not callable(wrapper_class):
        raise setting_error("environment.wrappers", wrapper, f"{module} has no {name}")
    if isinstance(wrapper_class, type) and issubclass(wrapper_class, gymnasium.vector.VectorWrapper):
        problem = f"is a wrapper of vectors; those of single environments are in {module.removesuffix('.vector')}"
        raise setting_error("environment.wrappers", wrapper, problem)
    typed = _typed("environment.wrappers", options, wrapper_class)
    try:
        wrapped = wrapper_class(environment, **typed)
    except Exception as error:
        problem = f"cannot be made: {typed_line(error)}{raised_at(error)}"
        raise setting_error("environment.wrappers", wrapper, problem) from error
    if not isinstance(wrapped, gymnasium.Env):
        raise setting_error("environment.wrappers", wrapper, f"gives {type(wrapped).__name__}, and no environment")
    return wrapped
