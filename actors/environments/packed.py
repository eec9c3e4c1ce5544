"""Observations of images and numbers together, or of several images, as one row of bytes each."""

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from actors.environments.pictures import channels_together, shape_together
from actors.environments.vectors import Path, Vectors, found_at, path_name
from shared.observations import ImagePart, ObservationParts


class PackedObservations:
    """Writes observations with images in them as `ObservationParts` says that they lie.

    Attributes:
        parts: where everything lies.

    Args:
        vectors: of a space with images in it.
    """

    def __init__(self, vectors: Vectors) -> None:
        self._vectors = vectors
        self._paths = [path for path, _ in vectors.images]
        shapes = [shape_together(space.shape) for _, space in vectors.images]
        names = _distinct([f"image_{_identifier(path)}" for path in self._paths])
        self.parts = ObservationParts(vectors.sizes, tuple(map(ImagePart, names, shapes)))

    def write(self, observations: Any, to: npt.NDArray[np.uint8]) -> None:
        """Write a batch of observations, as a vector environment gives them, to uint8 [B, R]."""
        self._vectors.write(observations, self.parts.vectors(to))
        for path, (image, where) in zip(self._paths, self.parts.image_bytes(), strict=True):
            # Views: of the bytes of one row after another, each split into its axes.
            channels_together(found_at(path, observations), to[:, where].reshape(-1, *image.shape))


def _identifier(path: Path) -> str:
    return re.sub(r"\W", "_", path_name(path))


def _distinct(names: list[str]) -> list[str]:
    """The same names, those that come again with a number."""
    return [f"{name}_{i}" if name in names[:i] else name for i, name in enumerate(names)]
