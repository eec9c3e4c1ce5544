"""Batches of environments that are stepped together, and facts about an environment that take one to be made."""

import difflib
from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from actors.environments.adapter import Adapter, EnvironmentSpec, StepResult
from actors.environments.atari import AtariAdapter, atari_game, register_games
from actors.environments.gymnasium import GymnasiumAdapter
from actors.environments.spaces import random_actions
from shared.config import EnvironmentConfig
from shared.errors import ConfigurationError, one_line, setting_error
from shared.registry import import_modules

_SKIPPING_OPTIONS = ("frameskip", "frame_skip")


def adapter_of(config: EnvironmentConfig) -> Adapter:
    """The adapter of an environment; imports the modules of the settings.

    Raises:
        ConfigurationError: a module cannot be imported.
    """
    import_modules(config.modules)
    return GymnasiumAdapter(config) if atari_game(config.id) is None else AtariAdapter(config)


class VectorEnvironment:
    """`count` copies of an environment, stepped together; autoreset is NEXT_STEP.

    Args:
        config: the environment and its protocol. Rewards are not clipped here.
        count: B.
        threads: of ale-py's vector environment. Other environments step in the calling thread.
        adapter: to its library, if not the usual one.
    """

    def __init__(self, config: EnvironmentConfig, count: int, threads: int = 1, adapter: Adapter | None = None) -> None:
        self.count = count
        self._adapter = adapter_of(config) if adapter is None else adapter
        self._environment = self._adapter.make_vector(count, threads)
        self._logged = config.log_info
        self._lives: npt.NDArray[np.int32] | None = None
        self._lost_life = np.zeros(count, bool)

    def spec(self) -> EnvironmentSpec:
        """Facts about one environment."""
        return self._adapter.spec(self._environment)

    def reset(self, seed: int | npt.NDArray[np.int64]) -> npt.NDArray[np.generic]:
        """Reset all environments, environment i with seed + i, or with entry i of seeds [B]. Returns [B, …]."""
        observations, info = self._environment.reset(seed=self._adapter.seeds(seed))
        self._lives = self._adapter.lives(info)
        return self._adapter.observations(observations, None)

    def step(
        self, actions: npt.NDArray[np.generic], observations_to: npt.NDArray[np.generic] | None = None
    ) -> StepResult:
        """Take actions int32 [B(, C)], or float32 [B, D] in units of half the range, which are clipped to the bounds.

        Observations are written to `observations_to`, a contiguous array of their shape and dtype, or to a new one.
        Environments whose episode ended in the previous step ignore theirs and reset.
        """
        observations, rewards, terminated, truncated, info = self._environment.step(self._adapter.actions(actions))
        lives = self._adapter.lives(info)
        if lives is not None:
            assert self._lives is not None, "reset comes before the first step"
            self._lost_life = lives < self._lives
            self._lives = lives
        observations = self._adapter.observations(observations, observations_to)
        logged = {name: _numbers(info, name, self.count) for name in self._logged}
        return StepResult(observations, rewards.astype(np.float32), terminated, truncated, self._lost_life, logged)

    @property
    def unwrapped(self) -> gymnasium.vector.VectorEnv:
        """The library's vector environment, with observations in the library's layout."""
        return self._environment

    def close(self) -> None:
        """Release the environments."""
        self._environment.close()


def _numbers(info: dict[str, Any], name: str, count: int) -> npt.NDArray[np.float64]:
    """A number from each environment's info, float64 [B]; NaN if there is none."""
    given = info.get(f"_{name}", np.full(count, name in info))
    numbers = np.full(count, np.nan)
    for i in np.flatnonzero(given):
        with suppress(TypeError, ValueError):
            numbers[i] = float(info[name][i])
    return numbers


def environment_spec(config: EnvironmentConfig) -> EnvironmentSpec:
    """Check an environment's settings by making one copy, and return the facts about it.

    Raises:
        ConfigurationError: the id is not registered, a module cannot be imported, the kind of actions or observations
            is not supported, or frames would be skipped twice.
    """
    register_games()
    import_modules(config.modules)
    name = config.registered_id
    if name not in gymnasium.registry:
        # Gymnasium's older ids of games skip frames themselves, and are refused.
        known = [
            known
            for known, spec in gymnasium.registry.items()
            if known.startswith("ALE/") or spec.entry_point != "ale_py.env:AtariEnv"
        ]
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        near += difflib.get_close_matches(f"ALE/{name}-v5", known, n=1, cutoff=0.6)
        advice = f"did you mean {', '.join(dict.fromkeys(near))}?" if near else "see gymnasium.registry for the ids"
        if not config.modules:
            advice += "; or name the module that registers it: --environment.import MODULE"
        raise setting_error("environment.id", config.id, f"no such environment; {advice}")
    skipping = [name for name in _SKIPPING_OPTIONS if name in config.options]
    if skipping and config.frame_skip > 1:
        raise setting_error(
            "environment.options",
            f"{skipping[0]} {config.options[skipping[0]]}",
            f"would skip frames twice with --environment.frame-skip {config.frame_skip}; set only the latter",
        )
    adapter_of(config).check()
    try:
        environments = VectorEnvironment(config, 1)
    except ConfigurationError:
        raise
    except Exception as error:
        raise setting_error("environment.id", config.id, f"cannot be made: {one_line(error)}") from error
    try:
        return environments.spec()
    finally:
        environments.close()


# 6,400 agent steps of random play, of which every tenth observation is kept: two seconds.
_ENVIRONMENTS, _STEPS, _STRIDE = 16, 400, 10


def measure_observation_mean(config: EnvironmentConfig, seed: int, threads: int = 1) -> npt.NDArray[np.float32]:
    """The mean observation of random play, float32 of the shape of one observation, in the observations' unit.

    A game's picture is mostly constant. Without centring, the constant part dominates the input of the hidden layer: on
    Pong with orthogonal weights 43 % of its units are dead and 45 % always on before training starts. With the mean
    subtracted, none are.
    """
    environments = VectorEnvironment(config, _ENVIRONMENTS, threads)
    generator = np.random.default_rng(seed)
    actions = environments.spec().actions
    environments.reset(seed)
    kept = []
    for step in range(1, _STEPS + 1):
        result = environments.step(random_actions(actions, _ENVIRONMENTS, generator))
        if step % _STRIDE == 0:
            kept.append(result.observations.mean(axis=0))
    environments.close()
    return np.mean(kept, axis=0, dtype=np.float32)
