"""The executor in one process and one thread: deterministic for a seed. It serves tests, debugging and small tasks."""

import itertools
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from actors.actor import Actor
from actors.environments import EnvironmentSpec
from launch.loop.executor import Completion, Executor
from shared.config import RunConfig
from shared.types import EvaluationShare, NextCall, WeightSnapshot

# Durations of an actor's calls with `actor.fresh_gradients`, in units of one gradient over a whole rollout. On one core
# environment and acting take 300 to 360 µs an agent step of Pong with the A3C network, a gradient 65 to 80.
_PLAY_TIME = 4.0
_GRADIENT_TIME = 1.0
# Calls of processes differ in length. With equal ones the actors would keep their order for the whole run, and the same
# ones would always share an update: 16 actors of Pong then learned later than as processes.
_SHORTEST, _LONGEST = 0.7, 1.3


class _Call(NamedTuple):
    """A call of an actor, and the weights of its dispatch. `ends` is the simulated time at which it ends."""

    actor_id: int
    snapshot: WeightSnapshot
    target: WeightSnapshot | None
    share: EvaluationShare | None
    ends: float


class InlineExecutor(Executor):
    """Runs each call in this thread when its completion is requested, first in, first out.

    Calls carry the weights that were published when they were dispatched, as they do between processes: the policy lag
    is the same as of actors that take turns. An exception in an actor ends the run, as there is no process to replace.

    With `actor.fresh_gradients` a rollout and a gradient are calls of different length, and the first call to end in
    simulated time is run first. Lengths vary by the run's seed, and actors start evenly spread over one cycle. So N
    actors here see the weights that N processes on N equal cores would. Evaluations take no simulated time.

    All actors use the graphs of the first. A thousand fit into one process.

    `actors` are started at once, with ids that count up from `first_actor_id`. `emulator_threads`: see `DevicePlayer`.
    """

    def __init__(
        self, config: RunConfig, spec: EnvironmentSpec, actors: int, first_actor_id: int = 0, emulator_threads: int = 1
    ) -> None:
        self._config, self._spec, self._emulator_threads = config, spec, emulator_threads
        self._ids = itertools.count(first_actor_id)
        self._actors: dict[int, Actor] = {}
        self._first: Actor | None = None
        for _ in range(actors):
            self.add()
        self._calls: deque[_Call] = deque()
        self._now = 0.0
        self._lengths = np.random.default_rng(config.seed)

    @property
    def actor_ids(self) -> Sequence[int]:
        return list(self._actors)

    @property
    def calls_in_flight(self) -> int:
        return len(self._calls)

    def dispatch(self, actor_id: int, share: EvaluationShare | None = None) -> None:
        snapshot = self._weights if share is None else self._evaluation_weights
        assert snapshot is not None, "publish comes before dispatch"
        ends = self._end_of_call(actor_id, evaluates=share is not None)
        self._calls.append(_Call(actor_id, snapshot, self._target, share, ends))

    def _end_of_call(self, actor_id: int, *, evaluates: bool) -> float:
        """The simulated end of a call that begins now.

        0, which is first in, first out, without fresh gradients. With them warm-up rollouts take no time, so that
        all actors begin with the same weights.
        """
        actor = self._config.actor
        if not actor.fresh_gradients:
            return 0.0
        next_call = self._actors[actor_id].next_call
        if evaluates or next_call is NextCall.WARM_UP:
            return self._now
        length = self._lengths.uniform(_SHORTEST, _LONGEST)
        if next_call is NextCall.GRADIENT:
            return self._now + length * _GRADIENT_TIME / actor.minibatches
        spread = (list(self._actors).index(actor_id) + 1) / len(self._actors) if self._now == 0.0 else 0.0
        return self._now + length * _PLAY_TIME + spread * (_PLAY_TIME + _GRADIENT_TIME * actor.epochs)

    def next_completion(self) -> Completion | None:
        index = min(range(len(self._calls)), key=lambda index: self._calls[index].ends)
        call = self._calls[index]
        self._now = call.ends
        actor, weights = self._actors[call.actor_id], (call.snapshot, call.target)
        result = actor.run(*weights) if call.share is None else actor.evaluate(*weights, call.share)
        # Not before: a rollout that raises an error is lost.
        del self._calls[index]
        return result

    def has_completed(self, actor_id: int) -> bool:  # noqa: ARG002
        # Calls run within `next_completion`: none can hang while this process goes on.
        return True

    def rollouts_under_way(self, actor_id: int) -> int:
        return int(any(call.actor_id == actor_id for call in self._calls))

    def remove(self, actor_id: int) -> None:
        self._actors.pop(actor_id).close()
        self._calls = deque(call for call in self._calls if call.actor_id != actor_id)

    def add(self) -> int | None:
        actor_id = next(self._ids)
        actor = Actor(self._config, self._spec, actor_id, self._first, self._emulator_threads)
        self._first = self._first or actor
        self._actors[actor_id] = actor
        return actor_id

    def close(self) -> None:
        for actor in self._actors.values():
            actor.close()
