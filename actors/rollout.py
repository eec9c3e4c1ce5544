"""Collection of T vector steps into one rollout, and of the episodes that end in it."""

import numpy as np
import numpy.typing as npt

from actors.environments import NonFinite, StepResult
from shared.config import RunConfig
from shared.graph import aligned
from shared.moments import Moments, factor_of_rewards
from shared.types import ActionSpec, EpisodeStats, Float32Array, Rollout

_MAX_NORMALISED_REWARD = 10.0


class RolloutBuilder:
    """Buffers for one rollout, reused for every rollout of an actor.

    It tracks the autoreset: the vector step after an episode's end only resets, is masked, and is no agent step.

    Its numbers are always finite: a non-finite reward becomes 0, as non-finite observations have before. `non_finite`
    of a finished rollout names one that it needs; the last observation of a terminated episode is not needed.

    Training sees rewards scaled and clipped, or, normalised, times `reward_factor`; episode returns are neither. While
    the factor is None, the builder divides by the deviation of the discounted returns that it has seen itself: with
    unscaled rewards the value loss would be nearly all of the first gradients.
    """

    def __init__(
        self, config: RunConfig, observation_shape: tuple[int, ...], observation_dtype: str, actions: ActionSpec
    ) -> None:
        environments, settings = config.actor.environments, config.environment
        shape = (config.actor.unroll_length, environments)
        self._observations = aligned((shape[0] + 1, environments, *observation_shape), observation_dtype)
        self._slots = list(self._observations)
        self._actions = np.empty((*shape, *actions.shape), actions.dtype)
        self._no_actions = np.zeros((environments, *actions.shape), actions.dtype)
        self._rewards = np.empty(shape, np.float32)
        self._discounts = np.empty(shape, np.float32)
        self._mask = np.empty(shape, np.float32)
        self._discount = config.method.discount
        self._reward_scale = settings.reward_scale
        self._normalises_rewards = settings.normalise_rewards
        max_normalised = _MAX_NORMALISED_REWARD if settings.normalise_rewards else None
        self._max_reward = 1.0 if settings.clip_rewards else max_normalised
        self.reward_factor: float | None = None
        # G ← γG + r of each environment, and all G of a rollout.
        self._discounted_return = np.zeros(environments, np.float64)
        self._discounted_returns = np.zeros(shape, np.float64)
        self._returns_seen = Moments.zero(1)
        # Discount 0 where a life was lost, without ending the episode.
        self._terminal_on_life_loss = settings.terminal_on_life_loss
        self._t = 0
        self.resets = np.zeros(environments, bool)
        self._episode_returns = np.zeros(environments, np.float64)
        self._episode_lengths = np.zeros(environments, np.int64)
        self._finished: list[EpisodeStats] = []
        self._reward_sum = 0.0
        self.non_finite = ""
        # The observations with replaced numbers, and the newest such number.
        self._replaced = np.zeros((shape[0] + 1, environments), bool)
        self._replaced_number = ""

    def begin(self, observations: npt.NDArray[np.generic] | None = None, non_finite: NonFinite | None = None) -> None:
        """Begin a rollout at `observations` [B, …], by default the last ones of the previous rollout."""
        self._slots[0][...] = self._slots[-1] if observations is None else observations
        self._t = 0
        self.non_finite = ""
        self._replaced[0] = self._replaced[-1]
        self._replaced[1:] = False
        self._note_observations(0, non_finite)

    @property
    def observations(self) -> npt.NDArray[np.generic]:
        """Observations [B, …] at the current step; valid until the next rollout begins."""
        return self._slots[self._t]

    @property
    def next_observations(self) -> npt.NDArray[np.generic]:
        """The buffer [B, …] of the next observations. An environment that writes there saves a copy."""
        return self._slots[self._t + 1]

    def add(self, actions: npt.NDArray[np.generic], result: StepResult) -> None:
        """Add one vector step: `actions` [B] or [B, D] were taken in `observations` and led to `result`."""
        t, live = self._t, ~self.resets
        # Environments usually write to the buffer themselves.
        if result.observations is not self._slots[t + 1]:
            self._slots[t + 1][...] = result.observations
        self._actions[t] = actions
        unscaled = result.rewards
        # A return keeps the precision of its rewards: nine of -0.1 reach a target of -0.9.
        with np.errstate(over="ignore"):
            rewards = (unscaled * self._reward_scale).astype(np.float32)
        if not np.isfinite(rewards).all():
            rewards, unscaled = self._without_non_finite(rewards, unscaled, live)
        self._rewards[t] = rewards
        terminal = result.terminated
        if self._terminal_on_life_loss:
            terminal = terminal | (result.lost_life & live)
        self._discounts[t] = np.where(terminal, 0.0, self._discount)
        self._mask[t] = live
        self._t += 1

        counted = unscaled * live
        self._reward_sum += float(counted.sum())
        self._episode_returns += counted
        self._episode_lengths += live
        ended = result.terminated | result.truncated
        if self._normalises_rewards:
            scaled = unscaled * self._reward_scale
            self._discounted_return = self._discount * self._discounted_return + scaled
            self._discounted_returns[t] = self._discounted_return
            self._discounted_return[ended | ~live] = 0.0
        if ended.any():
            info = {name: values[ended] for name, values in result.info.items()}
            returns, lengths = self._episode_returns[ended], self._episode_lengths[ended]
            self._finished.append(EpisodeStats(returns, lengths, info, np.flatnonzero(ended)))
            self._episode_returns[ended] = 0.0
            self._episode_lengths[ended] = 0
        self.resets = ended
        self._note_observations(t + 1, result.non_finite)

    def _without_non_finite(
        self, rewards: Float32Array, unscaled: npt.NDArray[np.float64], live: npt.NDArray[np.bool_]
    ) -> tuple[Float32Array, npt.NDArray[np.float64]]:
        faults = ~np.isfinite(rewards)
        counted = faults & live
        if counted.any():
            first = np.flatnonzero(counted)[0]
            scaled = f" ({rewards[first]} as training sees it)" if np.isfinite(unscaled[first]) else ""
            self.non_finite = self.non_finite or f"reward {unscaled[first]}{scaled}"
            with np.errstate(over="ignore"):
                self._episode_returns[counted] += unscaled[counted].astype(np.float32)
        return np.where(faults, np.float32(0), rewards), np.where(faults, 0.0, unscaled)

    def _note_observations(self, t: int, non_finite: NonFinite | None) -> None:
        if non_finite is not None:
            self._replaced[t], self._replaced_number = non_finite.environments, non_finite.number

    def _needs_replaced(self) -> bool:
        """True if an action or a bootstrap follows from an observation with a replaced number."""
        live = self._mask > 0.5
        bootstraps = live & (self._discounts != 0.0)
        return bool((self._replaced[:-1] & live).any() or (self._replaced[1:] & bootstraps).any())

    def finish(
        self,
        next_actions: npt.NDArray[np.generic] | None = None,
        first_state: tuple[Float32Array, ...] = (),
        last_state: tuple[Float32Array, ...] = (),
    ) -> Rollout:
        """The rollout, with the actions in its last observations and the states of the network's memory.

        Valid until the next one begins.
        """
        assert self._t == len(self._actions), "a rollout is finished when T steps have been added"
        if next_actions is None:
            next_actions = self._no_actions
        if not self.non_finite and self._needs_replaced():
            self.non_finite = f"observation {self._replaced_number}"
        return Rollout(
            self._observations, self._actions, self._training_rewards(), self._discounts, self._mask, next_actions,
            first_state, last_state,
        )  # fmt: skip

    def _training_rewards(self) -> Float32Array:
        rewards, most = self._rewards, self._max_reward
        if self._normalises_rewards:
            factor = self._own_factor() if self.reward_factor is None else self.reward_factor
            with np.errstate(over="ignore"):
                rewards = rewards * np.float32(factor)
        return rewards if most is None else np.clip(rewards, -most, most)

    def _own_factor(self) -> float:
        returns = self.return_moments
        if returns is not None and not self.non_finite:
            self._returns_seen = self._returns_seen.merge(returns)
        return factor_of_rewards(self._returns_seen) or 1.0

    def take_episodes(self) -> EpisodeStats:
        """The episodes that have ended since the last call."""
        finished, self._finished = self._finished, []
        return EpisodeStats.joined(finished)

    def take_rewards(self) -> float:
        """The sum of the unclipped rewards of all environments since the last call."""
        rewards, self._reward_sum = self._reward_sum, 0.0
        return rewards

    @property
    def return_moments(self) -> Moments | None:
        if not self._normalises_rewards:
            return None
        return Moments.of(self._discounted_returns[self._mask > 0.5][:, None])
