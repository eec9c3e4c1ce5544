"""The interface to the library that plays an environment: facts about the environment, one step, and the adapter."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt

from actors.environments.spaces import Observations
from shared.config import EnvironmentConfig
from shared.types import ActionSpec, ObservationParts


@dataclass(frozen=True)
class EnvironmentSpec:
    observation_shape: tuple[int, ...]
    """Shape of one observation: [height, width, stack] of an image, [size] of a vector, [bytes] of `parts`."""
    observation_dtype: str
    """uint8 if there are images, else float32."""
    actions: ActionSpec
    action_set: tuple[str, ...]
    """Names of the actions in the library, else numbers from 0."""
    images: bool
    """True if observations contain images, channels last; else they are vectors."""
    observation_bounds: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """Lowest and highest values of a vector, ±inf without a bound. None without a vector."""
    parts: ObservationParts | None = None
    """Layout of observations with several images, or images and numbers. None: they are one array."""
    numbers: tuple[tuple[str, int], ...] = ()
    """Names and sizes of the parts of a vector, in its order. Empty without a vector."""
    left_out: tuple[str, ...] = ()
    """Names of the text parts of an observation, which networks do not read."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """Remarks for the user on ambiguous spaces."""
    action_space: dict[str, Any] = field(default_factory=dict, compare=False)
    """The environment's space of actions for descriptions, see `Actions.description`."""
    masked: bool = False
    """True if each observation has a mask of the allowed actions, see `row_shape`."""
    observation_mean: npt.NDArray[np.float32] | None = field(default=None, compare=False)
    """Mean that images are centred on, float32 of `observation_shape`; see `measure_observation_mean`."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one observation in rollouts: `observation_shape`, or, with masks, a row that ends in the mask."""
        if not self.masked:
            return self.observation_shape
        return (math.prod(self.observation_shape) + self.actions.size,)

    def split(self, rows: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Any]:
        """Views of the observations [..., *observation_shape] in rows, and of their masks [..., A]; None without."""
        if not self.masked:
            return rows, None
        observations, masks = rows[..., : -self.actions.size], rows[..., -self.actions.size :]
        return observations.reshape(*rows.shape[:-1], *self.observation_shape), masks

    @property
    def image_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shape of each image of an observation: [height, width, channels]."""
        if self.parts is not None:
            return tuple(image.shape for image in self.parts.images)
        return (self.observation_shape,) if self.images else ()


class NonFinite(NamedTuple):
    """Which observations of a batch, bool [B], had NaN or infinite numbers, and the name of the first such number."""

    environments: npt.NDArray[np.bool_]
    number: str


class StepResult(NamedTuple):
    """One vector step: observations [B, …], unclipped rewards float64 [B], and three bool [B].

    `lost_life` marks environments that lost a life in this step, whether or not the episode ended. `info` has the
    numbers of `log_info` by name, float64 [B], where an episode ended; NaN elsewhere, or where there was none. Numbers
    of observations are always finite: others are replaced by 0, and `non_finite` names them.
    """

    observations: npt.NDArray[np.generic]
    rewards: npt.NDArray[np.float64]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    lost_life: npt.NDArray[np.bool_]
    info: dict[str, npt.NDArray[np.float64]] = {}  # noqa: RUF012
    non_finite: NonFinite | None = None


class Adapter(ABC):
    """The settings of an environment, translated for the library that plays it."""

    protocols: ClassVar[dict[str, dict[str, Any]]] = {}
    """Published evaluation protocols by name: the settings that each changes."""
    reader: Observations | None = None
    """Reads observations of Gymnasium's spaces, after `make_vector`; None for games."""

    def __init__(self, config: EnvironmentConfig) -> None:
        self._config = config

    @abstractmethod
    def check(self) -> None:
        """Raise a `ConfigurationError` for a setting that the library does not have, or frames skipped twice."""

    @abstractmethod
    def make_vector(self, count: int, threads: int = 1) -> gymnasium.vector.VectorEnv:
        """A vector environment of `count` copies, with autoreset NEXT_STEP. Call it before the other methods."""

    @abstractmethod
    def make_single(self, render_mode: str | None = None) -> gymnasium.Env:
        """One copy with the observations of `make_vector`, in the interface of `gymnasium.make`, without autoreset."""

    @abstractmethod
    def spec(self, vector: gymnasium.vector.VectorEnv) -> EnvironmentSpec:
        """Facts about one copy of an environment of `make_vector`."""

    def seeds(self, seed: int | npt.NDArray[np.int64]) -> Any:
        """One seed, or one per environment [B], in the form of the library's `reset`."""
        return seed

    def actions(self, actions: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """Actions [B, …] in the form of the library, from the form of an `ActionSpec`."""
        return actions

    @abstractmethod
    def observations(self, observations: Any, to: npt.NDArray[Any] | None) -> npt.NDArray[np.generic]:
        """The library's observations [B, *row_shape] in the dtype of the spec, written to `to` or copied."""

    def lives(self, info: dict[str, Any]) -> npt.NDArray[np.int32] | None:  # noqa: ARG002
        """Remaining lives after a reset or a step, [B], from its info; None for environments without lives."""
        return None

    @abstractmethod
    def observation_meaning(self, spec: EnvironmentSpec) -> str:
        """Description of the input of an exported network, in one line."""

    @abstractmethod
    def training_protocol(self) -> dict[str, Any]:
        """The environment's settings in a run's manifest."""

    @abstractmethod
    def score_protocol(self, spec: EnvironmentSpec) -> dict[str, Any]:
        """Everything in the environment that a score depends on, for an evaluation's result."""
