"""An actor: weights in, one gradient out."""

import time

from actors.environments import EnvironmentSpec, VectorEnvironment
from actors.policy import Policy, PolicyGradient
from actors.rollout import RolloutBuilder
from shared.config import RunConfig
from shared.types import GradientReport, StageSeconds, WeightSnapshot


class Actor:
    """Steps a batch of environments and differentiates the loss over what it saw.

    One call of `run` is one turn of the loop of a thread in Algorithm S3 of the paper (arXiv 1602.01783):
    synchronise the weights, act for t_max steps, accumulate gradients backwards from the bootstrapped return, and
    hand them over. It holds environments and a network, and no training state.

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
        self._policy = Policy(config.network, spec, weight_seed=config.seed, seed=seed)
        self._gradient = PolicyGradient(self._policy, config.method, actor.unroll_length, actor.environments, spec)
        self._builder = RolloutBuilder(
            actor.unroll_length,
            actor.environments,
            spec.observation_shape,
            spec.observation_dtype,
            discount=config.method.discount,
            clip_rewards=config.environment.clip_rewards,
            terminal_on_life_loss=config.environment.terminal_on_life_loss,
        )
        self._unroll_length = actor.unroll_length
        self._observations = self._environments.reset(seed)
        self._finished_at = time.perf_counter()

    def run(self, snapshot: WeightSnapshot) -> GradientReport:
        """Act for T steps with the weights of `snapshot`, and report the gradient over them."""
        clock = time.perf_counter
        started = clock()
        wait = started - self._finished_at
        self._policy.assign(snapshot.parameters)
        synchronised = clock()
        acting = environment = 0.0
        observations, before = self._observations, synchronised
        for _ in range(self._unroll_length):
            actions = self._policy.sample(observations)
            acted = clock()
            result = self._environments.step(actions)
            self._builder.add(observations, actions, result)
            observations = result.observations
            stepped = clock()
            acting += acted - before
            environment += stepped - acted
            before = stepped
        self._observations = observations
        rollout = self._builder.finish(observations)
        gradient, statistics = self._gradient(rollout)
        self._finished_at = clock()
        self._sequence += 1
        return GradientReport(
            actor_id=self.actor_id,
            sequence=self._sequence,
            version=snapshot.version,
            layout_fingerprint=self._policy.layout.fingerprint,
            gradient=gradient,
            agent_steps=int(rollout.mask.sum()),
            episodes=self._builder.take_episodes(),
            stage_seconds=StageSeconds(
                environment=environment,
                acting=acting,
                gradient=self._finished_at - before,
                synchronise=synchronised - started,
                wait=wait,
            ),
            statistics=statistics,
        )

    def close(self) -> None:
        """Release the environments."""
        self._environments.close()
