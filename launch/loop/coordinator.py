"""The asynchronous loop between the learner and its actors: no barrier, no Ray.

The learner takes in each report as it arrives (its life: `learner.learner`), and the actor is dispatched again with the
newest weights. Rollouts lost with an actor before their reports arrive are counted by the worker pool. Evaluations:
`launch.loop.evaluation`.
"""

import time
from collections.abc import Callable, Iterator

from launch.loop.evaluation import EvaluationLost, EvaluationResult, GoesOn, SharedEvaluation
from launch.loop.executor import MAX_NON_FINITE_IN_A_ROW, Change, ChildEvent, Executor, Failed
from launch.loop.worker_pool import WorkerPool, worked_seconds
from learner.learner import Learner, Outcome
from shared.config import EvaluationConfig, SupervisionConfig
from shared.errors import END_ADVICE, ConfigurationError, TrainingFailedError
from shared.types import AggregatedReport, EvaluationPart, EvaluationPolicy, GradientReport, Heartbeat

# The limit of an evaluation in agent steps is the largest of three: those of training, 1 M, and 27,000 an episode, the
# length of the longest ones of an Atari preset. Without a limit endless episodes would end the training.
_ALLOWED_AGENT_STEPS, _ALLOWED_STEPS_OF_AN_EPISODE = 1_000_000, 27_000

Event = Outcome | EvaluationPart | EvaluationResult | EvaluationLost | Heartbeat | Change


class Coordinator:
    """Moves reports into the learner and weights out of it.

    `run` is a generator: logging, checkpoints and stopping are its caller's. It yields an event after the learner has
    taken it in and the actor has been dispatched again, so that the actor works while the caller writes.

    `clock` gives monotonic seconds.

    Attributes:
        pool: of the actors; it counts restarts and lost rollouts.
        messages: number of messages that the learner took in; a sum of gradients is one.
        began: `time.monotonic()` at which the first rollout began, by its actor's own account; None before its report.
    """

    def __init__(
        self,
        learner: Learner,
        executor: Executor,
        supervision: SupervisionConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._learner, self._executor = learner, executor
        self.pool = WorkerPool(executor, supervision, clock)
        self.pool.share_of = lambda worker: None if self._evaluation is None else self._evaluation.share(worker)
        # Rollouts in a row that were not finite: each of them gives one report.
        self._non_finite = 0
        self._evaluation: SharedEvaluation | None = None
        self._evaluations = 0
        self.messages = 0
        self.began: float | None = None

    def stop(self) -> None:
        """Dispatch no further rollouts. `run` takes in rollouts that have begun, and ends."""
        self.pool.stopping = True

    @property
    def evaluates(self) -> bool:
        """True while an evaluation is under way."""
        return self._evaluation is not None

    def give_up_evaluation(self) -> EvaluationLost | None:
        """End the evaluation under way, which may take minutes more; None without one."""
        evaluation, self._evaluation = self._evaluation, None
        return None if evaluation is None else EvaluationLost("the run was interrupted", evaluation.agent_steps)

    def evaluate(self, policy: EvaluationPolicy, config: EvaluationConfig, goes_on: GoesOn | None = None) -> bool:
        """Begin an evaluation of the current weights by the actors; False if there is none, or one is under way.

        `run` yields its parts, and then the result, or `EvaluationLost`. `goes_on`: see `SharedEvaluation`.
        """
        workers = {actor_id: self._executor.actors_of(actor_id) for actor_id in self._executor.actor_ids}
        if self._evaluation is not None or not workers:
            return False
        snapshot = self._learner.snapshot()
        self._evaluations += 1
        self._evaluation = SharedEvaluation(self._evaluations, snapshot, policy, config, workers, goes_on)
        self._executor.publish_evaluation_weights(snapshot)
        return True

    def run(self) -> Iterator[Event | None]:
        """Yield an event for every completed call, and None now and then while none completes.

        Raises:
            TrainingFailedError: more actors died than may be replaced, or too many gradients were not finite.
            ConfigurationError: an actor could not be made, or its rollout raised, before any has reported.
        """
        self._publish()
        self.pool.dispatch_idle()
        try:
            yield from self._events()
        finally:
            # Rollouts that are not waited for: those without a part in a complete sum, or all after a failure.
            self.pool.rollouts_lost += sum(map(self._executor.rollouts_under_way, self._executor.actor_ids))

    def _events(self) -> Iterator[Event | None]:
        while self._executor.calls_in_flight or self.pool.expects_actors:
            completion = self._executor.next_completion()
            match completion:
                case GradientReport() | AggregatedReport():
                    yield from self._take(completion)
                case ChildEvent():
                    self._raise_if_first(completion.change)
                    yield from self._pass_on_child(completion)
                case Heartbeat():
                    self.pool.on_heartbeat(completion)
                    yield completion
                case EvaluationPart():
                    yield from self._take_part(completion)
                case Failed():
                    self._raise_if_first(completion)
                    yield from self._pass_on(self.pool.on_failure(completion))
                case None:
                    # The caller looks at its clock: for rows, checkpoints, and limits of time.
                    yield None
            for change in self.pool.supervise():
                yield from self._pass_on(change)

    def _take(self, report: GradientReport | AggregatedReport) -> Iterator[Outcome]:
        """Submit a report to the learner, and dispatch to its actor again."""
        if self.began is None:
            # Actors on other machines have clocks of their own.
            self.began = time.monotonic() - worked_seconds(report)
        self.messages += 1
        self.pool.on_report(report)
        if isinstance(report, AggregatedReport):
            outcomes = self._learner.submit_sum(report)
        else:
            outcomes = [self._learner.submit(report)]
        # Before the outcomes are yielded: the actor would idle while the caller writes rows or a checkpoint.
        self._publish()
        self.pool.dispatch(report.actor_id)
        for outcome in outcomes:
            yield outcome
            self._non_finite = self._non_finite + 1 if outcome.dropped == "non_finite" else 0
            if self._non_finite > MAX_NON_FINITE_IN_A_ROW:
                raise TrainingFailedError(
                    f"{self._non_finite} rollouts in a row were not finite; the last had the "
                    f"{outcome.report.non_finite}: {non_finite_advice(outcome.report.non_finite)}"
                )

    def _take_part(self, part: EvaluationPart) -> Iterator[Event]:
        """Add a part to its evaluation, unless that was given up, and dispatch to its actor again."""
        evaluation, ended = self._evaluation, None
        if evaluation is not None and part.number == evaluation.whole.number:
            ended = evaluation.add(part) or self._endless(evaluation)
        if ended is not None:
            self._evaluation = None
        self.pool.on_part(part)
        yield part
        if ended is not None:
            yield ended

    def _endless(self, evaluation: SharedEvaluation) -> EvaluationLost | None:
        allowed = _ALLOWED_AGENT_STEPS, _ALLOWED_STEPS_OF_AN_EPISODE * evaluation.all_episodes
        if evaluation.agent_steps <= max(*allowed, self._learner.account.ledger.sampled):
            return None
        reason = f"no end after {evaluation.agent_steps:,} agent steps. {END_ADVICE}"
        return EvaluationLost(reason, evaluation.agent_steps, endless=True)

    def _pass_on(self, change: Change) -> Iterator[Event]:
        """Yield a change, and after a failure the loss of the evaluation that the failed actor had a share of."""
        yield change
        evaluation = self._evaluation
        if isinstance(change, Failed) and evaluation is not None and change.actor_id in evaluation.workers:
            yield self._lost(evaluation)

    def _pass_on_child(self, event: ChildEvent) -> Iterator[Event]:
        """The same for an actor behind an aggregator."""
        evaluation, lost = self._evaluation, None
        if evaluation is not None and event.evaluation == evaluation.whole.number:
            # Before the aggregator is dispatched again, which asks for its share.
            lost = self._lost(evaluation)
        yield self.pool.on_child_event(event)
        if lost is not None:
            yield lost

    def _lost(self, evaluation: SharedEvaluation) -> EvaluationLost:
        self._evaluation = None
        return EvaluationLost("an actor with a share of the evaluation has ended", evaluation.agent_steps)

    def _raise_if_first(self, change: Change) -> None:
        # Usually an error in the environment's code, which no replacement repairs. After the first report it is known
        # that actors can be made and play: later failures are replaced like others.
        if isinstance(change, Failed) and change.raised and not self.messages:
            raise ConfigurationError(str(change))

    def _publish(self) -> None:
        self._executor.publish(self._learner.snapshot())
        if (target := self._learner.target_snapshot()) is not None:
            self._executor.publish_target(target)


_OF_THE_ENVIRONMENT = {
    "reward": "the reward of the environment",
    "observation": "this number of the environment's observations",
}


def non_finite_advice(what: str) -> str:
    """Advice on a rollout with this `GradientReport.non_finite`."""
    if number := _OF_THE_ENVIRONMENT.get(what.partition(" ")[0]):
        return f"mend {number}, or replace it in a wrapper (--environment.wrappers MODULE:WRAPPER)"
    return "lower --optimizer.learning-rate, clip by --optimizer.max-gradient-norm, or scale rewards down"
