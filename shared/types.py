"""The data that processes exchange: names, shapes, dtypes and units, said once.

Everything is time-major. `T` is the unroll length, `B` the environments of one actor, `P` the number of
parameters. Images are [height, width, stack]; images and numbers together are a row of bytes, see
`shared.types`. An *agent step* is one decision of the policy in one environment; a *frame* is one frame of the
emulator, so frames = agent steps x frame skip.

| name             | shape         | dtype           | meaning                                                     |
| ---------------- | ------------- | --------------- | ----------------------------------------------------------- |
| observations     | [T + 1, B, …] | uint8 / float32 | what the policy saw at time t; the last one is bootstrapped |
| actions          | [T, B(, D)]   | int32 / float32 | taken in `observations[t]`; D dimensions, or choices        |
| next_actions     | [B(, D)]      | as actions      | taken in `observations[T]`, for Sarsa; else zeros           |
| rewards          | [T, B]        | float32         | follow `actions[t]`; scaled and clipped, as training sees   |
| discounts        | [T, B]        | float32         | discount x (1 - terminated); truncation keeps the discount  |
| mask             | [T, B]        | float32         | 1 for agent steps, 0 where the step only reset              |
| first_state      | [B, U] each   | float32         | what a network with a memory carries into time 0            |
| last_state       | [B, U] each   | float32         | and, as it acted, into time T                               |
| parameters       | [P]           | float32         | all weights, in the order of the `ParameterLayout`          |
| gradient         | [P]           | float32         | d loss / d parameters, in the same order                    |

Autoreset is NEXT_STEP: at the end of an episode the observation is the true last one; the following vector step
ignores its action and resets. That step is masked.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from shared.moments import Moments

Float32Array = npt.NDArray[np.float32]
EvaluationPolicy = Literal["sampled", "greedy"]


class ActionSpec(NamedTuple):
    """What one action is: a choice among `size`, several choices at once, or a float32 vector of `size` dimensions.

    `choices` says among how many each of several choices is; their sum is the `size`. Continuous actions are in units
    of half the range: -1 and 1 are the bounds. Environments clip to them.
    """

    size: int
    continuous: bool = False
    choices: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one action."""
        if self.continuous:
            return (self.size,)
        return (len(self.choices),) if self.choices else ()

    @property
    def dtype(self) -> str:
        """Dtype of an array of actions."""
        return "float32" if self.continuous else "int32"


class Rollout(NamedTuple):
    """T vector steps of B environments, see the table above. Networks without a memory have no states."""

    observations: npt.NDArray[np.generic]
    actions: npt.NDArray[np.generic]
    rewards: Float32Array
    discounts: Float32Array
    mask: Float32Array
    next_actions: npt.NDArray[np.generic]
    first_state: tuple[Float32Array, ...] = ()
    last_state: tuple[Float32Array, ...] = ()


class WeightSnapshot(NamedTuple):
    """The weights after `version` applied updates: `parameters` is float32 [P] and read-only.

    `frames` are the global frames when it was made; schedules of exploration follow them. `reward_factor` is what
    rewards are multiplied by where they are normalised.
    """

    version: int
    parameters: Float32Array
    frames: int = 0
    reward_factor: float = 1.0


class EpisodeStats(NamedTuple):
    """Episodes that ended during a rollout: unclipped returns float64 [E], lengths in agent steps int64 [E].

    `info` has the numbers that the environment gave at their ends, float64 [E] by name; NaN where it gave none.
    """

    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    info: dict[str, npt.NDArray[np.float64]] = {}  # noqa: RUF012


def info_means(info: dict[str, npt.NDArray[np.float64]]) -> dict[str, float]:
    """The mean of each of an environment's numbers over the episodes that have it; without those that none has."""
    known = {name: values[~np.isnan(values)] for name, values in info.items()}
    return {name: float(values.mean()) for name, values in known.items() if len(values)}


class StageSeconds(NamedTuple):
    """Wall-clock seconds that an actor spent in each stage of one call: of a rollout that it played and differentiated,
    or of one more gradient of it, in which it did not play."""

    environment: float
    acting: float
    gradient: float
    synchronise: float
    wait: float


class GradientReport(NamedTuple):
    """What an actor sends to the learner: one gradient, and the account of the agent steps behind it.

    `version` is that of the weights that the gradient was computed with; they acted, too, unless the rollout had been
    differentiated before. `(actor_id, sequence)` is unique in a run: a replaced actor gets a new `actor_id`. `samples`
    are the agent steps that the gradient is over, and `agent_steps` those of them that no gradient was over before.
    `statistics` are means over the samples, by the names of the method. `return_moments` of the
    discounted returns of its steps are there where rewards are normalised, and `observation_moments` where
    observations are scaled by running moments. `unfinished_environments` counts those of the actor's environments
    that have ended no episode yet.
    """

    actor_id: int
    sequence: int
    version: int
    layout_fingerprint: str
    gradient: Float32Array
    agent_steps: int
    samples: int
    episodes: EpisodeStats
    stage_seconds: StageSeconds
    statistics: dict[str, float]
    observation_moments: Moments | None = None
    return_moments: Moments | None = None
    unfinished_environments: int = 0


class AggregatedReport(NamedTuple):
    """The reports of several actors of one node, and the sum of their gradients in their order: float32 [P].

    The reports themselves carry none. Those whose entry in `finite` is False are in no sum. `actor_id` is that of the
    node's aggregator.
    """

    actor_id: int
    gradient: Float32Array
    reports: tuple[GradientReport, ...]
    finite: tuple[bool, ...]


class Video(NamedTuple):
    """An animated GIF, and its size in pixels."""

    gif: bytes
    width: int
    height: int


class EvaluationResult(NamedTuple):
    """Whole episodes played with fixed weights: unclipped returns float64 [E], lengths in agent steps int64 [E].

    `video` shows one more episode, where the run asks for it, and `video_error` says why there is none. `policy` is how
    actions were chosen. `games` int64 [E] has one number for episodes that were the same game, from the start to the
    end; None where nobody looked.
    """

    version: int
    parameters: Float32Array
    episodes: EpisodeStats
    video: Video | None = None
    policy: EvaluationPolicy = "sampled"
    games: npt.NDArray[np.int64] | None = None
    video_error: str | None = None


def standard_error(returns: npt.NDArray[np.float64], games: npt.NDArray[np.int64] | None) -> float | None:
    """Standard error of the mean of returns float64 [E], over the distinct games; None for a single game.

    A repeated game adds no information: it counts once, weighted by how often it was played. Without repetitions this
    is s/√E. `games` int64 [E] has one number for episodes that were the same game; None: all were different.
    """
    if games is None:
        games = np.arange(len(returns))
    _, first, times_played = np.unique(games, return_index=True, return_counts=True)
    count = len(first)
    if count < 2:
        return None
    weights = times_played / np.sum(times_played)
    deviations = returns[first] - np.sum(weights * returns[first])
    return float(np.sqrt(count / (count - 1) * np.sum((weights * deviations) ** 2)))


class ImagePart(NamedTuple):
    """An image of an observation: its name as an input of an exported network, and [height, width, channels]."""

    name: str
    shape: tuple[int, int, int]


class ObservationParts(NamedTuple):
    """The parts of an observation that has images beside numbers, and where each lies in it: a row of bytes, uint8 [R].

    First all numbers as one vector, float32 in this machine's byte order, then each image, uint8. So an observation is
    one array of one dtype, whatever it is of: rollouts, buffers and minibatches treat all alike, and images do not take
    four times their memory. `shared.networks.multi_input` splits the row again into the same bits.

    `numbers` are what the vector is made of, by name, with how many each has. `images` has one entry or more.
    """

    numbers: tuple[tuple[str, int], ...]
    images: tuple[ImagePart, ...]

    @property
    def vector_size(self) -> int:
        """How many numbers there are."""
        return sum(count for _, count in self.numbers)

    @property
    def row_size(self) -> int:
        """R, the bytes of one observation."""
        return self.vector_bytes.stop + sum(int(np.prod(image.shape)) for image in self.images)

    @property
    def vector_bytes(self) -> slice:
        """Where the vector lies in a row."""
        return slice(0, 4 * self.vector_size)

    def image_bytes(self) -> Iterator[tuple[ImagePart, slice]]:
        """Each image, and where it lies in a row."""
        start = self.vector_bytes.stop
        for image in self.images:
            stop = start + int(np.prod(image.shape))
            yield image, slice(start, stop)
            start = stop

    def vectors(self, rows: npt.NDArray[np.uint8]) -> Float32Array:
        """The vectors float32 [..., size] of observations uint8 [..., R], in their place: what is written is in the
        rows."""
        return rows[..., self.vector_bytes].view(np.float32)
