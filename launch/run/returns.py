"""The mean returns of training: over the same number of episodes of each environment, and by the latest rewards."""

import math
from collections import deque

import numpy as np

from learner.account import RETURN_WINDOW
from shared.types import EpisodeStats, GradientReport


class TrainingReturns:
    """The mean return of training, over the same number of episodes of each environment.

    It crosses the target of a run, and chooses its best weights before an evaluation does.

    Short episodes end first, so the first 100 of many environments are biased, and environments that began together
    stay in phase. The last episode of an environment has each length with the probability of that length, if there was
    time for it (renewal theory). A truncated episode has ended, too.

    Attributes:
        is_representative: at the last `update` there were 100 episodes, and each environment had ended one.
        mean: of the finite returns at the last `update`; None without one, and until each environment has ended its
            share of 100.
        begins_untrained: False if the first returns here are of trained play.
        untrained: the first mean, close to untrained play. None before. Only this is in a checkpoint, since after a
            resume all environments are in their first episodes again.
        recent: the estimate by the latest rewards.
    """

    def __init__(self, environments: int) -> None:
        """`environments`: of each actor."""
        self.is_representative = False
        self.mean: float | None = None
        self.untrained: float | None = None
        self.begins_untrained = True
        self.recent = RecentReturn()
        self._environments = environments
        # The last returns of each environment, by actor, in the order of the actors' last reports.
        self._returns: dict[int, list[deque[float]]] = {}
        # `update` is called for each event, and most end no episode: whether returns have changed since the last one,
        # whether there were 100 episodes, and the actors.
        self._changed, self._before = False, (False, 0)

    def add(self, actor_id: int, episodes: EpisodeStats) -> None:
        """Add the episodes in an actor's report."""
        self._changed |= actor_id not in self._returns or len(episodes.returns) > 0
        returns = self._returns.pop(actor_id, None) or [deque(maxlen=RETURN_WINDOW) for _ in range(self._environments)]
        self._returns[actor_id] = returns
        for environment, value in zip(episodes.environments.tolist(), episodes.returns.tolist(), strict=True):
            returns[environment].append(value)

    def update(self, episodes: int, actors: int) -> None:
        """Set `is_representative` and the means, for `episodes` in the window and `actors` at work."""
        # The actors with the oldest reports: most are gone, and one that is not is counted anew from its next report.
        while len(self._returns) > actors:
            del self._returns[next(iter(self._returns))]
        now = episodes >= RETURN_WINDOW, actors
        if not self._changed and now == self._before:
            return
        self._changed, self._before = False, now
        fewest = 0
        if episodes >= RETURN_WINDOW and 0 < actors == len(self._returns):
            fewest = min(len(last) for returns in self._returns.values() for last in returns)
        # The episodes of each environment among the last 100.
        each = max(1, RETURN_WINDOW // (max(1, actors) * self._environments))
        self.is_representative, self.mean = fewest > 0, self._mean_of_last(each) if fewest >= each else None
        if self.untrained is None and self.begins_untrained:
            self.untrained = self.mean

    def _mean_of_last(self, count: int) -> float | None:
        last = [value for returns in self._returns.values() for each in returns for value in list(each)[-count:]]
        finite_ones = [value for value in last if math.isfinite(value)]
        return float(np.mean(finite_ones)) if finite_ones else None


# Episodes whose agent steps `RecentReturn` covers, and of which it takes the mean length.
_RECENT_EPISODES = 20


class RecentReturn:
    """An estimate of the present mean return: reward per agent step × agent steps of an episode.

    The last 100 episodes are old: an episode of Pong with 2,000 agent steps takes 64 environments 128,000. The rewards
    of the last agent steps are those of the present weights, in the middle of episodes, too. The rate is over as many
    agent steps as 20 episodes have, and the length is the mean of the last 20, so that by the renewal-reward theorem
    the product is the mean return where both are constant. It decides nothing by itself.
    """

    def __init__(self) -> None:
        self._rollouts: deque[tuple[int, float]] = deque()
        # Agent steps and rewards of rollouts whose further reports have new agent steps, by actor: the first report of
        # a rollout has all of its rewards.
        self._incomplete: dict[int, tuple[int, float]] = {}
        self._agent_steps, self._rewards = 0, 0.0
        self._lengths: deque[int] = deque(maxlen=_RECENT_EPISODES)

    def add(self, report: GradientReport) -> None:
        self._lengths.extend(report.episodes.lengths.tolist())
        agent_steps, rewards = self._incomplete.pop(report.actor_id, (0, 0.0))
        rollout = agent_steps + report.agent_steps, rewards + report.rewards
        if report.new_steps_follow:
            self._incomplete[report.actor_id] = rollout
            return
        self._rollouts.append(rollout)
        self._agent_steps += rollout[0]
        self._rewards += rollout[1]
        # Rollouts that 20 episodes of the present length do not need any more.
        while self._agent_steps - self._rollouts[0][0] >= max(1, sum(self._lengths)):
            agent_steps, rewards = self._rollouts.popleft()
            self._agent_steps -= agent_steps
            self._rewards -= rewards

    @property
    def value(self) -> float | None:
        """None before 20 episodes have ended, and their agent steps have been played."""
        steps = sum(self._lengths)
        if len(self._lengths) < _RECENT_EPISODES or not 0 < steps <= self._agent_steps:
            return None
        return self._rewards / self._agent_steps * steps / _RECENT_EPISODES
