"""Images of any environment, as a network sees them: resized, in grey, and the last few of them together."""

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box
from gymnasium.wrappers import FrameStackObservation, TransformObservation
from PIL import Image

ByteArray = npt.NDArray[np.uint8]

# Smaller arrays of bytes are no pictures but maps: MiniGrid's 7 x 7 fields of three numbers each.
_SMALLEST_SIDE = 16


def is_picture(space: gymnasium.Space) -> bool:
    """Whether observations are images: uint8 [height, width(, channels)] or [channels, height, width].

    They have 16 pixels a side or more.
    """
    return isinstance(space, Box) and space.dtype == np.uint8 and _channel_axis(space.shape) is not None


def as_pictures(
    environment: gymnasium.Env, *, size: int | None, greyscale: bool, stack: int
) -> gymnasium.Env[ByteArray, Any]:
    """The environment with observations uint8 [stack, height, width, channels].

    Args:
        environment: that gives images.
        size: of both sides, in pixels; None: as they are.
        greyscale: one channel in place of three.
        stack: how many of the last images are seen together; a reset fills them with the first.
    """
    shape = environment.observation_space.shape
    assert shape is not None
    axis = _channel_axis(shape)
    assert axis is not None, "it gives images"

    def picture(observation: ByteArray) -> ByteArray:
        image = np.moveaxis(observation, axis, -1) if observation.ndim == 3 else observation[..., None]
        if greyscale and image.shape[2] == 3:
            image = np.asarray(Image.fromarray(np.ascontiguousarray(image)).convert("L"))[..., None]
        if size is None:
            return image
        return np.stack([_resized(image[..., channel], size) for channel in range(image.shape[2])], axis=-1)

    seen = Box(0, 255, picture(np.zeros(shape, np.uint8)).shape, np.uint8)
    return FrameStackObservation(TransformObservation(environment, picture, seen), stack)


def _channel_axis(shape: tuple[int, ...]) -> int | None:
    """Which axis of an image has its channels, if it is one; 2 where it has none."""
    if len(shape) in (2, 3) and min(shape[:2]) >= _SMALLEST_SIDE:
        return 2
    return 0 if len(shape) == 3 and min(shape[1:]) >= _SMALLEST_SIDE else None


def _resized(channel: ByteArray, size: int) -> ByteArray:
    # Over all pixels that become one, so that thin lines stay.
    image = Image.fromarray(np.ascontiguousarray(channel))
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR))


def channels_together(images: ByteArray, to: ByteArray | None) -> ByteArray:
    """Images uint8 [B, stack, height, width, channels] as [B, height, width, stack x channels], in `to` if given."""
    count, stack, height, width, channels = images.shape
    if to is None:
        to = np.empty((count, height, width, stack * channels), np.uint8)
    to.reshape(count, height, width, stack, channels)[...] = np.moveaxis(images, 1, 3)
    return to
