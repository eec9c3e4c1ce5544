"""The evaluation protocol: whole episodes, unclipped returns, fixed weights."""

import hashlib
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from actors.environments import EnvironmentSpec, VectorEnvironment
from actors.policy import Policy, reset_ended_states
from shared.config import EvaluationConfig, RunConfig
from shared.errors import END_ADVICE
from shared.methods.method import make_explorer
from shared.seeds import Purpose, episode_seeds
from shared.types import EpisodeStats, EvaluationPart, EvaluationPolicy, WeightSnapshot

# Seconds without the end of an episode after which `on_wait` is called, and then again after twice as long. The first
# episodes of 20 environments of Pong end after half a minute on a busy core.
_WAIT_SECONDS = 60.0
# Vector steps of `run` between two looks at the clock.
_STEPS = 20


class Evaluator:
    """Plays whole episodes with fixed weights, or a share of them.

    Each environment plays a fixed number of the episodes, because the first ones to end would be the short ones.
    `purpose` selects the seeds of the episodes: those of `training_evaluation` differ by the version of the weights,
    since many versions that are tried on the same games would select one that these games suit.

    Args:
        first: the first environment of the share.
        count: environments of the share; None: all that follow.
        policy: acts for `count` environments. Other evaluators may use it between two calls. None: a policy of its own.
    """

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        evaluation: EvaluationConfig,
        purpose: Purpose = "training_evaluation",
        threads: int = 1,
        *,
        first: int = 0,
        count: int | None = None,
        policy: Policy | None = None,
    ) -> None:
        self._evaluation, self._first = evaluation, first
        total = evaluation.environments_in_use
        self._seeds_of = partial(episode_seeds, config.seed, purpose, total, first, count)
        self._varies = purpose == "training_evaluation"
        seeds = self._seeds_of()
        self._count = len(seeds.environments)
        self._quota = np.array(evaluation.episodes_by_environment[first : first + self._count])
        self._environments = VectorEnvironment(config.environment, self._count, threads)
        self.policy = policy or Policy(config, spec, environments=self._count, seed=seeds.actions, training=False)
        # The exploration of this evaluator: others may use the policy.
        method = self.policy.method
        self._exploration = make_explorer(
            config, spec.actions, method, self._count, seeds.actions, training=False
        ).state()

    def run(
        self,
        snapshot: WeightSnapshot,
        policy: EvaluationPolicy | None = None,
        on_wait: Callable[[str], object] = lambda _: None,
    ) -> Iterator[EvaluationPart]:
        """Play all episodes with the weights of `snapshot` and yield them as they end. Default `policy`: the settings'.

        `on_wait` is called with a line when no episode has ended for a while: some environments have no end.
        """
        self.begin(snapshot, policy or self._evaluation.policy)
        steps, remaining, since, wait = 0, int(self._quota.sum()), time.monotonic(), _WAIT_SECONDS
        while remaining:
            part = self.play(int(self._quota.max()), _STEPS)
            steps += _STEPS
            if len(part.order):
                remaining -= len(part.order)
                since, wait = time.monotonic(), _WAIT_SECONDS
                yield part
            elif time.monotonic() - since > wait:
                wait *= 2.0
                on_wait(
                    f"no episode has ended for {time.monotonic() - since:.0f} s: {remaining} are still to end, "
                    f"after {steps:,} agent steps each. {END_ADVICE}"
                )

    def begin(self, snapshot: WeightSnapshot, policy: EvaluationPolicy) -> None:
        """Begin an evaluation of the weights of `snapshot`, which must not change, from new episodes on."""
        self._snapshot, self._acting_policy = snapshot, policy
        self._returns = np.zeros(self._count, np.float64)
        self._lengths = np.zeros(self._count, np.int64)
        self._resets_next = np.zeros(self._count, bool)
        self._ended = np.zeros(self._count, np.int64)
        seeds = self._seeds_of(version=snapshot.version if self._varies else None)
        self._observations = self._environments.reset(seeds.environments)
        self._fingerprints = EpisodeFingerprints(self._observations)
        self._state = self.policy.first_state(self._count)

    def play(self, episodes: int, max_steps: int, *, number: int = 0, actor_id: int = 0) -> EvaluationPart:
        """Play until `episodes` have ended in each environment, or its share of all, but at most `max_steps`.

        An environment that is done goes on with further episodes until all are. The part has this `number` and
        `actor_id`.
        """
        self.policy.explorer.restore(self._exploration)
        # Anew in each call: training may use the same network in between.
        self.policy.assign(self._snapshot.parameters, self._snapshot.frames)
        act = self.policy.greedy if self._acting_policy == "greedy" else self.policy.act
        goal = np.minimum(self._quota, episodes)
        ended: list[EpisodeStats] = []
        which: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
        order, games = which.copy(), list[int]()
        agent_steps = 0
        for _ in range(max_steps):
            if (self._ended >= goal).all():
                break
            resets = self._resets_next
            output = act(self._observations, self._state)
            actions, self._state = output.actions, reset_ended_states(output.state, resets)
            result = self._environments.step(actions)
            self._observations = result.observations
            self._fingerprints.step(actions, result.rewards, result.observations, resets)
            self._returns += np.where(resets, 0.0, result.rewards)
            self._lengths += ~resets
            agent_steps += int((~resets).sum())
            self._resets_next = ended_now = result.terminated | result.truncated
            counted = ended_now & (self._ended < self._quota)
            if counted.any():
                info = {name: values[counted] for name, values in result.info.items()}
                ended.append(EpisodeStats(self._returns[counted], self._lengths[counted], info))
                which.append(self._first + np.flatnonzero(counted))
                order.append(self._ended[counted])
                games.extend(map(self._fingerprints.number, np.flatnonzero(counted).tolist()))
                self._ended[counted] += 1
            self._returns[ended_now] = 0.0
            self._lengths[ended_now] = 0
        self._exploration = self.policy.explorer.state()
        columns = np.concatenate(which), np.concatenate(order), np.array(games, np.int64)
        return EvaluationPart(actor_id, number, EpisodeStats.joined(ended), *columns, agent_steps)

    def close(self) -> None:
        self._environments.close()


class EpisodeFingerprints:
    """Numbers the finished episodes of B environments by their course: the same game has the same number.

    A fingerprint covers the first observation, all actions and all rewards. An emulator without sticky actions has one
    course for each start and sequence of actions: greedy play from few starts repeats a few games, and a score over any
    number of episodes rests on those few. The upper half of a number is of the start and the actions alone: see
    `launch.loop.evaluation.distinct`.
    """

    def __init__(self, observations: npt.NDArray[np.generic]) -> None:
        self._choices = [hashlib.blake2b(observation.tobytes()) for observation in observations]
        self._courses = [choices.copy() for choices in self._choices]

    def step(
        self,
        actions: npt.NDArray[np.generic],
        rewards: npt.NDArray[np.float64],
        observations: npt.NDArray[np.generic],
        resets: npt.NDArray[np.bool_],
    ) -> None:
        """Add a vector step: actions [B, …], rewards float64 [B], observations [B, …].

        Environments in `resets` bool [B] only reset in this step: their next episode starts with this observation.
        """
        with np.errstate(over="ignore"):
            shortened = rewards.astype(np.float32)
        for i, course in enumerate(self._courses):
            if resets[i]:
                self._choices[i] = hashlib.blake2b(observations[i].tobytes())
                self._courses[i] = self._choices[i].copy()
            else:
                self._choices[i].update(actions[i].tobytes())
                course.update(actions[i].tobytes() + shortened[i].tobytes())

    def number(self, environment: int) -> int:
        """The number of the episode that has just ended in `environment`, int64."""
        halves = (of[environment].digest()[:4] for of in (self._choices, self._courses))
        return int.from_bytes(b"".join(halves), signed=True)
