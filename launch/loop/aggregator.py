"""Sums the gradients of a node's actors on their node. No Ray."""

import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from launch.loop.executor import Change, ChildEvent, Executor, Failed, Heartbeat
from launch.loop.worker_pool import WorkerPool
from shared.config import SupervisionConfig
from shared.types import AggregatedReport, Float32Array, GradientReport, WeightSnapshot

# Signs of life within the silence after which whoever waits for a sum takes its process for hung.
_SIGNS = 4
# The gradient itself does not travel with its report: it is in the sum.
_NO_GRADIENT = np.empty(0, np.float32)


class GradientAggregator:
    """Adds what an executor's actors report until a sum is of `gradients` gradients.

    It keeps the actors at work and replaces those that fail. Gradients are added in their order of arrival, so that a
    sum equals the one that the learner would have made, to the bit. Each gradient keeps its own report.

    Args:
        executor: runs the rollouts. It has started its actors, and no rollout is under way.
        gradients: of one sum.
        supervision: when an actor hangs, and how long its replacement waits.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        executor: Executor,
        gradients: int,
        supervision: SupervisionConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._executor = executor
        self._gradients, self._max_non_finite = gradients, supervision.max_non_finite
        # Whether too many were lost is for the learner's process to judge, which counts all of them.
        self._pool = WorkerPool(executor, 1, replace(supervision, max_restarts=sys.maxsize), clock)
        self._clock, self._patience = clock, supervision.hang_seconds / _SIGNS
        self._version: int | None = None
        self._idle: list[int] = []
        self._changes: deque[ChildEvent] = deque()
        self._reports: list[GradientReport] = []
        self._finite: list[bool] = []
        self._sum: Float32Array | None = None

    def collect(
        self, snapshot: WeightSnapshot, target: WeightSnapshot | None
    ) -> AggregatedReport | ChildEvent | Heartbeat:
        """Wait for a whole sum, or for an actor that is lost, replaced, joins or goes: then the sum so far is kept.

        So it is where neither comes for a quarter of --supervision.hang-seconds. The actors are watched over here, by
        what their rollouts take; whoever waits for the sum has only to see that this process lives.

        An actor that has reported starts again at once, with the newest weights that are here: `snapshot`, or those
        of the call before. The one that completes the sum waits for the next call, which brings the weights that the
        learner makes of it. The actor id of a result is 0.
        """
        first, began = self._version is None, self._clock()
        if snapshot.version != self._version:
            self._version = snapshot.version
            self._executor.publish(snapshot)
        if target is not None:
            self._executor.publish_target(target)
        if first:
            self._pool.start()
        while not self._changes and not self._is_complete():
            if self._idle:
                actor_id = self._idle.pop(0)
                self._pool.dispatch(actor_id)
                # On a node that drains it is asked for nothing more.
                self._tell(*self._pool.remove_if_drained(actor_id))
                continue
            completion = self._executor.next_completion()
            if isinstance(completion, GradientReport):
                self._add(completion)
            elif isinstance(completion, Failed):
                self._tell(self._pool.lose(completion))
            for change in self._pool.supervise():
                self._tell(change)
            if not self._changes and not self._is_complete() and self._clock() - began >= self._patience:
                return Heartbeat(0, bool(self._executor.actor_ids))
        if self._changes:
            return self._changes.popleft()
        assert self._sum is not None
        result = AggregatedReport(0, self._sum, tuple(self._reports), tuple(self._finite))
        self._reports, self._finite, self._sum = [], [], None
        return result

    def _tell(self, *changes: Change) -> None:
        """Have changes be told by this call and the next ones, the first of them with what was lost."""
        for change in changes:
            self._changes.append(ChildEvent(0, change, self._pool.rollouts_lost))
            self._pool.rollouts_lost = 0

    def _is_complete(self) -> bool:
        """The sum is whole, or so many in a row were not finite that the learner should hear of it."""
        in_a_row = self._finite[::-1].index(True) if True in self._finite else len(self._finite)
        return sum(self._finite) >= self._gradients or in_a_row > self._max_non_finite

    def _add(self, report: GradientReport) -> None:
        self._pool.reported(report)
        gradient = report.gradient
        # The square of its norm is finite where the learner would find its norm so; one pass, nothing allocated.
        finite = bool(np.isfinite(np.dot(gradient, gradient)))
        if self._sum is None:
            self._sum = gradient.copy() if finite else np.zeros_like(gradient)
        elif finite:
            self._sum += gradient
        self._reports.append(report._replace(gradient=_NO_GRADIENT))
        self._finite.append(finite)
        self._idle.append(report.actor_id)
