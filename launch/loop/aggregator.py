"""The sum of the gradients of a node's actors, made on their node, and their share of an evaluation. No Ray."""

import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from launch.loop.evaluation import EvaluationShares
from launch.loop.executor import (
    MAX_NON_FINITE_IN_A_ROW,
    NO_GRADIENT,
    CallResult,
    Change,
    ChildEvent,
    Completion,
    Executor,
    Failed,
)
from launch.loop.worker_pool import WorkerPool
from shared.config import EvaluationConfig, SupervisionConfig
from shared.types import (
    AggregatedReport,
    EvaluationPart,
    EvaluationShare,
    Float32Array,
    GradientReport,
    Heartbeat,
    WeightSnapshot,
)

# Heartbeats within the silence after which the learner's process takes an aggregator for hung.
_HEARTBEATS = 4


class GradientAggregator:
    """Keeps the actors of an executor at work and sums their gradients, `gradients` at a time.

    Gradients are added in their order of arrival, as the learner would: the sum is equal to the bit. Each gradient
    keeps its own report, so that the learner still admits and accounts for each one.

    The executor runs the rollouts on one node: its actors are started, and no rollout is under way. `clock` gives
    monotonic seconds.
    """

    def __init__(
        self,
        executor: Executor,
        gradients: int,
        supervision: SupervisionConfig,
        evaluation: EvaluationConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._executor = executor
        self._gradients = gradients
        # The limit on replacements is the run's, and the learner's process applies it: it counts all nodes.
        self._pool = WorkerPool(executor, replace(supervision, max_restarts=sys.maxsize), clock)
        # By --supervision.start-seconds before the first sum, and again after a change among the actors.
        silence = min(supervision.hang_seconds, supervision.start_seconds)
        self._clock, self._patience = clock, silence / _HEARTBEATS
        self._version: int | None = None
        self._evaluation = evaluation
        # The evaluation of the last call with a share, and the shares of the actors in it.
        self._evaluation_number: int | None = None
        self._shares: EvaluationShares | None = None
        self._events: deque[ChildEvent | EvaluationPart] = deque()
        self._reports: list[GradientReport] = []
        self._sum: Float32Array | None = None

    def collect(
        self, snapshot: WeightSnapshot, target: WeightSnapshot | None, share: EvaluationShare | None = None
    ) -> CallResult:
        """Run the actors until there is a result: a complete sum, episodes of an evaluation, or a change among them.

        After a quarter of --supervision.hang-seconds, or of --supervision.start-seconds if shorter, the result is a
        `Heartbeat`. Results have actor id 0. An incomplete sum is kept for the next call. `share` is the share of all
        actors here; None pauses their evaluation. While it is `alone`, no rollout begins. This process supervises the
        actors, the caller this process.

        An actor that has reported starts again at once, with the newest weights that this process has. The actor that
        completes a sum waits for the next call, whose weights may include that sum.
        """
        began = self._clock()
        # Older weights come with an evaluation of them, and are none to train with.
        if self._version is None or snapshot.version > self._version:
            self._version = snapshot.version
            self._executor.publish(snapshot)
        if target is not None:
            self._executor.publish_target(target)
        self._assign_share(snapshot, share)
        while not self._events and not self._is_complete():
            if self._clock() - began >= self._patience:
                # The call must end: Ray cannot distinguish a slow process from one that hangs.
                begins = self._executor.actor_ids and not self._pool.stopping
                return Heartbeat(0, new_steps_follow=bool(self._reports or begins))
            self._pool.dispatch_idle()
            self._take(self._executor.next_completion())
            self._record(*self._pool.supervise())
        if self._events:
            return self._events.popleft()
        assert self._sum is not None
        result = AggregatedReport(0, self._sum, tuple(self._reports))
        self._reports, self._sum = [], None
        return result

    def _take(self, completion: Completion | None) -> None:
        match completion:
            case GradientReport():
                self._add(completion)
            case Heartbeat():
                self._pool.on_heartbeat(completion)
            case EvaluationPart():
                if self._shares is not None and completion.number == self._evaluation_number:
                    self._shares.count(completion)
                    self._events.append(completion)
                self._pool.on_part(completion)
            case Failed():
                self._record(self._pool.on_failure(completion))

    def _assign_share(self, snapshot: WeightSnapshot, share: EvaluationShare | None) -> None:
        """Divide a share among the actors, or pause their evaluation."""
        self._pool.share_of, self._pool.stopping = lambda _: None, False
        if share is None:
            return
        if share.number != self._evaluation_number:
            self._evaluation_number, self._shares = share.number, None
            self._executor.publish_evaluation_weights(snapshot)
        actors = self._executor.actor_ids
        # All may wait for their replacements.
        if self._shares is None and actors:
            self._shares = EvaluationShares(self._evaluation, share, dict.fromkeys(actors, 1))
        if self._shares is not None:
            self._shares.whole = share
            self._pool.share_of, self._pool.stopping = self._shares.share, share.alone

    def _record(self, *changes: Change) -> None:
        """Queue events for this call and the next ones; the first carries the number of lost rollouts."""
        for change in changes:
            shares = () if self._shares is None else self._shares.workers
            had_share = isinstance(change, Failed) and change.actor_id in shares
            evaluation = self._evaluation_number if had_share else None
            self._events.append(ChildEvent(0, change, self._pool.rollouts_lost, evaluation))
            self._pool.rollouts_lost = 0

    def _is_complete(self) -> bool:
        # Too many non-finite gradients in a row end the run: the learner must receive them without waiting for K.
        finite = [not report.non_finite for report in self._reports]
        in_a_row = finite[::-1].index(True) if True in finite else len(finite)
        return sum(finite) >= self._gradients or in_a_row > MAX_NON_FINITE_IN_A_ROW

    def _add(self, report: GradientReport) -> None:
        self._pool.on_report(report)
        gradient, finite = report.gradient, not report.non_finite
        if self._sum is None:
            self._sum = gradient.copy() if finite else np.zeros_like(gradient)
        elif finite:
            self._sum += gradient
        # The gradient does not travel with its report: it is in the sum.
        self._reports.append(report._replace(gradient=NO_GRADIENT))
