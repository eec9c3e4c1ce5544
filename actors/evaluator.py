"""The evaluation protocol: whole episodes, unclipped returns, fixed weights."""

import hashlib
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from actors.environments import EnvironmentSpec, VectorEnvironment
from actors.policy import Policy, carried
from shared.config import EvaluationConfig, RunConfig
from shared.layout import ParameterLayout
from shared.seeds import Purpose, episode_seeds
from shared.types import EpisodeStats, EvaluationPolicy, EvaluationResult, WeightSnapshot

# Seconds without the end of an episode after which `on_wait` is called, and then again after twice as long. The first
# episodes of 20 environments of Pong end after half a minute on a busy core.
_WAIT_SECONDS = 60.0


class Evaluator:
    """Plays whole episodes with fixed weights.

    Each environment plays a fixed share of the episodes, because the first ones to end would be the short ones.
    `purpose` selects the seeds of the episodes, which are the same in every `run`.
    """

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        evaluation: EvaluationConfig,
        purpose: Purpose = "training_evaluation",
        threads: int = 1,
    ) -> None:
        self._evaluation = evaluation
        self._count = min(evaluation.environments, evaluation.episodes)
        self._seeds = episode_seeds(config.seed, purpose, self._count)
        self._environments = VectorEnvironment(config.environment, self._count, threads)
        self._policy = Policy(config, spec, environments=self._count, seed=self._seeds.actions, training=False)

    @property
    def layout(self) -> ParameterLayout:
        return self._policy.layout

    @property
    def environments(self) -> int:
        return self._count

    def run(
        self,
        snapshot: WeightSnapshot,
        policy: EvaluationPolicy | None = None,
        *,
        on_ended: Callable[[int], object] = lambda _: None,
        on_wait: Callable[[str], object] | None = None,
        stops: Callable[[], bool] = lambda: False,
    ) -> EvaluationResult | None:
        """Play the episodes with the weights of `snapshot`, by `policy` or that of the settings.

        `on_ended` is called with the number of episodes that have just ended; `on_wait` with a line when none has ended
        for a while, since there are environments without an end. `stops` is looked at after each step: when it is true,
        the evaluation ends and returns None.
        """
        policy = policy or self._evaluation.policy
        self._policy.assign(snapshot.parameters, snapshot.frames)
        act = self._policy.greedy if policy == "greedy" else self._policy.act
        quota = np.full(self._count, self._evaluation.episodes // self._count)
        quota[: self._evaluation.episodes % self._count] += 1
        returns = np.zeros(self._count, np.float64)
        lengths = np.zeros(self._count, np.int64)
        resets_next = np.zeros(self._count, bool)
        ended: list[EpisodeStats] = []
        games: list[int] = []
        observations = self._environments.reset(self._seeds.environments)
        fingerprints = EpisodeFingerprints(observations)
        memory = self._policy.first_state(self._count)
        steps, since, wait = 0, time.monotonic(), _WAIT_SECONDS
        while quota.any():
            if stops():
                return None
            steps += 1
            if on_wait is not None and time.monotonic() - since > wait:
                wait *= 2.0
                on_wait(
                    f"no episode has ended for {time.monotonic() - since:.0f} s: {int(quota.sum())} are still to end, "
                    f"after {steps:,} agent steps each. An environment without an end gets one by "
                    f"--environment.wrappers gymnasium.wrappers:TimeLimit,max_episode_steps=N"
                )
            acted = act(observations, memory)
            actions, memory = acted.actions, carried(acted.state, resets_next)
            result = self._environments.step(actions)
            observations = result.observations
            fingerprints.step(actions, result.rewards, observations, resets_next)
            returns += np.where(resets_next, np.float32(0), result.rewards)
            lengths += ~resets_next
            resets_next = result.terminated | result.truncated
            counted = resets_next & (quota > 0)
            if counted.any():
                info = {name: values[counted] for name, values in result.info.items()}
                ended.append(EpisodeStats(returns[counted], lengths[counted], info))
                games.extend(map(fingerprints.number, np.flatnonzero(counted).tolist()))
                quota[counted] -= 1
                since, wait = time.monotonic(), _WAIT_SECONDS
                on_ended(int(counted.sum()))
            returns[resets_next] = 0.0
            lengths[resets_next] = 0
        played = np.array(games, np.int64)
        episodes = EpisodeStats.joined(ended)
        return EvaluationResult(snapshot.version, snapshot.parameters, episodes, policy=policy, games=played)

    def close(self) -> None:
        self._environments.close()


class EpisodeFingerprints:
    """Numbers the finished episodes of B environments; episodes that were the same game have the same number.

    A fingerprint covers the first observation, all actions and all rewards. An emulator without sticky actions has one
    course for each start and sequence of actions: greedy play from few starts repeats a few games, and a score over any
    number of episodes rests on those few.
    """

    def __init__(self, observations: npt.NDArray[np.generic]) -> None:
        self._courses = [hashlib.blake2b(observation.tobytes()) for observation in observations]
        self._numbers: dict[bytes, int] = {}

    def step(
        self,
        actions: npt.NDArray[np.generic],
        rewards: npt.NDArray[np.float32],
        observations: npt.NDArray[np.generic],
        resets: npt.NDArray[np.bool_],
    ) -> None:
        """Add a vector step: actions [B, …], rewards float32 [B], observations [B, …].

        Environments in `resets` bool [B] only reset in this step: their next episode starts with this observation.
        """
        for i, course in enumerate(self._courses):
            if resets[i]:
                self._courses[i] = hashlib.blake2b(observations[i].tobytes())
            else:
                course.update(actions[i].tobytes() + rewards[i].tobytes())

    def number(self, environment: int) -> int:
        """The number of the episode that has just ended in `environment`. The first is 0."""
        return self._numbers.setdefault(self._courses[environment].digest(), len(self._numbers))
