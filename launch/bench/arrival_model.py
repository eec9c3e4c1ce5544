"""The order in which the reports of many actors arrive at one learner, drawn from the queue of `tributary plan`."""

import heapq
import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from launch.loop.arrivals import Arrival, ArrivalsWriter
from shared.config.checks import at_least, between, positive

_DRAWS = 4096


@dataclass(frozen=True)
class ArrivalModel:
    """Actors that compute for random times, and a learner that takes one gradient after the other.

    It is the closed queue of `launch.bench.queueing`, played event by event: an actor computes, queues for the learner,
    is served when those before it have been, and starts again with the weights of that moment. The defaults are what
    `tributary plan` measured for actors of 32 x 20 on Pong; one learner is then full at 63 actors. Times matter only by
    their ratios.
    """

    rollout_seconds: float = 0.2536
    """Mean of one rollout with one gradient over it: 640 agent steps at 2,524 a second."""
    learner_seconds: float = 0.00406
    """What the learner takes for one gradient."""
    gradient_share: float = 0.2
    """Share of differentiating in a rollout with one gradient. Where a rollout gives several, the later calls play
    nothing."""
    spread: float = 0.3
    """σ of the log-normal that a time is its mean times."""
    stragglers: float = 0.0
    """Share of the actors that are slow: those with the highest ids."""
    straggler_factor: float = 5.0
    """How many times as long they take."""

    def __post_init__(self) -> None:
        for name in ("rollout_seconds", "straggler_factor"):
            positive(f"model.{name}", getattr(self, name))
        for name in ("learner_seconds", "spread"):
            at_least(f"model.{name}", getattr(self, name), 0.0)
        for name in ("gradient_share", "stragglers"):
            between(f"model.{name}", getattr(self, name), 0.0, 1.0)

    def call_seconds(self, epochs: int = 1, minibatches: int = 1) -> list[float]:
        """The mean of each of the E x M calls of a rollout: the first one plays, each differentiates one part of M."""
        part = self.gradient_share / minibatches
        calls = [1.0 - self.gradient_share + part] + [part] * (epochs * minibatches - 1)
        return [self.rollout_seconds * call for call in calls]


class Arrived(NamedTuple):
    """Reports in the order in which a learner takes them: who reported, int32 [M], and when it was taken in, float64
    [M] seconds."""

    actor_ids: npt.NDArray[np.int32]
    seconds: npt.NDArray[np.float64]


def arrivals(
    model: ArrivalModel, actors: int, count: int, seed: int, *, epochs: int = 1, minibatches: int = 1
) -> Arrived:
    """The first `count` arrivals of so many actors, which all start at once. The same for the same arguments.

    More of them begin with fewer of them: what was drawn for a short run holds for a longer one.
    """
    random = np.random.default_rng([seed, actors])
    factors: list[float] = []
    means = model.call_seconds(epochs, minibatches)
    # One at least, where there are to be some.
    first_slow = actors - math.ceil(model.stragglers * actors)
    calls = [0] * actors

    def seconds(actor: int) -> float:
        if not factors:
            # Their mean is 1.
            factors.extend(random.lognormal(-0.5 * model.spread**2, model.spread, _DRAWS).tolist())
        slowness = model.straggler_factor if actor >= first_slow else 1.0
        return slowness * means[calls[actor] % len(means)] * factors.pop()

    ready = [(seconds(actor), actor) for actor in range(actors)]
    heapq.heapify(ready)
    ids, times = np.empty(count, np.int32), np.empty(count, np.float64)
    now = 0.0
    for i in range(count):
        computed, actor = ready[0]
        now = max(now, computed) + model.learner_seconds
        ids[i], times[i] = actor, now
        calls[actor] += 1
        heapq.heapreplace(ready, (now + seconds(actor), actor))
    return Arrived(ids, times)


def policy_lags(actor_ids: npt.NDArray[np.int32], gradients_per_update: int) -> npt.NDArray[np.int64]:
    """The policy lag int64 [M] of each arrival int32 [M], in updates, where every K arrivals make one.

    An actor computes with the version that its last report left behind, and in its first call with version 0.
    """
    numbers = np.arange(len(actor_ids))
    # Arrivals of one actor after another, each actor's in their order.
    by_actor = np.argsort(actor_ids, kind="stable")
    follows = actor_ids[by_actor][1:] == actor_ids[by_actor][:-1]
    taken_before = np.zeros(len(actor_ids), np.int64)
    taken_before[by_actor[1:]] = np.where(follows, numbers[by_actor[:-1]] + 1, 0)
    return numbers // gradients_per_update - taken_before // gradients_per_update


def write_arrivals(file: Path, actors: int, arrived: Arrived) -> None:
    """Write an order as `--replay-arrivals` takes it. The file is there whole or not at all."""
    part = file.with_name(f"{file.name}.part")
    writer = ArrivalsWriter(part, range(actors), reports_only=True)
    for actor_id in arrived.actor_ids.tolist():
        writer.add(Arrival("report", actor_id))
    writer.close()
    part.replace(file)
