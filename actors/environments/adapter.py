"""The interface to the library that plays an environment: facts about the environment, one step, and the adapter."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt

from shared.types import ActionSpec, ObservationParts


@dataclass(frozen=True)
class EnvironmentSpec:
    """Facts about one environment that a network or a reader must know."""

    observation_shape: tuple[int, ...]
    """Shape of one observation: [height, width, stack] of an image, [size] of a vector, [bytes] of `parts`."""
    observation_dtype: str
    """uint8 where there are images, float32 of vectors."""
    actions: ActionSpec
    action_set: tuple[str, ...]
    """Names of the actions: as the library calls them, else their numbers."""
    images: bool
    """Whether there are images in observations, channels last; else they are vectors."""
    has_lives: bool
    """Whether an episode has lives that can be lost before it ends."""
    frames_per_agent_step: int
    observation_bounds: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """Lowest and highest values of a vector, ±inf where there is no bound. None where there is no vector."""
    parts: ObservationParts | None = None
    """What lies where in observations that have several images, or images and numbers. None: they are one array."""
    left_out: tuple[str, ...] = ()
    """Names of the parts of an observation that are text, which no network here reads."""
    observation_mean: npt.NDArray[np.float32] | None = field(default=None, compare=False)
    """What to centre images on, float32 of `observation_shape`; see `measure_observation_mean`."""

    @property
    def image_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of each image of an observation: [height, width, channels]."""
        if self.parts is not None:
            return tuple(image.shape for image in self.parts.images)
        return (self.observation_shape,) if self.images else ()


class StepResult(NamedTuple):
    """One vector step: observations [B, …], unclipped rewards float32 [B], and three bool [B].

    `lost_life` marks environments that lost a life in this step, whether or not the episode ended. `info` has the
    numbers that the settings ask for by name, float64 [B], NaN where an environment gave none.
    """

    observations: npt.NDArray[np.generic]
    rewards: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    lost_life: npt.NDArray[np.bool_]
    info: dict[str, npt.NDArray[np.float64]] = {}  # noqa: RUF012


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
