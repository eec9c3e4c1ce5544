"""Batches of environments that are stepped together, and facts about an environment, read from a copy."""

import difflib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from dataclasses import replace
from math import isfinite
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AsyncVectorEnv

from actors.environments.adapter import Adapter, EnvironmentSpec, NonFinite, StepResult
from actors.environments.atari import AtariAdapter, atari_game, register_games
from actors.environments.gymnasium import GymnasiumAdapter
from actors.environments.spaces import random_actions
from actors.environments.validation import FAULT, LOGGED, LOGGER, info_numbers
from shared.config import EnvironmentConfig
from shared.errors import ConfigurationError, EnvironmentFailedError, raised_at, setting_error, typed_line
from shared.registry import import_modules

_SKIPPING_OPTIONS = ("frameskip", "frame_skip")
_CLOSE_SECONDS = 5.0
_VERSION = re.compile(r"-v\d+$")
_GYMNASIUMS_EXTRA = re.compile(r'(?:`pip install swig` followed by )?`pip install "gymnasium\[(box2d|mujoco)\]"`')
# Vector steps of random play that show whether an environment keeps to its spaces.
_TRIAL_STEPS = 3


def adapter_of(config: EnvironmentConfig) -> Adapter:
    import_modules(config.modules)
    return GymnasiumAdapter(config) if atari_game(config.id) is None else AtariAdapter(config)


class VectorEnvironment:
    """`count` copies of an environment, stepped together; autoreset is NEXT_STEP. Rewards are not clipped here.

    `threads`: of ale-py's vector environment. Other environments step in the calling thread.
    """

    def __init__(self, config: EnvironmentConfig, count: int, threads: int = 1, adapter: Adapter | None = None) -> None:
        self.count = count
        self._id, self._log_info = config.id, config.log_info
        self._adapter = adapter_of(config) if adapter is None else adapter
        try:
            self._environment = self._adapter.make_vector(count, threads)
        except (ConfigurationError, gymnasium.error.UnregisteredEnv, KeyboardInterrupt):
            raise
        except BaseException as error:
            line = f"{config.id}: cannot be made: {_reason(error)}"
            raise EnvironmentFailedError(line) from error
        self._lives: npt.NDArray[np.int32] | None = None
        self._lost_life = np.zeros(count, bool)
        self.reset_non_finite: NonFinite | None = None
        """Numbers replaced in the observations of the last `reset`, see `StepResult`."""

    def spec(self) -> EnvironmentSpec:
        return self._adapter.spec(self._environment)

    def reset(self, seed: int | npt.NDArray[np.int64]) -> npt.NDArray[np.generic]:
        """Reset all environments, environment i with seed + i, or with entry i of seeds [B]. Returns [B, …].

        An environment's own vector environment takes one seed: the first.
        """
        raw, info = self._called(self._environment.reset, seed=self._adapter.seeds(seed))
        self._lives = self._adapter.lives(info)
        observations = self._adapter.observations(raw, None)
        self.reset_non_finite = self._replace_non_finite(observations)
        return observations

    def step(
        self, actions: npt.NDArray[np.generic], observations_to: npt.NDArray[np.generic] | None = None
    ) -> StepResult:
        """Take actions int32 [B(, C)], or float32 [B, D] in units of half the range, which are clipped to the bounds.

        Observations are written to `observations_to`, a contiguous array of their shape and dtype, or to a new one.
        Environments whose episode ended in the previous step ignore theirs and reset. An environment that raises an
        error, or returns values outside its spaces, is an `EnvironmentFailedError`.
        """
        observations, rewards, terminated, truncated, info = self._called(
            self._environment.step, self._adapter.actions(actions)
        )
        lives = self._adapter.lives(info)
        if lives is not None:
            assert self._lives is not None, "reset comes before the first step"
            self._lost_life = lives < self._lives
            self._lives = lives
        observations = self._adapter.observations(observations, observations_to)
        logged = self._logged(info, terminated | truncated) if self._log_info else {}
        non_finite = self._replace_non_finite(observations)
        rewards = rewards.astype(np.float64)
        return StepResult(observations, rewards, terminated, truncated, self._lost_life, logged, non_finite)

    def _replace_non_finite(self, observations: npt.NDArray[np.generic]) -> NonFinite | None:
        """Replace NaN and infinite numbers in observations by 0.

        Here, before a network sees them: in the state of a memory they would stay until the episode ends, and in a
        gradient also where the step is masked.
        """
        reader = self._adapter.reader
        numbers = None if reader is None else reader.numbers(observations)
        # The sum of squares is finite if all numbers are, unless it overflows: one pass without an allocation.
        if reader is None or numbers is None or isfinite(np.vdot(numbers, numbers)) or np.isfinite(numbers).all():
            return None
        faults = ~np.isfinite(numbers)
        first = np.argwhere(faults)[0]
        name = f"{reader.number_name(int(first[1]))} = {numbers[tuple(first)]}"
        numbers[faults] = 0.0
        return NonFinite(np.any(faults, axis=1, keepdims=True)[:, 0], name)

    def _called(self, method: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """The result of a method of the library's environment, whose errors are an `EnvironmentFailedError`."""
        try:
            result = method(*arguments, **keywords)
        except (EnvironmentFailedError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise EnvironmentFailedError(f"{self._id}: {method.__name__}(): {_reason(error)}") from error
        if FAULT in result[-1]:
            raise EnvironmentFailedError(next(fault for fault in result[-1][FAULT] if fault is not None))
        return result

    def _logged(self, info: dict[str, Any], ended: npt.NDArray[np.bool_]) -> dict[str, npt.NDArray[np.float64]]:
        if LOGGED in info:
            # Numbers of copies, which read them at the ends of their episodes.
            read = np.where(info[f"_{LOGGED}"][:, None], info[LOGGED], np.nan)
            return {name: read[:, i] for i, name in enumerate(self._log_info)}
        # ale-py and native vector environments give an array for each number.
        return {name: np.where(ended, info_numbers(info, name, self.count), np.nan) for name in self._log_info}

    @property
    def unwrapped(self) -> gymnasium.vector.VectorEnv:
        return self._environment.unwrapped

    def close(self) -> None:
        vector = self._environment
        try:
            # A copy that hangs in a step is not waited for.
            vector.close(**({"timeout": _CLOSE_SECONDS} if isinstance(vector, AsyncVectorEnv) else {}))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # Otherwise Gymnasium tries again when the object is deleted.
            vector.closed = True
            for process in vector.processes if isinstance(vector, AsyncVectorEnv) else ():
                process.terminate()
            LOGGER.warning("%s: close() raised %s%s", self._id, typed_line(error), raised_at(error))


def _reason(error: BaseException) -> str:
    # Gymnasium's end of a pipe to a copy; one of an environment has a place in its code.
    if isinstance(error, EOFError | ConnectionError) and not raised_at(error):
        return "the process of a copy died; its output has the reason"
    # Gymnasium's advice is for its own extras, and for their versions before there were wheels.
    return _GYMNASIUMS_EXTRA.sub(r"pip install 'tributary-rl[\1]'", f"{typed_line(error)}{raised_at(error)}")


def environment_spec(config: EnvironmentConfig, *, trial: bool = False) -> EnvironmentSpec:
    """Check an environment's settings by making one copy, and return the facts about it.

    With `trial` it also takes a few random steps, so that most faults are found before a worker starts. A setting that
    cannot work and an environment that fails are a `ConfigurationError`.
    """
    register_games()
    import_modules(config.modules)
    if config.registered_id not in gymnasium.registry:
        advice = _near(config.registered_id)
        if not config.modules:
            advice += "" if advice.endswith("?") else ";"
            advice += " or name the module that registers it: --environment.import MODULE"
        # Another module of the same name, such as Python's own `test` or `types`, comes first.
        files = [getattr(sys.modules.get(name), "__file__", None) or "a part of Python" for name in config.modules]
        advice += "".join(f"; {name} is {file}" for name, file in zip(config.modules, files, strict=True))
        raise setting_error("environment.id", config.id, f"no such environment; {advice}")
    skipping = [name for name in _SKIPPING_OPTIONS if name in config.options]
    if skipping and config.frame_skip > 1:
        value = f"{skipping[0]} {config.options[skipping[0]]}"
        problem = f"would skip frames twice with --environment.frame-skip {config.frame_skip}; set only the latter"
        raise setting_error("environment.options", value, problem)
    adapter_of(config).check()
    with _checked(config) as environments:
        spec = environments.spec()
        if not trial:
            return spec
        remark = _try(environments, spec)
        return spec if remark is None else replace(spec, notes=(*spec.notes, remark))


@contextmanager
def _checked(config: EnvironmentConfig) -> Iterator[VectorEnvironment]:
    """One environment to be looked at, whose failure is a mistake in the settings."""
    # Some environments change to a folder of theirs: relative paths of this command are still to be read.
    with chdir("."):
        try:
            environments = VectorEnvironment(config, 1)
            try:
                yield environments
            finally:
                environments.close()
        except EnvironmentFailedError as error:
            # It may name a setting of its own, such as the key of masks.
            if str(error).startswith("--"):
                raise ConfigurationError(str(error)) from error
            raise setting_error("environment.id", config.id, str(error).removeprefix(f"{config.id}: ")) from error


def _near(environment_id: str) -> str:
    """Advice for an unknown id. Namespace and version would make any two ids of games alike."""

    def bare(name: str) -> str:
        return _VERSION.sub("", name.rpartition("/")[2]).lower()

    # Gymnasium's older ids of games skip frames themselves, and are refused.
    ids = [
        name
        for name, spec in gymnasium.registry.items()
        if name.startswith("ALE/") or spec.entry_point != "ale_py.env:AtariEnv"
    ]
    # Where names are equal, the newest one without a namespace stays.
    names = {bare(name): name for name in sorted(ids, key=lambda name: ("/" not in name, name))}
    near = [names[match] for match in difflib.get_close_matches(bare(environment_id), names, cutoff=0.7)]
    return f"did you mean {', '.join(near)}?" if near else "see gymnasium.registry for the ids"


def _try(environments: VectorEnvironment, spec: EnvironmentSpec) -> str | None:
    """Play a few random steps. Returns a remark on an observation outside of its bounds."""
    generator = np.random.default_rng(0)
    batches = [environments.reset(0)]
    for _ in range(_TRIAL_STEPS):
        result = environments.step(random_actions(spec.actions, 1, generator, spec.split(batches[-1])[1]))
        batches.append(result.observations)
        if (result.terminated | result.truncated).any():
            break
    if spec.observation_bounds is None or spec.parts is not None:
        return None
    low, high = np.array(spec.observation_bounds, np.float32)
    observations = np.concatenate([spec.split(rows)[0] for rows in batches])
    outside = np.argwhere((observations < low) | (observations > high))
    if not outside.size:
        return None
    t, i = outside[0]
    return f"observation {i} is {observations[t, i]:g}, outside of its space's {low[i]:g} to {high[i]:g}"


# 800 agent steps of random play, of which every tenth observation is kept: 0.5 seconds of one core, where 400 in each
# of four environments took 1.3. The mean is 0.3 to 0.9 of 255 off that of 32,000 agent steps, where it was 0.2 to 0.6.
_STEPS, _STRIDE = 800, 10


def measure_observation_mean(config: EnvironmentConfig, seed: int) -> npt.NDArray[np.float32]:
    """The mean observation of random play, float32 of the shape of one observation, in the observations' unit.

    A game's image is mostly constant. Without centring, the constant part dominates the input of the hidden layer: on
    Pong with orthogonal weights 43 % of its units are dead and 45 % always on before training starts. With the mean
    subtracted, none are.
    """
    generator, observed = np.random.default_rng(seed), []
    with _checked(config) as environments:
        spec = environments.spec()
        observations, masks = spec.split(environments.reset(seed))
        for step in range(1, _STEPS + 1):
            result = environments.step(random_actions(spec.actions, 1, generator, masks))
            observations, masks = spec.split(result.observations)
            if step % _STRIDE == 0:
                observed.append(observations[0])
    return np.mean(observed, axis=0, dtype=np.float32)
