"""An agent that acts in a Python program: the weights of a run, from observations to actions. Imports no Ray."""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Text, Tuple

from actors.environments import EnvironmentSpec, adapter_of, environment_spec
from actors.environments.masks import read_mask
from actors.environments.pictures import Frames, inner_spaces, is_picture, is_stack
from actors.environments.spaces import found_at
from launch.run.folder import RunFolder, WeightsName, load_weights
from launch.run.lookup import run_path
from launch.run.saving import fetch
from launch.tensorflow_setup import share_tensorflow
from shared.config import EnvironmentConfig, RunConfig

if TYPE_CHECKING:
    from actors.policy import Policy

State = tuple[npt.NDArray[Any], ...]


class Agent:
    """The policy of a run, with fixed weights. Not thread-safe.

    Attributes:
        config: the settings of the run.
        weights: a description of the source of the weights.
        version: number of updates that the weights have had.

    Args:
        folder: of the run.
        weights: which of its weights.
        seed: of the sampled actions.
    """

    def __init__(self, folder: RunFolder, weights: WeightsName, seed: int) -> None:
        config = folder.read_config("run")
        self.config: RunConfig = config
        self._spec = folder.with_observation_mean(config, environment_spec(config.environment))
        self._environment = EnvironmentSide(config.environment, self._spec)
        share_tensorflow()
        self._seed = seed
        self._policies = {1: self._new_policy(1)}
        self._snapshot, self.weights = load_weights(folder, weights, self._policies[1].layout)
        self.version = self._snapshot.version
        self._policies[1].assign(self._snapshot.parameters, self._snapshot.frames)

    def act(
        self, observation: Any, state: State | None = None, deterministic: bool = False, mask: Any = None
    ) -> tuple[Any, State]:
        """Choose an action for one observation, or for each of a batch.

        Args:
            observation: one, or a batch [B, …], of `gymnasium.make`, of `environment`, or as the network takes it. Any
                array-like whose values fit the dtype; for a Dict space a dictionary of these. Single images of
                `gymnasium.make` are resized, turned grey and stacked as in training, with the stack in the state.
                Stacked ones are [B, height, width, stack] or [B, stack, height, width].
            state: the state that the last call returned; None at the start of episodes. [B, …] each: the memory of
                recurrent networks, then the stacks of single images. Set the rows of an episode that ends to 0.
            deterministic: return the best action of the policy, without sampling.
            mask: for runs with `environment.action_mask`: truth values or 0 and 1 for each action, [A], or [B, A] for a
                batch; for several choices side by side, or a tuple of one array for each. None: the part of a Dict
                observation that has the mask.

        Returns:
            The action as the environment's `step` takes it, or a batch [B, …] of actions; and the state for the next
            call.

        Raises:
            ValueError: the observation has another shape, or values that do not fit the dtype; or the numbers of states
                and observations differ. A mask is missing, has another shape or kind, or allows no action.
        """
        memories = len(self._policies[1].network.state_units)
        given = self._environment.batch(observation, None if state is None else state[memories:], mask)
        observations, one, stacks = given
        count = len(observations)
        # Powers of two: batches of many sizes need few networks.
        size = count if deterministic else 1 << (count - 1).bit_length()
        policy = self._policy(1 if deterministic else size)
        before = policy.first_state(count) if state is None else state[:memories]
        if any(len(part) != count for part in before):
            raise ValueError(f"a state of {len(before[0])} for {count} observations")
        if size > count:
            observations, before = _padded(observations, size), tuple(_padded(part, size) for part in before)
        acted = (policy.greedy if deterministic else policy.act)(observations, before)
        actions = self._environment.adapter.actions(acted.actions[:count])
        return (actions[0] if one else actions), (*(part[:count] for part in acted.state), *stacks)

    def environment(self, render_mode: str | None = None) -> gymnasium.Env:
        """The environment as the agent saw it in training: its wrappers, repeated actions, no-ops and stacked images.

        Its interface is Gymnasium's. Observations are those that `act` takes, actions those that `act` returns, and
        rewards the unclipped ones.

        Args:
            render_mode: as `gymnasium.make` takes it; rgb_array or human for Atari. Mesa's drawing of MuJoCo crashes in
                a process with TensorFlow; `tributary record` draws in another process.
        """
        return self._environment.adapter.make_single(render_mode)

    def _new_policy(self, size: int) -> "Policy":
        """A policy for batches of one size: exploration has a state per environment."""
        from actors.policy import Policy

        return Policy(self.config, self._spec, environments=size, seed=self._seed, training=False)

    def _policy(self, size: int) -> "Policy":
        policy = self._policies.get(size)
        if policy is None:
            policy = self._policies[size] = self._new_policy(size)
            policy.assign(self._snapshot.parameters, self._snapshot.frames)
        return policy


def load_agent(run: str, weights: WeightsName, seed: int) -> Agent:
    """See `tributary_rl.load`."""
    if "://" not in run:
        return Agent(RunFolder(run_path(run)), weights, seed)
    with tempfile.TemporaryDirectory(prefix="tributary-run-") as folder:
        fetch(run, Path(folder))
        return Agent(RunFolder(Path(folder)), weights, seed)


def _padded(rows: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """`size` rows: the given ones, and the last one repeated."""
    return np.concatenate([rows, np.repeat(rows[-1:], size - len(rows), axis=0)])


class Batch(NamedTuple):
    """Observations [B, *row_shape] in the dtype of a spec; `one`: a single observation was given.

    `stacks` are the rows of `Frames.stacked`, uint8 [B, R], if single images were given.
    """

    observations: npt.NDArray[np.generic]
    one: bool
    stacks: tuple[npt.NDArray[np.uint8], ...] = ()


class EnvironmentSide:
    """Converts observations from the environment's spaces to the network's; `adapter` converts actions back."""

    def __init__(self, config: EnvironmentConfig, spec: EnvironmentSpec) -> None:
        # One environment, for its spaces only: no processes of its own.
        config = replace(config, vectorization="sync")
        self._id, self._spec = config.id, spec
        self.adapter = adapter_of(config)
        vector = self.adapter.make_vector(1)
        self._mask_key, space = config.action_mask, vector.single_observation_space
        self._space = space.spaces[0] if spec.masked and isinstance(space, Tuple) else space
        vector.close()
        self._frames = self.adapter.frames()
        # The environment's observations equal the network's except for the dtype.
        self._same = isinstance(self._space, Box) and self._space.shape == spec.observation_shape

    def batch(self, observation: Any, stacks: State | None = None, mask: Any = None) -> Batch:
        """Convert an observation or a batch, in the environment's form or in the network's, as `Agent.act` takes it.

        `stacks` are those of the last call, if single images are given.
        """
        batch = self._batch(observation, stacks)
        if not self._spec.masked:
            if mask is not None:
                raise ValueError(f"a mask, where the agent was trained on {self._id} without masks")
            return batch
        if mask is None and isinstance(observation, Mapping):
            mask = observation.get(self._mask_key)
        if mask is None:
            raise ValueError(f"{self._id} is played with masks: act(observation, mask=…) takes {self._mask_key}")
        shape = (self._spec.actions.size,) if batch.one else (len(batch.observations), self._spec.actions.size)
        batch.observations[:, -self._spec.actions.size :] = read_mask("the mask", mask, self._spec.actions, shape)
        return batch

    def _batch(self, observation: Any, stacks: State | None) -> Batch:
        """As `batch`, where masks are still to be written."""
        shape, dtype = self._spec.observation_shape, np.dtype(self._spec.observation_dtype)
        if self._frames is not None and (stacks or self._single_images(self._frames, observation)):
            return self._stacked(self._frames, observation, stacks)
        if not isinstance(self._space, Box):
            return self._converted(*_batch(self._space, observation, self._id))
        given = np.asarray(observation)
        if not self._same and given.shape[given.ndim - len(self._space.shape) :] == self._space.shape:
            return self._converted(*_batch(self._space, given, self._id))
        one = given.ndim == len(shape)
        batch = given[None] if one else given
        if batch.shape[1:] != shape or not len(batch):
            frame = "" if self._frames is None else f", one image {self._frames.space.shape}"
            raise ValueError(f"an observation of shape {given.shape}, where {self._id} has {shape}{frame} or a batch")
        rows = np.ascontiguousarray(_cast(batch, dtype))
        if self._spec.masked:
            rows = np.pad(rows.reshape(len(rows), -1), ((0, 0), (0, self._spec.actions.size)))
        return Batch(rows, one)

    def _single_images(self, frames: Frames, observation: Any) -> bool:
        """Whether images have the shape of single ones. A batch that looks like one stack is one."""
        path, image = _images(frames.space)[0]
        _, stack = _images(frames.stacked_space)[0]
        try:
            shape = np.shape(found_at(path, observation))
        except (KeyError, IndexError, TypeError, ValueError):
            return False
        return image.shape in (shape, shape[1:]) and stack.shape not in (shape, shape[1:])

    def _stacked(self, frames: Frames, observation: Any, stacks: State | None) -> Batch:
        parts, count, one = _batch(frames.space, observation, self._id)
        rows = stacks[0] if stacks else frames.first_rows(count)
        if len(rows) != count:
            raise ValueError(f"a state of {len(rows)} for {count} observations")
        parts, rows = frames.stacked(parts, rows)
        if isinstance(self._space, Box):
            parts = parts.reshape(count, *self._space.shape)
        # A stack of one image needs no memory.
        return self._converted(parts, count, one)._replace(stacks=(rows,) if frames.stack > 1 else ())

    def _converted(self, parts: Any, count: int, one: bool) -> Batch:
        to = np.empty((count, *self._spec.row_shape), self._spec.observation_dtype)
        return Batch(self.adapter.observations((parts, 0) if self._spec.masked else parts, to), one)


def _images(space: gymnasium.Space, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], gymnasium.Space]]:
    """The path and the space of each image, or stack of images, in a space."""
    if is_picture(space) or is_stack(space):
        return [(path, space)]
    return [image for key, inner in inner_spaces(space).items() for image in _images(inner, (*path, key))]


def _batch(space: gymnasium.Space, observation: Any, name: str) -> tuple[Any, int, bool]:
    """The parts of an observation as batches, their length, and whether the observation was a single one.

    Raises:
        ValueError: a part has another shape, or values that do not fit; or the lengths differ.
    """
    parts, counts = _batched(space, observation, name)
    if len(set(counts)) > 1:
        raise ValueError(f"parts of an observation of {name} come {sorted(set(counts))} at a time")
    return parts, abs(counts[0]), counts[0] < 0


def _batched(space: gymnasium.Space, observation: Any, name: str) -> tuple[Any, list[int]]:
    """The parts of an observation as batches, and their lengths; -1 for a part that is no batch."""
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
    """Images [(B,) stack, height, width, channels]; those with merged channels, as a network takes them, are split."""
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
