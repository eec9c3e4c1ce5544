"""Observations as a program has them, as a network takes them: one or a batch, of any dtype that casts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Text, Tuple

from actors.environments import EnvironmentSpec, adapter_of
from actors.environments.pictures import is_stack
from shared.config import EnvironmentConfig


class Batch(NamedTuple):
    """Observations [B, …] in the shape and dtype of a spec; `one`: it was no batch that was given."""

    observations: npt.NDArray[np.generic]
    one: bool


class EnvironmentSide:
    """What lies between a network and the `step` of its environment: observations on their way in, actions out.

    Args:
        config: of the environment.
        spec: of the environment.
    """

    def __init__(self, config: EnvironmentConfig, spec: EnvironmentSpec) -> None:
        # One copy, to read its spaces from: it needs no processes of its own.
        config = replace(config, vectorization="sync")
        self._id, self._spec = config.id, spec
        self._adapter = adapter_of(config)
        vector = self._adapter.make_vector(1)
        self._space = vector.single_observation_space
        vector.close()
        # Its observations are the network's, but for the dtype.
        self._same = isinstance(self._space, Box) and self._space.shape == spec.observation_shape

    def batch(self, observation: Any) -> Batch:
        """An observation, or several, as the environment gives them or as the network takes them.

        Raises:
            ValueError: they have another shape, or values that are not in its dtype.
        """
        shape, dtype = self._spec.observation_shape, np.dtype(self._spec.observation_dtype)
        if not isinstance(self._space, Box):
            return self._converted(observation)
        given = np.asarray(observation)
        if not self._same and given.shape[given.ndim - len(self._space.shape) :] == self._space.shape:
            return self._converted(given)
        one = given.ndim == len(shape)
        batch = given[None] if one else given
        if batch.shape[1:] != shape or not len(batch):
            raise ValueError(f"an observation of shape {given.shape}, where {self._id} has {shape} or a batch")
        return Batch(np.ascontiguousarray(_cast(batch, dtype)), one)

    def actions(self, actions: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """Actions [B, …] as the environment's `step` takes them."""
        return self._adapter.actions(actions)

    def _converted(self, observation: Any) -> Batch:
        batch, counts = _batched(self._space, observation, self._id)
        if len(set(counts)) > 1:
            raise ValueError(f"parts of an observation of {self._id} come {sorted(set(counts))} at a time")
        count = abs(counts[0])
        to = np.empty((count, *self._spec.observation_shape), self._spec.observation_dtype)
        return Batch(self._adapter.observations(batch, to), counts[0] < 0)


def _batched(space: gymnasium.Space, observation: Any, name: str) -> tuple[Any, list[int]]:
    """The parts of an observation as batches, and how many each has; -1 for one that is no batch."""
    if isinstance(space, Dict | Tuple):
        inner = space.spaces if isinstance(space, Dict) else dict(enumerate(space.spaces))
        if not hasattr(observation, "__len__"):
            raise ValueError(f"an observation of {name} has parts, {', '.join(map(str, inner))}; this has none")
        known = observation.keys() if isinstance(observation, Mapping) else range(len(observation))
        parts, counts = {}, list[int]()
        for key, part in inner.items():
            if isinstance(part, Text):
                continue
            if key not in known:
                raise ValueError(f"an observation of {name} without {key}")
            parts[key], found = _batched(part, observation[key], f"{name}'s {key}")
            counts += found
        return parts, counts
    given, shape = np.asarray(observation), space.shape or ()
    if is_stack(space):
        given = _stacked(given, shape)
    one = given.ndim == len(shape)
    batch = given[None] if one else given
    if batch.shape[1:] != shape or not len(batch):
        raise ValueError(f"an observation of shape {given.shape}, where {name} has {shape} or a batch")
    batch = batch if space.dtype is None or space.dtype.kind == "f" else _cast(batch, space.dtype)
    return batch, [-1 if one else len(batch)]


def _stacked(images: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Images [(B,) stack, height, width, channels], also where their channels are together, as a network takes them."""
    stack, height, width, channels = shape
    if images.shape[-3:] != (height, width, stack * channels) or images.ndim not in (3, 4):
        return images
    return np.moveaxis(images.reshape(*images.shape[:-1], stack, channels), -2, -4)


def _cast(values: npt.NDArray[Any], dtype: np.dtype) -> npt.NDArray[Any]:
    if values.dtype == dtype:
        return values
    try:
        cast = values.astype(dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(f"an observation of {values.dtype}, where the network takes {dtype}: {error}") from error
    if dtype.kind in "ui" and not np.array_equal(cast, values):
        raise ValueError(
            f"an observation of {values.dtype} from {values.min():g} to {values.max():g}, where the network takes "
            f"whole numbers from {np.iinfo(dtype).min} to {np.iinfo(dtype).max}"
        )
    return cast
