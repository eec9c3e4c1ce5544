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
from actors.environments.pictures import is_stack
from launch.machine import share_tensorflow
from launch.run.folder import RunFolder, WeightsName, load_weights
from launch.run.saving import fetch
from launch.run.status import run_path
from shared.config import EnvironmentConfig, RunConfig
from shared.types import Float32Array

if TYPE_CHECKING:
    from actors.policy import Policy

State = tuple[Float32Array, ...]


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
        trust_imports: import the modules that the settings of the run name, and run their code.
    """

    def __init__(self, folder: RunFolder, weights: WeightsName, seed: int, *, trust_imports: bool = False) -> None:
        config = folder.read_config("run", trust_imports=trust_imports)
        self.config: RunConfig = config
        self._spec = folder.with_observation_mean(config, environment_spec(config.environment))
        self._environment = EnvironmentSide(config.environment, self._spec)
        share_tensorflow()
        self._seed = seed
        self._policies = {1: self._new_policy(1)}
        self._snapshot, self.weights = load_weights(folder, weights, self._policies[1].layout)
        self.version = self._snapshot.version
        self._policies[1].assign(self._snapshot.parameters, self._snapshot.frames)

    def act(self, observation: Any, state: State | None = None, deterministic: bool = False) -> tuple[Any, State]:
        """Choose an action for one observation, or for each of a batch.

        Args:
            observation: one, or a batch [B, …], as the environment returns it or as the network takes it; images as the
                network takes them, or [B, stack, height, width]. Any array-like whose values fit the dtype; for a Dict
                space a dictionary of these.
            state: the state that the last call returned; None at the start of episodes. The memory of recurrent
                networks, float32 [B, U] each: set the rows of an episode that ends to 0.
            deterministic: return the best action of the policy, without sampling.

        Returns:
            The action as the environment's `step` takes it, or a batch [B, …] of actions; and the state for the next
            call.

        Raises:
            ValueError: the observation has another shape, or values that do not fit the dtype; or the numbers of states
                and observations differ.
        """
        observations, one = self._environment.batch(observation)
        count = len(observations)
        # Powers of two: batches of many sizes need few networks.
        size = count if deterministic else 1 << (count - 1).bit_length()
        policy = self._policy(1 if deterministic else size)
        before = policy.first_state(count) if state is None else state
        if any(len(part) != count for part in before):
            raise ValueError(f"a state of {len(before[0])} for {count} observations")
        if size > count:
            observations, before = _padded(observations, size), tuple(_padded(part, size) for part in before)
        acted = (policy.greedy if deterministic else policy.act)(observations, before)
        actions = self._environment.actions(acted.actions[:count])
        return (actions[0] if one else actions), tuple(part[:count] for part in acted.state)

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


def load_agent(run: str, weights: WeightsName, seed: int, *, trust_imports: bool) -> Agent:
    """See `tributary_rl.load`."""
    if "://" not in run:
        return Agent(RunFolder(run_path(run)), weights, seed, trust_imports=trust_imports)
    with tempfile.TemporaryDirectory(prefix="tributary-run-") as folder:
        fetch(run, Path(folder), setting="run")
        return Agent(RunFolder(Path(folder)), weights, seed, trust_imports=trust_imports)


def _padded(rows: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """`size` rows: the given ones, and the last one repeated."""
    return np.concatenate([rows, np.repeat(rows[-1:], size - len(rows), axis=0)])


class Batch(NamedTuple):
    """Observations [B, …] in the shape and dtype of a spec; `one`: a single observation was given."""

    observations: npt.NDArray[np.generic]
    one: bool


class EnvironmentSide:
    """Converts observations from the environment's spaces to the network's, and actions back."""

    def __init__(self, config: EnvironmentConfig, spec: EnvironmentSpec) -> None:
        # One environment, for its spaces only: no processes of its own.
        config = replace(config, vectorization="sync")
        self._id, self._spec = config.id, spec
        self._adapter = adapter_of(config)
        vector = self._adapter.make_vector(1)
        self._space = vector.single_observation_space
        vector.close()
        # The environment's observations equal the network's except for the dtype.
        self._same = isinstance(self._space, Box) and self._space.shape == spec.observation_shape

    def batch(self, observation: Any) -> Batch:
        """Convert an observation or a batch, in the environment's form or in the network's.

        Raises:
            ValueError: the shape differs, or values do not fit the dtype.
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
