"""Executors in one process and one thread: `InlineExecutor`, and `ReplayExecutor` for a recorded event trace.

Both are deterministic for a seed. They serve tests, debugging, small tasks and replays. `launch.loop.trace`, which is
imported before TensorFlow is set up, has no room for the second.
"""

import itertools
from collections import deque
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from actors.actor import Actor
from actors.environments import EnvironmentSpec
from launch.loop.executor import Completion, Executor, Failed
from launch.loop.trace import TraceEvent, TraceReader, trace_event
from launch.loop.worker_pool import TrainingStoppedError
from shared.config import RunConfig
from shared.types import EvaluationShare, WeightSnapshot

# The reasons of failures are not in a trace.
_LOST = "lost, as in the run that is replayed"

# Durations of an actor's calls with `actor.fresh_gradients`, in units of one gradient over a whole rollout. On one core
# environment and acting take 300 to 360 µs an agent step of Pong with the A3C network, a gradient 65 to 80.
_PLAY_TIME = 4.0
_GRADIENT_TIME = 1.0
# Calls of processes differ in length. With equal ones the actors would keep their order for the whole run, and the same
# ones would always share an update: 16 actors of Pong then learned later than as processes (docs/scaling.md).
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
            # Not by a subclass's `add`, whose slots may depend on more.
            InlineExecutor.add(self)
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

        0, which is first in, first out, without fresh gradients, and in lockstep, where processes take turns, too.
        Otherwise rollouts played ahead take no time, so that all actors begin with the same weights.
        """
        actor = self._config.actor
        if not actor.fresh_gradients or self._config.lockstep:
            return 0.0
        if evaluates or self._actors[actor_id].plays_ahead:
            return self._now
        length = self._lengths.uniform(_SHORTEST, _LONGEST)
        if not self._actors[actor_id].rollout_is_done:
            return self._now + length * _GRADIENT_TIME / actor.minibatches
        spread = (list(self._actors).index(actor_id) + 1) / len(self._actors) if self._now == 0.0 else 0.0
        return self._now + length * _PLAY_TIME + spread * (_PLAY_TIME + _GRADIENT_TIME * actor.epochs)

    def next_completion(self) -> Completion | None:
        index = min(range(len(self._calls)), key=lambda index: self._calls[index].ends)
        call = self._calls[index]
        del self._calls[index]
        self._now = call.ends
        return self._run(call)

    def _run(self, call: _Call) -> Completion:
        actor = self._actors[call.actor_id]
        if call.share is not None:
            return actor.evaluate(call.snapshot, call.target, call.share)
        return actor.run(call.snapshot, call.target)

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


class ReplayExecutor(InlineExecutor):
    """Completes calls in the order of the trace `replay_arrivals`, until it ends.

    The coordinator reacts to failures and joining actors by its own rules, as it did in the recorded run. Where those
    rules depend on the cluster or a clock, this executor returns the values that lead to the recorded reaction.
    """

    # The line before which one pass without a completion was made.
    _paused_before = 0

    @cached_property
    def _trace(self) -> TraceReader:
        assert self._config.replay_arrivals is not None
        return TraceReader(self._config.replay_arrivals)

    def next_completion(self) -> Completion | None:
        event, line = self._trace.next, self._trace.line
        if event is None:
            # Without calls in flight the coordinator's loop ends too.
            self._calls.clear()
            return None
        if self._paused_before != line:
            # One pass without a completion before each line: in it the worker pool starts and drains actors.
            self._paused_before = line
            return None
        self._trace.advance()
        call = next((call for call in self._calls if call.actor_id == event.actor_id), None)
        if event.kind in ("lost", "lost-with-node") and event.actor_id in self._actors:
            return Failed(event.actor_id, _LOST, node_lost=event.kind == "lost-with-node")
        if call is not None:
            self._calls.remove(call)
            completion = self._run(call)
            if trace_event(completion) == event:
                return completion
        raise self._misfit(line, event)

    def remove(self, actor_id: int) -> None:
        super().remove(actor_id)
        if self._trace.next == TraceEvent("released", actor_id):
            self._trace.advance()

    def add(self) -> int | None:
        event, line = self._trace.next, self._trace.line
        # One at a time: whether an actor joins or replaces another follows from the actors missing at its line.
        if event is None or event.kind not in ("replacement", "joined") or self._paused_before != line:
            return None
        actor_id = super().add()
        if event.actor_id != actor_id:
            raise self._misfit(line, event)
        self._trace.advance()
        return actor_id

    def free_slots(self) -> int:
        return self._trace.free_slots

    def draining(self) -> Sequence[int]:
        # A drained actor gets no further dispatch: its last call is in flight then.
        left = self._trace.calls_before_drained
        return [actor_id for actor_id in left if left[actor_id] == self.rollouts_under_way(actor_id) > 0]

    def _misfit(self, line: int, event: TraceEvent) -> TrainingStoppedError:
        return TrainingStoppedError(
            f"--replay-arrivals {self._config.replay_arrivals}: line {line} is {str(event)!r}, which nothing under "
            f"way fits: it is the trace of a run with other settings"
        )
