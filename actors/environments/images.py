"""Images of any environment in the form of networks: resized, greyscale, and the newest ones stacked."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Tuple
from PIL import Image

from shared.config.task import SMALLEST_SIDE

ByteArray = npt.NDArray[np.uint8]


def is_image(space: gymnasium.Space) -> bool:
    """True if observations are images: uint8 [height, width(, channels)] or [channels, height, width], at least 16 a
    side, with values to 255. Smaller values belong to a board."""
    return _has_bytes(space) and _channel_axis(space.shape or ()) is not None


def has_images(space: gymnasium.Space) -> bool:
    """True if observations are images, or a Dict or Tuple that contains one."""
    return is_image(space) or any(map(has_images, inner_spaces(space).values()))


def is_stack(space: gymnasium.Space) -> bool:
    """True if observations are stacks of `ImagePreprocessing`: uint8 [stack, height, width, channels]."""
    shape = space.shape or ()
    return _has_bytes(space) and len(shape) == 4 and min(shape[1:3]) >= SMALLEST_SIDE


def _has_bytes(space: gymnasium.Space) -> bool:
    # The first value, since this is asked at each step.
    return isinstance(space, Box) and space.dtype == np.uint8 and space.high.size > 0 and space.high.flat[0] == 255


class Stack(Box):
    """The space of images of the shape `source` after `ImagePreprocessing`: uint8 [stack, height, width, channels]."""

    def __init__(self, shape: tuple[int, ...], source: tuple[int, ...]) -> None:
        super().__init__(0, 255, shape, np.uint8)
        self.source = source

    def description(self) -> str:
        """The change in words: image 40 × 40 × 3 → 84 × 84 grey, 4 stacked."""
        stack, height, width, channels = self.shape
        one = (height, width, channels)
        now = f"{height} × {width} grey" if channels == 1 else " × ".join(map(str, one))
        became = "" if self.source == one else f" → {now}"
        return f"image {' × '.join(map(str, self.source))}{became}{f', {stack} stacked' if stack > 1 else ''}"


def inner_spaces(space: gymnasium.Space) -> dict[Any, gymnasium.Space]:
    """The spaces in a Dict or a Tuple by key or index; empty for other spaces."""
    if isinstance(space, Dict):
        return dict(space.spaces)
    return dict(enumerate(space.spaces)) if isinstance(space, Tuple) else {}


def with_parts(space: gymnasium.Space, observation: Any, change: Callable[[Any, gymnasium.Space], Any]) -> Any:
    """An observation with `change(part, its space)` in place of each part. Missing and surplus parts stay so."""
    if isinstance(space, Dict) and isinstance(observation, Mapping):
        keys = [key for key in space.spaces if key in observation]
        return {key: with_parts(space[key], observation[key], change) for key in keys}
    if isinstance(space, Tuple) and isinstance(observation, tuple | list | np.ndarray):
        parts = (with_parts(inner, part, change) for inner, part in zip(space, observation, strict=False))
        return (*parts, *observation[len(space.spaces) :])
    return change(observation, space)


class ImagePreprocessing(gymnasium.Wrapper):
    """Makes all images in observations uint8 [stack, height, width, channels], of which the newest is the last.

    `size` is the side in pixels; None keeps the size. A reset fills the stack with the first image.
    """

    def __init__(self, environment: gymnasium.Env, *, size: int | None, greyscale: bool, stack: int) -> None:
        super().__init__(environment)
        self._preprocess, self._stack = partial(_preprocessed, size=size, greyscale=greyscale), stack
        self.observation_space = self._stacked_space(environment.observation_space)
        # The stack of each image of the last observation, in the order of its parts.
        self._stacks: list[ByteArray] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._stacked(observation, None), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._stacked(observation, iter(self._stacks)), reward, terminated, truncated, info

    def _stacked_space(self, space: gymnasium.Space) -> gymnasium.Space:
        if isinstance(space, Dict):
            return Dict({key: self._stacked_space(inner) for key, inner in space.spaces.items()})
        if isinstance(space, Tuple):
            return Tuple(tuple(map(self._stacked_space, space.spaces)))
        if not is_image(space):
            return space
        shape = space.shape or ()
        return Stack((self._stack, *self._preprocess(np.zeros(shape, np.uint8)).shape), shape)

    def _stacked(self, observation: Any, before: Iterator[ByteArray] | None) -> Any:
        """The observation with stacks in place of images, which continue the stacks `before`."""
        self._stacks = []

        def stacked(image: Any, space: gymnasium.Space) -> Any:
            if not is_image(space):
                return image
            newest = self._preprocess(image)[None]
            earlier = np.repeat(newest, self._stack, axis=0) if before is None else next(before)
            # Copied: an environment may draw the next one in the same memory.
            self._stacks.append(np.concatenate([earlier[1:], newest]))
            # A copy: a program may draw in it, for example by `agent.environment()`.
            return self._stacks[-1].copy()

        return with_parts(self.env.observation_space, observation, stacked)


def _preprocessed(observation: ByteArray, *, size: int | None, greyscale: bool) -> ByteArray:
    axis = _channel_axis(observation.shape)
    assert axis is not None, "its space is that of images"
    image = np.moveaxis(observation, axis, -1) if observation.ndim == 3 else observation[..., None]
    # Four channels may be four images that the environment stacks.
    if greyscale and image.shape[2] == 3:
        image = grey(image)[..., None]
    if size is None:
        return image
    return np.stack([_resized(image[..., channel], size) for channel in range(image.shape[2])], axis=-1)


def grey(image: ByteArray) -> ByteArray:
    """The luminance of an image uint8 [height, width, 3]: uint8 [height, width]."""
    return np.asarray(Image.fromarray(np.ascontiguousarray(image)).convert("L"))


def _channel_axis(shape: tuple[int, ...]) -> int | None:
    """The axis of the channels, 2 if there is none; None if the array is no image."""
    if len(shape) in (2, 3) and min(shape[:2]) >= SMALLEST_SIDE:
        # With as many channels as an image has rows, as in a long stack, the shorter axis has the channels.
        first = len(shape) == 3 and min(shape) >= SMALLEST_SIDE and shape[0] < shape[2] and shape[0] != shape[1]
        return 0 if first else 2
    return 0 if len(shape) == 3 and min(shape[1:]) >= SMALLEST_SIDE else None


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
