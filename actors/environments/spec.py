"""What is said of an environment, whichever library plays it: facts for networks and readers, and one step's result."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shared.observations import ObservationParts
from shared.types import ActionSpec


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
