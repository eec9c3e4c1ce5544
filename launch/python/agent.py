"""An agent that acts in a Python program: the weights of a run, from observations to actions. Imports no Ray."""

import warnings
from collections.abc import Mapping
from contextlib import chdir
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Tuple
from gymnasium.vector.utils import concatenate, create_empty_array

from actors.environments import EnvironmentSpec, adapter_of, environment_spec
from actors.environments.images import with_parts
from actors.environments.values import as_array, as_mask, observation_check
from launch.run.folder import RunFolder, changed_modules
from launch.run.lookup import run_path
from launch.run.weights import WeightsName, load_weights
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
        run: its folder, `latest`, `zoo:NAME`, or the URL of its copy.
        weights: which of its weights.
        seed: of the sampled actions.
    """

    def __init__(self, run: str, weights: WeightsName, seed: int) -> None:
        folder = RunFolder(run_path(run))
        config = folder.read_config("run")
        self.config: RunConfig = config
        self._spec = folder.as_trained(config, environment_spec(config.environment))
        for line in changed_modules(folder, config.environment):
            warnings.warn(f"{folder.name}: {line}", stacklevel=3)
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
            observation: one, or a batch [B, …], of `environment`, or as the network takes it. Any array-like whose
                values fit the dtype; for a Dict space a dictionary of such values. Images are stacked, [B, height,
                width, stack] or [B, stack, height, width]; one of `environment` is never a batch of one.
            state: the state that the last call returned; None at the start of episodes. The memory of recurrent
                networks, [B, units] each; () without one. Set the rows of an episode that ends to 0.
            deterministic: return the best action of the policy, without sampling.
            mask: for runs with `environment.action_mask`: truth values or 0 and 1 for each action, [A], or [B, A] for a
                batch; for several choices side by side, or a tuple of one array for each. None: the part of a Dict
                observation that has the mask.

        Returns:
            The action as the environment's `step` takes it, or a batch [B, …] of actions; and the state for the next
            call.

        Raises:
            ValueError: the observation has another shape, or values that do not fit the dtype; the numbers of states
                and observations differ, or the state is of another agent. A mask is missing, has another shape or kind,
                or allows no action.
        """
        observations, one = self._environment.batch(observation, mask)
        count, parts = len(observations), len(self._policies[1].network.state_units)
        if state is not None and len(state) != parts:
            raise ValueError(f"the state has {len(state)} arrays, and that of this agent has {parts}")
        # Powers of two: batches of many sizes need few networks.
        size = count if deterministic else 1 << (count - 1).bit_length()
        policy = self._policy(1 if deterministic else size)
        given = policy.first_state(count) if state is None else state
        before: list[npt.NDArray[Any]] = [np.asarray(part, np.float32) for part in given]
        if wrong := [len(part) for part in before if len(part) != count]:
            raise ValueError(f"the state has {wrong[0]} rows, for {count} observations")
        if size > count:
            # The last one is repeated.
            observations, *before = (part.take(range(size), 0, mode="clip") for part in (observations, *before))
        output = (policy.greedy if deterministic else policy.act)(observations, tuple(before))
        actions = self._environment.adapter.actions(output.actions[:count])
        return (actions[0] if one else actions), tuple(part[:count] for part in output.state)

    def environment(self, render_mode: str | None = None) -> gymnasium.Env:
        """The environment as the agent saw it in training: its wrappers, repeated actions, no-ops and stacked images.

        Its interface is Gymnasium's. `act` takes its observations and returns its actions; rewards are unclipped.

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


class EnvironmentSide:
    """Converts observations from the environment's spaces to the network's; `adapter` converts actions back."""

    def __init__(self, config: EnvironmentConfig, spec: EnvironmentSpec) -> None:
        # One environment, for its spaces only: no processes of its own.
        if config.vectorization == "async":
            config = replace(config, vectorization="sync")
        self._id, self._spec, self._mask_key = config.id, spec, config.action_mask
        self.adapter = adapter_of(config)
        # Some environments change to a folder of theirs.
        with chdir("."):
            vector = self.adapter.make_vector(1)
            vector.close()
        space = vector.single_observation_space
        self._space = space.spaces[0] if spec.masked and isinstance(space, Tuple) else space

    def batch(self, observation: Any, mask: Any = None) -> tuple[npt.NDArray[np.generic], bool]:
        """Observations [B, *row_shape] in the dtype of the spec, and True if a single observation was given.

        `observation` has the environment's form or the network's, as `Agent.act` takes it.
        """
        shape = self._space.shape
        of_environment = shape is None or np.shape(observation)[np.ndim(observation) - len(shape) :] == shape
        if isinstance(self._space, Box) and (shape == self._spec.observation_shape or not of_environment):
            rows, one = self._as_networks_take_it(observation)
        else:
            items, one = self._items(observation)
            empty: Any = create_empty_array(self._space, len(items))
            observations = concatenate(self._space, items, empty)
            rows = np.empty((len(items), *self._spec.row_shape), self._spec.observation_dtype)
            rows = self.adapter.observations((observations, 0) if self._spec.masked else observations, rows)
        reader = self.adapter.reader
        numbers = None if reader is None else reader.numbers(rows)
        if numbers is not None:
            # As before the networks of training: in a memory they would stay until the episode ends.
            numbers[~np.isfinite(numbers)] = 0.0
        if not self._spec.masked:
            if mask is not None:
                raise ValueError(f"a mask was given, and the agent was trained on {self._id} without masks")
            return rows, one
        if mask is None and isinstance(observation, Mapping):
            mask = observation.get(self._mask_key)
        if mask is None:
            raise ValueError(f"{self._id} is played with masks: act(observation, mask=…) takes {self._mask_key}")
        actions = self._spec.actions
        mask_shape = (actions.size,) if one else (len(rows), actions.size)
        rows[:, -actions.size :] = as_mask("the mask", mask, actions, mask_shape)
        return rows, one

    def _as_networks_take_it(self, observation: Any) -> tuple[npt.NDArray[np.generic], bool]:
        """Rows, where masks are still to be written, and True for a single observation."""
        shape, dtype = self._spec.observation_shape, np.dtype(self._spec.observation_dtype)
        # An environment with one number may give it without an array.
        one = np.ndim(observation) <= len(shape)
        # Without observations there is no batch.
        batch_shape = (max(1, len(observation)) if np.ndim(observation) else 1, *shape)
        source = ", as agent.environment() gives it," if self._spec.images else ""
        expected = f"{dtype} {list(shape)}{source} or a batch"
        rows = as_array(f"the observation of {self._id}", observation, dtype, shape if one else batch_shape, expected)
        rows = np.ascontiguousarray(rows).reshape(-1, *shape)
        if self._spec.masked:
            rows = np.pad(rows.reshape(len(rows), -1), ((0, 0), (0, self._spec.actions.size)))
        return rows, one

    def _items(self, observation: Any) -> tuple[list[Any], bool]:
        """The single observations of a batch, checked; True if it is a single one itself."""
        space, counts = self._space, set[int]()

        def count(part: Any, inner: gymnasium.Space) -> Any:
            # Text has no shape, and is not read.
            if inner.shape is not None:
                counts.add(len(part) if np.ndim(part) > len(inner.shape) else -1)
            return part

        observation = with_parts(space, observation, count)
        check = observation_check(space, f"the observation of {self._id}")
        if counts <= {-1}:
            return [check(observation)], True
        if len(counts) > 1 or 0 in counts:
            raise ValueError(f"parts of an observation of {self._id} come {sorted(counts)} at a time")

        def item(i: int) -> Any:
            return with_parts(space, observation, lambda part, inner: part if inner.shape is None else part[i])

        return [check(item(i)) for i in range(counts.pop())], False
