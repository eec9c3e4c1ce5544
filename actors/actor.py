"""An actor: weights in, one gradient out."""

import time
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from actors.environments import EnvironmentSpec, VectorEnvironment
from actors.gradient import RolloutGradient
from actors.policy import Policy
from actors.rollout import RolloutBuilder
from shared.config import RunConfig
from shared.moments import Moments
from shared.types import GradientReport, StageSeconds, WeightSnapshot


class ActorState(NamedTuple):
    """From which an actor can go on to the bit: `actions` [N, B(, D)] are all that its environments were given.

    `next_actions` is None, or the actions that the next rollout begins with.
    """

    sequence: int
    actions: npt.NDArray[np.generic]
    next_actions: npt.NDArray[np.generic] | None
    exploration: dict[str, npt.NDArray[np.generic]]


class Actor:
    """Steps a batch of environments and differentiates the loss over what it saw.

    One call of `run` is one turn of the loop of a thread in Algorithms S2 and S3 of the paper (arXiv 1602.01783):
    synchronise the weights, act for t_max steps, accumulate gradients backwards from the bootstrapped return, and
    hand them over. It holds environments and networks, and no training state.

    Args:
        config: of the run.
        spec: of its environment.
        actor_id: unique in the run; it separates the random streams of actors too.
    """

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, actor_id: int) -> None:
        self.actor_id = actor_id
        self._sequence = 0
        actor = config.actor
        self._environments = VectorEnvironment(config.environment, actor.environments, actor.environment_threads)
        # Each actor takes a block of consecutive seeds: environment i of a block has seed + i.
        seed = (config.seed * 1_000_003 + actor_id * actor.environments) % 2**31
        self._policy = Policy(
            config, spec, environments=actor.environments, seed=seed, unroll_length=actor.unroll_length
        )
        self._gradient = RolloutGradient(config, spec, self._policy)
        self._builder = RolloutBuilder(
            actor.unroll_length,
            actor.environments,
            spec.observation_shape,
            spec.observation_dtype,
            spec.actions,
            discount=config.method.discount,
            reward_scale=config.environment.reward_scale,
            clip_rewards=config.environment.clip_rewards,
            terminal_on_life_loss=config.environment.terminal_on_life_loss,
        )
        self._unroll_length = actor.unroll_length
        self._keeps_moments = config.network.observation_scaling == "running"
        self._next_actions: npt.NDArray[np.generic] | None = None
        self._first_observations: npt.NDArray[np.generic] | None = self._environments.reset(seed)
        self._finished_at = time.perf_counter()
        # Environments cannot be saved; what they were given can be given to them again.
        self._taken: list[npt.NDArray[np.generic]] | None = [] if config.checkpoint.exact else None

    def state(self) -> ActorState:
        """What it takes to go on from here. Needs `checkpoint.exact`."""
        assert self._taken is not None, "actions are kept with --checkpoint.exact only"
        actions = np.concatenate([self._builder.no_actions[None][:0], *self._taken])
        return ActorState(self._sequence, actions, self._next_actions, self._policy.exploration_state())

    def restore(self, state: ActorState) -> None:
        """Go on from a saved state. Comes before the first `run`, and plays all that was played again."""
        assert self._taken is not None, "actions are kept with --checkpoint.exact only"
        builder = self._builder
        for start in range(0, len(state.actions), self._unroll_length):
            rollout = state.actions[start : start + self._unroll_length]
            builder.begin(self._first_observations)
            self._first_observations = None
            for actions in rollout:
                builder.add(actions, self._environments.step(actions, builder.next_observations))
            builder.take_episodes()
            self._taken.append(rollout)
        self._sequence, self._next_actions = state.sequence, state.next_actions
        self._policy.restore_exploration(state.exploration)

    def run(self, snapshot: WeightSnapshot, target: WeightSnapshot | None = None) -> GradientReport:
        """Act for T steps with the weights of `snapshot`, and report the gradient over them.

        `target` has the weights of the target network, for methods that use one.
        """
        clock = time.perf_counter
        started = clock()
        wait = started - self._finished_at
        self._policy.assign(snapshot.parameters, snapshot.frames)
        if target is not None:
            self._gradient.assign_target(target)
        synchronised = clock()
        acting = environment = 0.0
        before = synchronised
        builder, next_actions = self._builder, self._next_actions
        builder.begin(self._first_observations)
        self._first_observations = self._next_actions = None
        for t in range(self._unroll_length):
            if next_actions is None:
                actions = self._policy.act(builder.observations, t).actions
            else:
                actions, next_actions = next_actions, None
            acted = clock()
            builder.add(actions, self._environments.step(actions, builder.next_observations))
            stepped = clock()
            acting += acted - before
            environment += stepped - acted
            before = stepped
        if self._policy.method.needs_next_actions:
            # Taken by the next rollout: Sarsa's target is the value of the action that really follows.
            self._next_actions = self._policy.act(builder.observations).actions
        rollout = builder.finish(self._next_actions)
        if self._taken is not None:
            self._taken.append(rollout.actions.copy())
        gradient, statistics = self._gradient(rollout)
        moments = Moments.of(rollout.observations[:-1]) if self._keeps_moments else None
        self._finished_at = clock()
        self._sequence += 1
        return GradientReport(
            actor_id=self.actor_id,
            sequence=self._sequence,
            version=snapshot.version,
            layout_fingerprint=self._policy.layout.fingerprint,
            gradient=gradient,
            agent_steps=int(rollout.mask.sum()),
            episodes=builder.take_episodes(),
            stage_seconds=StageSeconds(
                environment=environment,
                acting=acting,
                gradient=self._finished_at - before,
                synchronise=synchronised - started,
                wait=wait,
            ),
            statistics=statistics,
            observation_moments=moments,
            unfinished_environments=builder.unfinished_environments,
        )

    @property
    def traces(self) -> int:
        """How often its graphs were traced: as often as there are graphs, however long it runs."""
        return self._policy.traces + self._gradient.traces

    def close(self) -> None:
        """Release the environments."""
        self._environments.close()
