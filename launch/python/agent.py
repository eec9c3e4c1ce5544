"""An agent that acts in a program of the user's own: weights of a run, observations in, actions out. Needs no Ray."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from actors.environments import environment_spec
from launch.machine.tensorflow_process import share_tensorflow
from launch.python.observations import EnvironmentSide
from launch.run.folder import RunFolder, WeightsName, load_weights
from launch.run.saving import fetch
from launch.run.status import run_path
from shared.config import RunConfig
from shared.types import Float32Array

if TYPE_CHECKING:
    from actors.policy import Policy

State = tuple[Float32Array, ...]


class Agent:
    """The policy of a run, with fixed weights. One thread at a time may ask it to act.

    Attributes:
        config: the settings of the run.
        weights: where the weights are from, in words.
        version: how many updates they have had.

    Args:
        folder: of the run.
        weights: which of its weights.
        seed: of the actions that it samples.
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
            observation: one, or a batch [B, …], as the environment gives it or as the network takes it; images as the
                network takes them, or [B, stack, height, width]. Whatever NumPy makes an array of, if the dtype can
                hold its values; for a Dict a dictionary of such.
            state: what the last call returned; None at the start of episodes. Networks with a memory keep it there,
                float32 [B, U] each: where one episode of a batch ends, its rows are set to 0 for the next one.
            deterministic: take the action that the policy holds best, and do not sample.

        Returns:
            The action in the environment's units, as its `step` takes it, or those of a batch [B, …]; and the state for
            the next call.

        Raises:
            ValueError: the observation has another shape, or values that are not in its dtype; or there are not as many
                states as observations.
        """
        observations, one = self._environment.batch(observation)
        count = len(observations)
        # Powers of two: a program whose batches have many sizes does not make a network for each.
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
        """Exploration has a state for each environment: a batch of another size has a policy of its own."""
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
    """The rows and, to make `size` of them, the last one again."""
    return np.concatenate([rows, np.repeat(rows[-1:], size - len(rows), axis=0)])
