"""What differs from library to library: the interface of the adapters, and which of them is for which environment."""

from typing import Any, ClassVar, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt

from actors.environments.atari import AtariAdapter, atari_game
from actors.environments.gymnasium import GymnasiumAdapter
from actors.environments.spec import EnvironmentSpec
from shared.config import EnvironmentConfig
from shared.imports import import_modules


class Adapter(Protocol):
    """One environment's settings in the words of the library that plays it. It holds no environment."""

    protocols: ClassVar[dict[str, dict[str, Any]]]
    """By name, the published rules that a score can be made by: which fields of the settings they change."""

    def check(self) -> None:
        """Refuse settings that this library does not have, or that would skip frames twice.

        Raises:
            ConfigurationError: there is such a setting.
        """

    def make_vector(self, count: int, threads: int = 1) -> gymnasium.vector.VectorEnv:
        """The library's vector environment of `count` copies, whose autoreset is NEXT_STEP. Comes before what reads it.

        Raises:
            ConfigurationError: its actions or observations are of a kind that cannot be played.
        """
        ...

    def spec(self, vector: gymnasium.vector.VectorEnv) -> EnvironmentSpec:
        """Describe one copy of an environment that `make_vector` made."""
        ...

    def seeds(self, seed: int | npt.NDArray[np.int64]) -> Any:
        """One seed, or one for each environment [B], as the library's `reset` takes them."""
        ...

    def actions(self, actions: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """Actions [B, …] as the library takes them, from those of an `ActionSpec`."""
        ...

    def observations(self, observations: Any, to: npt.NDArray[np.generic] | None) -> npt.NDArray[np.generic]:
        """The library's observations in the shape and dtype of the spec: written to `to` if given, else a copy."""
        ...

    def lives(self, info: dict[str, Any]) -> npt.NDArray[np.int32] | None:
        """Lives that are left after a reset or a step, [B], from its info; None where there are no lives."""
        ...

    def observation_meaning(self, spec: EnvironmentSpec) -> str:
        """One line for who feeds observations to an exported network."""
        ...

    def training_protocol(self) -> dict[str, Any]:
        """For a run's manifest: the settings of the environment that count for this library."""
        ...

    def score_protocol(self, spec: EnvironmentSpec) -> dict[str, Any]:
        """For an evaluation: everything of the environment that a score depends on."""
        ...


def adapter_of(config: EnvironmentConfig) -> Adapter:
    """The adapter of an environment that is registered, or registered by a module that the settings name.

    Raises:
        ConfigurationError: such a module cannot be imported.
    """
    import_modules(config.modules)
    return GymnasiumAdapter(config) if atari_game(config.id) is None else AtariAdapter(config)
