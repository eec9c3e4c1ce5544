"""Arrivals of virtual actors: who reports next, and how old its weights are. No Ray, no environment."""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class VirtualArrival(NamedTuple):
    """A report of `actor_id`, computed with the weights of `version`."""

    actor_id: int
    version: int


class VirtualActors:
    """Actors that report after random times, log-normal with σ 0.3; every eighth takes five times as long.

    Args:
        seed: of the times.
        calls_in_flight: rollouts asked of one actor at a time.
    """

    def __init__(self, seed: int, calls_in_flight: int = 1) -> None:
        self._random = np.random.default_rng(seed)
        self._calls_in_flight = calls_in_flight
        self._now = 0.0
        self._alive: list[int] = []
        self._started = 0
        self._calls: list[tuple[float, int, int]] = []

    def resize(self, actors: int, version: int) -> None:
        """Have so many actors from now on; new ones start at the weights of `version`."""
        gone, self._alive = set(self._alive[actors:]), self._alive[:actors]
        self._calls = [call for call in self._calls if call[1] not in gone]
        heapq.heapify(self._calls)
        while len(self._alive) < actors:
            self._alive.append(self._started)
            for _ in range(self._calls_in_flight):
                self.dispatch(self._started, version)
            self._started += 1

    def dispatch(self, actor_id: int, version: int) -> None:
        """Have an actor compute a gradient with the weights of `version`."""
        seconds = (5.0 if actor_id % 8 == 7 else 1.0) * self._random.lognormal(0.0, 0.3)
        heapq.heappush(self._calls, (self._now + seconds, actor_id, version))

    def next(self) -> VirtualArrival:
        """The report that comes next."""
        self._now, actor_id, version = heapq.heappop(self._calls)
        return VirtualArrival(actor_id, version)


def steps(phases: Sequence[int], gradients: int) -> list[int]:
    """How many actors there are at each arrival, where each number of them stays for so many gradients."""
    return [actors for actors in phases for _ in range(gradients)]
