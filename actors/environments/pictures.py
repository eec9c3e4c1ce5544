"""Images of any environment in the form of networks: resized, greyscale, and the newest ones stacked."""

from collections import deque
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Tuple
from PIL import Image

ByteArray = npt.NDArray[np.uint8]

# Smaller arrays of bytes are maps, not images: MiniGrid's 7 x 7 fields of three numbers each.
_SMALLEST_SIDE = 16


def is_picture(space: gymnasium.Space) -> bool:
    """Whether observations are images: uint8 [height, width(, channels)] or [channels, height, width], at least 16 a
    side."""
    return isinstance(space, Box) and space.dtype == np.uint8 and _channel_axis(space.shape) is not None


def has_pictures(space: gymnasium.Space) -> bool:
    """Whether observations are images, or a Dict or Tuple that contains one."""
    return is_picture(space) or any(map(has_pictures, inner_spaces(space).values()))


def is_stack(space: gymnasium.Space) -> bool:
    """Whether observations are stacks of `Pictures`: uint8 [stack, height, width, channels]."""
    if not isinstance(space, Box) or space.dtype != np.uint8 or len(space.shape) != 4:
        return False
    return min(space.shape[1:3]) >= _SMALLEST_SIDE


def inner_spaces(space: gymnasium.Space) -> dict[Any, gymnasium.Space]:
    """The spaces in a Dict or a Tuple by key or index; empty for other spaces."""
    if isinstance(space, Dict):
        return dict(space.spaces)
    return dict(enumerate(space.spaces)) if isinstance(space, Tuple) else {}


class Pictures(gymnasium.Wrapper):
    """Makes all images in observations uint8 [stack, height, width, channels].

    Args:
        environment: with images, alone or in a Dict or Tuple, whose other parts do not change.
        size: side in pixels. None keeps the size.
        greyscale: one channel instead of three.
        stack: number of newest images that are stacked. A reset fills the stack with the first image.
    """

    def __init__(self, environment: gymnasium.Env, *, size: int | None, greyscale: bool, stack: int) -> None:
        super().__init__(environment)
        self._stack = stack
        self._size, self._greyscale = size, greyscale
        # The newest images by their path in an observation.
        self._last: dict[tuple[Any, ...], deque[ByteArray]] = {}
        self.observation_space = self._space(environment.observation_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """See `gymnasium.Env.reset`."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._last.clear()
        return self._seen(self.env.observation_space, observation, ()), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env.step`."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._seen(self.env.observation_space, observation, ()), reward, terminated, truncated, info

    def _seen(self, space: gymnasium.Space, observation: Any, path: tuple[Any, ...]) -> Any:
        if isinstance(space, Dict):
            return {key: self._seen(inner, observation[key], (*path, key)) for key, inner in space.spaces.items()}
        if isinstance(space, Tuple):
            return tuple(self._seen(inner, observation[i], (*path, i)) for i, inner in enumerate(space.spaces))
        if not is_picture(space):
            return observation
        image = self._picture(observation)
        last = self._last.get(path)
        if last is None:
            last = self._last[path] = deque([image] * self._stack, self._stack)
        else:
            last.append(image)
        return np.stack(last)

    def _space(self, space: gymnasium.Space) -> gymnasium.Space:
        if isinstance(space, Dict):
            return Dict({key: self._space(inner) for key, inner in space.spaces.items()})
        if isinstance(space, Tuple):
            return Tuple(tuple(map(self._space, space.spaces)))
        if not is_picture(space):
            return space
        return Box(0, 255, (self._stack, *self._picture(np.zeros(space.shape or (), np.uint8)).shape), np.uint8)

    def _picture(self, observation: ByteArray) -> ByteArray:
        axis = _channel_axis(observation.shape)
        assert axis is not None, "its space is that of images"
        image = np.moveaxis(observation, axis, -1) if observation.ndim == 3 else observation[..., None]
        if self._greyscale and image.shape[2] == 3:
            image = np.asarray(Image.fromarray(np.ascontiguousarray(image)).convert("L"))[..., None]
        if self._size is None:
            # An environment may draw the next one in the same memory.
            return image.copy()
        return np.stack([_resized(image[..., channel], self._size) for channel in range(image.shape[2])], axis=-1)


def _channel_axis(shape: tuple[int, ...]) -> int | None:
    """The axis of the channels of an image, 2 if it has none; None if the array is no image."""
    if len(shape) in (2, 3) and min(shape[:2]) >= _SMALLEST_SIDE:
        return 2
    return 0 if len(shape) == 3 and min(shape[1:]) >= _SMALLEST_SIDE else None


def _resized(channel: ByteArray, size: int) -> ByteArray:
    # Averages all pixels that become one, so that thin lines stay visible.
    image = Image.fromarray(np.ascontiguousarray(channel))
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR))


def shape_together(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """[height, width, stack x channels], of a stack of images [stack, height, width, channels]."""
    stack, height, width, channels = shape
    return height, width, stack * channels


def channels_together(images: ByteArray, to: ByteArray) -> None:
    """Write images uint8 [B, stack, height, width, channels] to [B, height, width, stack x channels].

    The last axis of `to` is contiguous.
    """
    count, stack, height, width, channels = images.shape
    to.reshape(count, height, width, stack, channels)[...] = np.moveaxis(images, 1, 3)
