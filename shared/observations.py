"""How images and numbers that are seen together lie in one array."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shared.types import Float32Array


class ImagePart(NamedTuple):
    """An image of an observation: its name as an input of an exported network, and [height, width, channels]."""

    name: str
    shape: tuple[int, int, int]


class ObservationParts(NamedTuple):
    """The parts of an observation that has images beside numbers, and where each lies in it: a row of bytes, uint8 [R].

    First all numbers as one vector, float32 in this machine's byte order, then each image, uint8. So an observation is
    one array of one dtype, whatever it is of: rollouts, buffers and minibatches treat all alike, and images do not take
    four times their memory. A network takes the row apart (`shared.multi_input`): the float32 are the same bits again.

    `numbers` are what the vector is made of, by name, with how many each has. `images` has one entry or more.
    """

    numbers: tuple[tuple[str, int], ...]
    images: tuple[ImagePart, ...]

    @property
    def vector_size(self) -> int:
        """How many numbers there are."""
        return sum(count for _, count in self.numbers)

    @property
    def row_size(self) -> int:
        """R, the bytes of one observation."""
        return self.vector_bytes.stop + sum(int(np.prod(image.shape)) for image in self.images)

    @property
    def vector_bytes(self) -> slice:
        """Where the vector lies in a row."""
        return slice(0, 4 * self.vector_size)

    def image_bytes(self) -> Iterator[tuple[ImagePart, slice]]:
        """Each image, and where it lies in a row."""
        start = self.vector_bytes.stop
        for image in self.images:
            stop = start + int(np.prod(image.shape))
            yield image, slice(start, stop)
            start = stop

    def vectors(self, rows: npt.NDArray[np.uint8]) -> Float32Array:
        """The vectors float32 [..., size] of observations uint8 [..., R], in their place: what is written is in the
        rows."""
        return rows[..., self.vector_bytes].view(np.float32)
