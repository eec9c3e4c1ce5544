"""Plays rollouts on the CPU: a policy and its environments take turns."""

import time
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from actors.environments import EnvironmentSpec, VectorEnvironment
from actors.gradient import Gradients
from actors.policy import Policy, PolicyOutput, reset_ended_states
from actors.rollout import RolloutBuilder
from shared.config import RunConfig
from shared.types import Rollout


class PlayedRollout(NamedTuple):
    """A rollout, valid until the next one is played, and the seconds that environments and policy took for it."""

    rollout: Rollout
    environment_seconds: float
    acting_seconds: float


class Player:
    """Plays one rollout after another in a batch of environments, with the current weights of a policy.

    `gradients` keep the results of acting that they need.

    Args:
        seeds: of the environments, int64 [B].
    """

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        policy: Policy,
        gradients: Gradients,
        seeds: npt.NDArray[np.int64],
    ) -> None:
        self._policy, self._gradients = policy, gradients
        self._unroll_length = config.actor.unroll_length
        self._environments = VectorEnvironment(config.environment, config.actor.environments)
        self.builder = RolloutBuilder(config, spec.row_shape, spec.observation_dtype, spec.actions)
        self._state = policy.first_state(config.actor.environments)
        # The first actions of the next rollout, if they are chosen already.
        self._next_output: PolicyOutput | None = None
        self._first_observations: npt.NDArray[np.generic] | None = self._environments.reset(seeds)

    @staticmethod
    def make_policy(config: RunConfig, spec: EnvironmentSpec, seed: int) -> Policy:
        actor = config.actor
        return Policy(config, spec, environments=actor.environments, seed=seed, unroll_length=actor.unroll_length)

    def play(self) -> PlayedRollout:
        """Play T vector steps with the current weights."""
        clock = time.perf_counter
        environment = acting = 0.0
        before = clock()
        builder, first_state = self.builder, self._state
        first, self._first_observations = self._first_observations, None
        builder.begin(first, None if first is None else self._environments.reset_non_finite)
        next_output, self._next_output = self._next_output, None
        for t in range(self._unroll_length):
            if next_output is None:
                output = self._policy.act(builder.observations, self._state, t)
            else:
                # Its value and log π come from the weights that chose it.
                output, next_output = next_output, None
            self._gradients.keep(t, output)
            self._state = reset_ended_states(output.state, builder.resets)
            chosen = clock()
            builder.add(output.actions, self._environments.step(output.actions, builder.next_observations))
            stepped = clock()
            acting += chosen - before
            environment += stepped - chosen
            before = stepped
        if self._policy.method.needs_next_actions:
            # The next rollout takes them: Sarsa's target is the value of the action that really follows.
            self._next_output = self._policy.act(builder.observations, self._state)
            acting += clock() - before
        next_actions = None if self._next_output is None else self._next_output.actions
        rollout = builder.finish(next_actions, first_state, self._state)
        return PlayedRollout(rollout, environment, acting)

    def close(self) -> None:
        self._environments.close()
