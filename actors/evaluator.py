"""The evaluation protocol: whole episodes, unclipped returns, fixed weights."""

from collections.abc import Callable

import numpy as np

from actors.environments import EnvironmentSpec, VectorEnvironment
from actors.policy import Policy
from shared.config import EvaluationConfig, RunConfig
from shared.layout import ParameterLayout
from shared.types import EpisodeStats, EvaluationResult, WeightSnapshot

# Apart from every actor's, so that no evaluation replays an episode of training.
_SEED_OFFSET = 500_000_003


class Evaluator:
    """Plays whole episodes with the weights it is given.

    Each environment plays a fixed share of the episodes: taking the first to end would favour short ones.

    Args:
        config: of the run: environment, network and seed.
        spec: of its environment.
        evaluation: how many episodes, how many at a time, and by which policy.
    """

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, evaluation: EvaluationConfig) -> None:
        self._evaluation = evaluation
        self._count = min(evaluation.environments, evaluation.episodes)
        self._seed = (config.seed + _SEED_OFFSET) % 2**31
        self._environments = VectorEnvironment(config.environment, self._count, config.actor.environment_threads)
        self._policy = Policy(config, spec, environments=self._count, seed=self._seed, training=False)

    @property
    def layout(self) -> ParameterLayout:
        """Of the weights that this evaluator takes."""
        return self._policy.layout

    def run(self, snapshot: WeightSnapshot, on_ended: Callable[[int], object] | None = None) -> EvaluationResult:
        """Play the episodes with the weights of `snapshot`. `on_ended` is told how many have ended, as they do."""
        self._policy.assign(snapshot.parameters, snapshot.frames)
        act = self._policy.greedy if self._evaluation.policy == "greedy" else self._policy.sample
        quota = np.full(self._count, self._evaluation.episodes // self._count)
        quota[: self._evaluation.episodes % self._count] += 1
        returns = np.zeros(self._count, np.float64)
        lengths = np.zeros(self._count, np.int64)
        resets_next = np.zeros(self._count, bool)
        all_returns: list[float] = []
        all_lengths: list[int] = []
        observations = self._environments.reset(self._seed)
        while quota.any():
            result = self._environments.step(act(observations))
            observations = result.observations
            returns += result.rewards * ~resets_next
            lengths += ~resets_next
            resets_next = result.terminated | result.truncated
            counted = resets_next & (quota > 0)
            all_returns.extend(returns[counted].tolist())
            all_lengths.extend(lengths[counted].tolist())
            quota[counted] -= 1
            if on_ended is not None and counted.any():
                on_ended(int(counted.sum()))
            returns[resets_next] = 0.0
            lengths[resets_next] = 0
        episodes = EpisodeStats(np.array(all_returns, np.float64), np.array(all_lengths, np.int64))
        return EvaluationResult(snapshot.version, snapshot.parameters, episodes)

    def close(self) -> None:
        """Release the environments."""
        self._environments.close()
