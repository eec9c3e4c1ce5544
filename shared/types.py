"""The data that processes exchange: names, shapes, dtypes and units.

Everything is time-major. `T` is the unroll length, `B` the environments of one actor, `P` the number of
parameters. Images are [height, width, stack]; images and numbers together are a row of bytes, see
`ObservationParts`. With `environment.action_mask` an observation is a flat row that ends in its action mask; the `mask`
below is another one, of steps. An *agent step* is one decision of the policy in one environment; a *frame* is one frame
of the emulator, so frames = agent steps x frame skip.

| name             | shape         | dtype           | meaning                                                     |
| ---------------- | ------------- | --------------- | ----------------------------------------------------------- |
| observations     | [T + 1, B, …] | uint8 / float32 | what the policy saw at time t; the last one is bootstrapped |
| actions          | [T, B(, D)]   | int32 / float32 | taken in `observations[t]`; D dimensions, or choices        |
| next_actions     | [B(, D)]      | as actions      | taken in `observations[T]`, for Sarsa; else zeros           |
| rewards          | [T, B]        | float32         | follow `actions[t]`; scaled and clipped, as training sees   |
| discounts        | [T, B]        | float32         | γ; 0 where the step terminated, or lost a life that ends one |
| mask             | [T, B]        | float32         | 1 for agent steps, 0 where the step only reset              |
| first_state      | [B, U] each   | float32         | state of a network with a memory before time 0              |
| last_state       | [B, U] each   | float32         | the same before time T, as computed while acting            |
| parameters       | [P]           | float32         | all weights, in the order of the `ParameterLayout`          |
| gradient         | [P]           | float32         | d loss / d parameters, in the same order                    |

Autoreset is NEXT_STEP: at the end of an episode the observation is the true last one; the following vector step
ignores its action and resets. That step is masked. ale-py is an exception where an episode ends inside a frame skip:
the newest image repeats that of the step before; where a time limit ends it on the skip's last frame, it is mixed
with that. Only the bootstrap of a truncation reads it.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from shared.moments import AdvantageMoments, Moments

Float32Array = npt.NDArray[np.float32]
EvaluationPolicy = Literal["sampled", "greedy"]


class ActionSpec(NamedTuple):
    """The kind of an action: a choice among `size`, several choices at once, or a float32 vector of `size` dimensions.

    `choices` has the number of values of each of several choices; `size` is their sum. Continuous actions are in units
    of half the range: -1 and 1 are the bounds, to which environments clip.
    """

    size: int
    continuous: bool = False
    choices: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        if self.continuous:
            return (self.size,)
        return (len(self.choices),) if self.choices else ()

    @property
    def dtype(self) -> str:
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

    `frames`: the global frames at that version, for schedules of exploration. `reward_factor`: the factor of normalised
    rewards; None before the first report. `advantage_moments`: of the last advantages of all actors, where
    `actor.fresh_gradients` standardises by them.
    """

    version: int
    parameters: Float32Array
    frames: int = 0
    reward_factor: float | None = None
    advantage_moments: AdvantageMoments = AdvantageMoments()


class EpisodeStats(NamedTuple):
    """Episodes that ended during a rollout: unclipped returns float64 [E], lengths in agent steps int64 [E].

    `info` has the numbers that the environment gave at their ends, float64 [E] by name; NaN where it gave none.
    `environments` int64 [E] has the environment of each, by its number in the actor; empty for evaluations.
    """

    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    info: dict[str, npt.NDArray[np.float64]] = {}  # noqa: RUF012
    environments: npt.NDArray[np.int64] = np.empty(0, np.int64)

    @classmethod
    def joined(cls, parts: Sequence["EpisodeStats"]) -> "EpisodeStats":
        """The episodes of all parts. `info` has the same names in those that have episodes."""
        parts = [part for part in parts if len(part.returns)]
        if not parts:
            return cls(np.empty(0, np.float64), np.empty(0, np.int64))
        returns, lengths, infos, environments = zip(*parts, strict=True)
        info = {name: np.concatenate([info[name] for info in infos]) for name in infos[0]}
        return cls(np.concatenate(returns), np.concatenate(lengths), info, np.concatenate(environments))


def info_means(info: dict[str, npt.NDArray[np.float64]]) -> dict[str, float]:
    """The mean of each number over the episodes that have it, without numbers that no episode has."""
    numbers = {name: values[~np.isnan(values)] for name, values in info.items()}
    return {name: float(values.mean()) for name, values in numbers.items() if len(values)}


class StageSeconds(NamedTuple):
    """Wall-clock seconds of each stage up to a report. Reports without a rollout have no environment and acting."""

    environment: float = 0.0
    acting: float = 0.0
    gradient: float = 0.0
    synchronise: float = 0.0
    wait: float = 0.0


class GradientReport(NamedTuple):
    """The message of an actor to the learner: one gradient, and the account of its agent steps.

    `version`: of the weights at which the gradient was computed. `(actor_id, sequence)` is unique in a run: a
    replacement has a new `actor_id`. `samples` is the number of agent steps of the gradient, `agent_steps` the number
    of those that are in a gradient for the first time. `new_steps_follow`: the next gradient of the rollout has such
    agent steps, too. `statistics` are means over the samples, named by the method. `return_moments`: of the discounted
    returns, if rewards are normalised. `observation_moments`: of the observations, if they are scaled by running
    moments. `advantage_moments`: of the advantages of this rollout, if they are standardised by running moments.
    `rewards` is the sum of the unclipped rewards of all environments since the last report. `non_finite` names a non-
    finite number in the rollout or its gradient: the report then stands for the rest of its rollout, and its gradient
    is not applied. The memory of `gradient` may change after the actor's next report has been taken in.
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
    advantage_moments: AdvantageMoments | None = None
    rewards: float = 0.0
    non_finite: str = ""
    new_steps_follow: bool = False


class Heartbeat(NamedTuple):
    """The result of a call that ended without a gradient. From an actor: it played a rollout whose gradients follow in
    later calls at newer weights, or a warm-up rollout. From a node's aggregator: it is alive, its sum incomplete.

    `new_steps_follow`: the next report has agent steps that are in no gradient yet. False after a warm-up rollout, and
    for a node without actors: a run that stops does not wait for their next calls.
    """

    actor_id: int
    new_steps_follow: bool = True


class NextCall(Enum):
    """The kind of an actor's next call.

    WARM_UP: play a rollout that is in no gradient and no count. ROLLOUT: play a rollout and, without
    `actor.fresh_gradients`, compute its first gradient. GRADIENT: compute the next gradient of the last rollout.
    """

    WARM_UP = "warm_up"
    ROLLOUT = "rollout"
    GRADIENT = "gradient"


class AggregatedReport(NamedTuple):
    """The reports of several actors of one node, without gradients, and the sum of their gradients float32 [P].

    The sum is in the order of the reports, without non-finite gradients. `actor_id`: of the node's aggregator.
    """

    actor_id: int
    gradient: Float32Array
    reports: tuple[GradientReport, ...]


class EvaluationShare(NamedTuple):
    """The part of an evaluation that one actor plays, or the actors of one node, over several calls.

    `number`: of the evaluation in the run. Its environments from `first` on, `size` of them, each play until `episodes`
    of their episodes have ended. Only the first call of an evaluation is sure to carry its weights: the receiver keeps
    them, and ignores those of later calls. `alone`: the run stops, and actors of a node without a share play nothing.
    """

    number: int
    policy: EvaluationPolicy
    first: int
    size: int
    episodes: int
    alone: bool = False


class EvaluationPart(NamedTuple):
    """The episodes of evaluation `number` that ended in one call of an actor.

    Entry i is the episode `order[i]`, from 0 on, of environment `environments[i]`; both are int64 [E]. `games` int64
    [E] is the same for episodes that were the same game from start to end. `agent_steps` are all of the call.
    """

    actor_id: int
    number: int
    episodes: EpisodeStats
    environments: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]
    games: npt.NDArray[np.int64]
    agent_steps: int

    @classmethod
    def joined(cls, parts: Sequence["EvaluationPart"]) -> "EvaluationPart":
        """The episodes of all parts, one at least, with the actor and the number of the first."""
        _, _, episodes, *columns, agent_steps = zip(*parts, strict=True)
        environments, order, games = map(np.concatenate, columns)
        joined = EpisodeStats.joined(episodes)
        return cls(*parts[0][:2], joined, environments, order, games, sum(agent_steps))


class ImagePart(NamedTuple):
    """An image of an observation: its input name in an exported network, and [height, width, channels]."""

    name: str
    shape: tuple[int, int, int]


class ObservationParts(NamedTuple):
    """The parts of an observation that has images beside numbers, and where each lies in it: a row of bytes, uint8 [R].

    First all numbers as one vector, float32 in this machine's byte order, then each image, uint8. Every observation is
    thus one array of one dtype: rollouts, buffers and minibatches treat all alike, and images stay uint8. The network
    `shared.networks.composed` splits the row into the same bits.

    `numbers` has the name and size of each part of the vector. `images` has at least one entry.
    """

    numbers: tuple[tuple[str, int], ...]
    images: tuple[ImagePart, ...]

    @property
    def vector_size(self) -> int:
        return sum(count for _, count in self.numbers)

    @property
    def row_size(self) -> int:
        """R, the bytes of one observation."""
        return self.vector_bytes.stop + sum(int(np.prod(image.shape)) for image in self.images)

    @property
    def vector_bytes(self) -> slice:
        return slice(0, 4 * self.vector_size)

    def image_bytes(self) -> Iterator[tuple[ImagePart, slice]]:
        """Each image, and its range in a row."""
        start = self.vector_bytes.stop
        for image in self.images:
            stop = start + int(np.prod(image.shape))
            yield image, slice(start, stop)
            start = stop

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each part by name; the numbers are `vector`."""
        numbers: dict[str, tuple[int, ...]] = {"vector": (self.vector_size,)} if self.numbers else {}
        return {image.name: image.shape for image in self.images} | numbers

    def images_of(self, row: npt.NDArray[Any] | None) -> dict[str, npt.NDArray[Any]] | None:
        """The images of one row by name; None for None."""
        if row is None:
            return None
        return {image.name: row[where].reshape(image.shape) for image, where in self.image_bytes()}

    def vectors(self, rows: npt.NDArray[np.uint8]) -> Float32Array:
        """The vectors float32 [..., size] of observations uint8 [..., R], as a view."""
        return rows[..., self.vector_bytes].view(np.float32)
