"""The data that processes exchange: names, shapes, dtypes and units, said once.

Everything is time-major. `T` is the unroll length, `B` the environments of one actor, `P` the number of
parameters. An *agent step* is one decision of the policy in one environment; a *frame* is one frame of the
emulator, so frames = agent steps x frame skip.

| name             | shape         | dtype           | meaning                                                     |
| ---------------- | ------------- | --------------- | ----------------------------------------------------------- |
| observations     | [T + 1, B, …] | uint8 / float32 | what the policy saw at time t; the last one is bootstrapped |
| actions          | [T, B]        | int32           | taken in `observations[t]`                                  |
| rewards          | [T, B]        | float32         | follow `actions[t]`; clipped as training sees them          |
| discounts        | [T, B]        | float32         | discount x (1 - terminated); truncation keeps the discount  |
| mask             | [T, B]        | float32         | 1 for agent steps, 0 where the step only reset              |
| parameters       | [P]           | float32         | all weights, in the order of the `ParameterLayout`          |
| gradient         | [P]           | float32         | d loss / d parameters, in the same order                    |

Autoreset is NEXT_STEP: at the end of an episode the observation is the true last one; the following vector step
ignores its action and resets. That step is masked.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]


class Rollout(NamedTuple):
    """T vector steps of B environments, see the table above."""

    observations: npt.NDArray[np.generic]
    actions: npt.NDArray[np.int32]
    rewards: Float32Array
    discounts: Float32Array
    mask: Float32Array


class WeightSnapshot(NamedTuple):
    """The weights after `version` applied updates: `parameters` is float32 [P] and read-only."""

    version: int
    parameters: Float32Array


class EpisodeStats(NamedTuple):
    """Episodes that ended during a rollout: unclipped returns float64 [E], lengths in agent steps int64 [E]."""

    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]


class StageSeconds(NamedTuple):
    """Wall-clock seconds that an actor spent in each stage of one rollout."""

    environment: float
    acting: float
    gradient: float
    synchronise: float
    wait: float


class RolloutStatistics(NamedTuple):
    """What one gradient says about the health of learning. All are means over the agent steps of the rollout.

    `explained_variance` is 1 - Var(return - value) / Var(return); `dead_units` is the share of the last hidden
    layer's units that are zero (ReLU) for every observation of the rollout.
    """

    policy_loss: float
    value_loss: float
    entropy: float
    explained_variance: float
    dead_units: float


class GradientReport(NamedTuple):
    """What an actor sends to the learner: one gradient, and the account of the agent steps behind it.

    `version` is that of the weights that acted and that the gradient was computed with. `(actor_id, sequence)`
    is unique in a run: a replaced actor gets a new `actor_id`.
    """

    actor_id: int
    sequence: int
    version: int
    layout_fingerprint: str
    gradient: Float32Array
    agent_steps: int
    episodes: EpisodeStats
    stage_seconds: StageSeconds
    statistics: RolloutStatistics


class EvaluationResult(NamedTuple):
    """Whole episodes played with fixed weights: unclipped returns float64 [E], lengths in agent steps int64 [E]."""

    version: int
    parameters: Float32Array
    episodes: EpisodeStats
