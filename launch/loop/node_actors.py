"""Keeps the actors of one node at work, and adds their gradients. No Ray in it."""

import time
from collections.abc import Callable

import numpy as np

from launch.loop.executor import Executor, Failed, Replaced
from launch.loop.supervision import RestartPolicy, Watchdog
from shared.config import SupervisionConfig
from shared.types import AggregatedReport, Float32Array, GradientReport

# Between two looks for actors that hang.
_CHECK_SECONDS = 1.0


class NodeActors:
    """Adds the next K gradients of a node's actors. An actor that dies or hangs is replaced; the others go on.

    Args:
        executor: runs the rollouts. It has started its actors, and no rollout is under way.
        gradients_per_update: K.
        supervision: when an actor hangs, and how long its replacement waits.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        executor: Executor,
        gradients_per_update: int,
        supervision: SupervisionConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._executor, self._clock = executor, clock
        self._gradients_per_update, self._max_non_finite = gradients_per_update, supervision.max_non_finite
        self._watchdog, self._restarts = Watchdog(supervision), RestartPolicy(supervision)
        self._idle = list(executor.actor_ids)
        self._due: list[tuple[float, Failed]] = []
        self._checked = clock()
        self._reports: list[GradientReport] = []
        self._finite: list[bool] = []
        self._sum: Float32Array | None = None

    def collect(self) -> AggregatedReport | Failed | Replaced:
        """Wait for the sum of K gradients, or for an actor to be lost or replaced: then the sum so far is kept.

        An actor that has reported starts again at once, with the weights that were last published. The one whose
        gradient is the K-th waits for the next call, which brings the weights that the learner makes of the sum.
        The actor id of the sum is 0.
        """
        while not self._is_complete():
            replaced = self._replace_due()
            if replaced is not None:
                return replaced
            self._dispatch_idle()
            completion = self._executor.next_completion()
            if isinstance(completion, GradientReport):
                self._add(completion)
            elif isinstance(completion, Failed):
                return self._lose(completion)
            hung = self._find_hung()
            if hung is not None:
                return self._lose(hung)
        assert self._sum is not None
        result = AggregatedReport(0, self._sum, tuple(self._reports), tuple(self._finite))
        self._reports, self._finite, self._sum = [], [], None
        return result

    def _is_complete(self) -> bool:
        """K gradients are in the sum, or so many in a row were not finite that the learner should hear of it."""
        in_a_row = self._finite[::-1].index(True) if True in self._finite else len(self._finite)
        return sum(self._finite) == self._gradients_per_update or in_a_row > self._max_non_finite

    def _dispatch_idle(self) -> None:
        for actor_id in self._idle:
            self._executor.dispatch(actor_id)
            self._watchdog.dispatched(actor_id, self._clock())
        self._idle = []

    def _add(self, report: GradientReport) -> None:
        self._watchdog.reported(report.actor_id, self._clock())
        self._restarts.proven(report.actor_id)
        gradient = report.gradient
        # The square of its norm is finite where the learner would find its norm so; one pass, nothing allocated.
        finite = bool(np.isfinite(np.dot(gradient, gradient)))
        if self._sum is None:
            self._sum = gradient.copy() if finite else np.zeros_like(gradient)
        elif finite:
            self._sum += gradient
        self._finite.append(finite)
        # The gradient itself does not travel: it is in the sum.
        self._reports.append(report._replace(gradient=gradient[:0].copy()))
        self._idle.append(report.actor_id)

    def _find_hung(self) -> Failed | None:
        now = self._clock()
        if now - self._checked < _CHECK_SECONDS:
            return None
        for actor_id, reason in self._watchdog.hung(now, self._executor.has_completed).items():
            return Failed(actor_id, reason)
        self._checked = now
        return None

    def _lose(self, failed: Failed) -> Failed:
        """End an actor that failed, and note when its replacement may start."""
        assert failed.actor_id is not None, "the evaluator is the learner's"
        now = self._clock()
        self._watchdog.forget(failed.actor_id)
        self._executor.remove(failed.actor_id)
        # None says that too many were lost. That is for the learner's process to judge, which counts all nodes.
        self._due.append((now + (self._restarts.died(failed.actor_id, now) or 0.0), failed))
        return failed

    def _replace_due(self) -> Replaced | None:
        """Start one replacement whose wait is over, if there is one."""
        now = self._clock()
        due = next((due for due in self._due if due[0] <= now), None)
        if due is None:
            return None
        self._due.remove(due)
        replacement_id = self._executor.add()
        assert replacement_id is not None, "a node has places for as many as it had"
        self._restarts.replaced_by(replacement_id)
        self._idle.append(replacement_id)
        return Replaced(due[1], replacement_id)
