"""One training run from start to summary: the coordinator's loop, with logging, checkpoints and stopping around it."""

import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from actors.environments import EnvironmentSpec
from actors.policy import Policy
from launch.loop.coordinator import Coordinator, Event
from launch.loop.executor import Drained, Executor, Failed, Joined, Replaced
from launch.loop.trace import TraceEvent, TraceWriter
from launch.loop.worker_pool import TrainingStoppedError
from launch.run.events import Evaluated, Progress, Saved, View
from launch.run.folder import RunFolder
from launch.run.metrics import DroppedReports, Messages, Metrics, Reporting, change_message
from launch.run.saving import Saving, first_weights
from launch.run.status import LearnerDeath, RunCounts, run_summary, write_summary
from launch.run.stopping import Evaluations, ReturnTarget, StoppingRules, TrainingPoint, TrainingReturns
from launch.run.trackers import OpenTracker, Trackers, tracker_openers
from learner.learner import Learner, Outcome
from shared.config import RunConfig
from shared.errors import typed_line
from shared.types import EvaluationResult


class ArrivalRecord:
    """The file that --record-arrivals names. One that can be written no more is a warning, and training goes on.

    Args:
        file: as the setting names it.
        actor_ids: of the actors that the run begins with.
        log: logs a message.
    """

    def __init__(self, file: str, actor_ids: Sequence[int], log: Callable[[str], None]) -> None:
        self._file = file
        self._log = log
        self._writer: TraceWriter | None = TraceWriter(Path(file), actor_ids)

    def add(self, event: Event | None) -> None:
        """Write down what arrived with this event, if anything did."""
        arrived = arrival(event)
        if self._writer is None or arrived is None:
            return
        try:
            self._writer.add(arrived)
        except OSError as error:
            # With a gap in it, the order could not be repeated beyond the gap.
            self._writer = None
            self._log(
                f"warning: {self._file} could not be written: {error.strerror}; the order is kept up to here, and "
                f"training goes on"
            )

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


def arrival(event: Event | None) -> TraceEvent | None:
    """What arrived with this event; None if nothing did."""
    match event:
        case Outcome():
            return TraceEvent("report", event.report.actor_id)
        case EvaluationResult():
            return TraceEvent("evaluation")
        case Failed():
            return TraceEvent("lost-with-node" if event.node_lost else "lost", event.actor_id)
        case Replaced(replacement_id=None):
            return TraceEvent("lost-evaluator")
        case Replaced(replacement_id=actor_id):
            return TraceEvent("replacement", actor_id)
        case Joined(actor_id):
            return TraceEvent("joined", actor_id)
        case Drained(actor_id):
            return TraceEvent("released", actor_id)
    return None


ExecutorFactory = Callable[[int], Executor]


class TrainingSession:
    """Learner, coordinator and everything around their loop. `view` and `interrupt` may be called from other threads.

    Args:
        config: of the run.
        spec: of its environment.
        folder: of the run.
        make_executor: starts the actors, with ids from its argument on.
        resume: start from the newest checkpoint in `folder`.
        after: what ended the process before this one, if it is the same run that goes on.
        trackers: how further ones are opened that the run's rows go to, by their names.
    """

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        folder: Path,
        make_executor: ExecutorFactory,
        *,
        resume: bool,
        after: LearnerDeath | None = None,
        trackers: Mapping[str, OpenTracker] | None = None,
    ) -> None:
        self._config = config
        self._exact = config.checkpoint.exact
        self._resumed = resume
        self._folder = RunFolder(folder)
        self._messages = Messages(self._folder.log)
        self._log = self._messages.log
        policy = Policy(config, spec)
        first = first_weights(self._folder, policy.layout)
        initial = policy.initial_parameters() if first is None else first
        self.learner = Learner(config, policy.layout, initial)
        self._earlier = RunCounts()
        self._saved_executor: dict[str, Any] | None = None
        self._target: ReturnTarget | None = None
        if config.stop_at_return is not None:
            self._target = ReturnTarget(config.stop_at_return, config.stop_measure)
        self._stopping = StoppingRules(config, self._target)
        self._returns = TrainingReturns()
        # What a run that is repeated does follows from its record, and from no clock: whatever is waited for is due,
        # and no deaths come too close to each other.
        self._repeats = config.replay_arrivals is not None
        supervision, clock = config.supervision, time.monotonic
        if self._repeats:
            supervision = replace(supervision, backoff_seconds=0.0, max_restarts=sys.maxsize)
            clock = itertools.count(0.0, 3600.0).__next__
        self._evaluations = Evaluations(config.evaluation, supervision.backoff_seconds, self._target, self._log)
        self._saving = Saving(config, self._folder, self.learner, self._state, self._restore_state, self._log)
        if resume:
            self._resume()
        self._saving.best.read_score()
        self._sampled_before = self.learner.account.ledger.sampled
        if after is not None:
            self._account_for(after)
        # The learner's graphs are built while the actors' processes start.
        self._executor = make_executor(self._first_actor_id())
        self._coordinator = Coordinator(
            self.learner,
            self._executor,
            calls_per_actor=config.actor.calls_in_flight,
            supervision=supervision,
            clock=clock,
        )
        if self._saved_executor is not None:
            self._coordinator.resume(self._executor.restore(self._saved_executor))
        self._metrics = Metrics(self.learner, self._evaluations.last)
        openers = tracker_openers(folder, config) | dict(trackers or {})
        self._trackers = Trackers(openers, self._log)
        self._reporting = Reporting(config, self._folder, self._metrics, self._progress, self._trackers, self._messages)
        self._arrivals: ArrivalRecord | None = None
        if config.record_arrivals is not None and not resume:
            self._arrivals = ArrivalRecord(config.record_arrivals, self._executor.actor_ids, self._log)
        self._dropped_reports = DroppedReports()
        self._started = time.monotonic()

    @property
    def elapsed_seconds(self) -> float:
        """Seconds of training, those before a resume included."""
        return self._earlier.elapsed_seconds + time.monotonic() - self._started

    def interrupt(self) -> None:
        """Ask the run to finish cleanly and save."""
        self._stopping.interrupt()

    def view(self) -> View:
        """The present progress, and the events since the last view."""
        return View(self._reporting.latest, self._messages.take())

    def run(self) -> dict[str, Any]:
        """Train until a condition to stop holds; save, and return the summary that was written.

        Raises:
            TrainingStoppedError: the run could not go on. It was saved before.
        """
        failure: TrainingStoppedError | None = None
        try:
            if not self._resumed:
                # Whatever happens from now on, there is something to go on from.
                self._save()
            self._loop()
        except TrainingStoppedError as error:
            self._log(str(error))
            failure = error
            raise
        finally:
            # While the actors are there, which the row counts.
            self._log_last()
            self._end_actors()
            summary = self._finish(failure)
        return summary

    def _loop(self) -> None:
        self._reporting.count_from(self.elapsed_seconds)
        self._saving.count_from(self.elapsed_seconds)
        for event in self._coordinator.run():
            if self._arrivals is not None:
                self._arrivals.add(event)
            self._take(event)
            self._returns.update(len(self.learner.account.recent_returns), self._executor.actors)
            now = self.elapsed_seconds
            # Before a checkpoint, so that an exact one has the evaluation under way.
            if self._stopping.running:
                at = TrainingPoint.of(self.learner.version, self.learner.account, now)
                self._evaluations.request_if_due(at, self._coordinator.evaluate, window_counts=self._returns.last_count)
            if self._saving.is_due(now):
                self._save()
                self._saving.count_from(self.elapsed_seconds)
            # Whoever reads a row finds the checkpoints that were due by then.
            self._reporting.report_if_due(now)
            self._stop_if_due()
            if self._ends_at_once():
                break

        if self._arrivals is not None:
            self._arrivals.close()
        self._stopping.loop_ended()

    def _ends_at_once(self) -> bool:
        """Whether nothing more is to be taken in, not even what is under way."""
        if self._exact and not self._stopping.running:
            # Calls under way are saved as such. If they were taken in here, their actors would not be sent on as they
            # are in a run that goes on.
            return True
        if not self._repeats:
            return False
        # Once the user has asked, nobody is asked for what the record has next. Or nobody was left at its end.
        nobody_left = not (self._executor.actor_ids or self._executor.calls_in_flight or self._executor.free_slots())
        return self._stopping.interrupted or nobody_left

    def _stop_if_due(self) -> None:
        if self._stopping.stops(self.learner.account.frames, self.elapsed_seconds):
            self._coordinator.stop()
            if self._coordinator.evaluations_under_way and self._config.executor == "ray":
                self._log("waiting for the evaluation under way; Ctrl-C ends the run without it")
        # An exact run saves it as it is.
        if self._stopping.interrupted and not self._exact:
            self._coordinator.give_up_evaluations()

    def _take(self, event: Event | None) -> None:
        """What to do about one event of the loop; None is a moment in which nothing happened."""
        match event:
            case Outcome():
                self._take_outcome(event)
            case EvaluationResult():
                self._take_evaluation(event)
            case Failed() | Replaced() | Joined() | Drained():
                self._log(change_message(event))
                if isinstance(event, Replaced) and event.replacement_id is None:
                    self._evaluations.evaluator_died(self.elapsed_seconds)

    def _take_outcome(self, outcome: Outcome) -> None:
        report = outcome.report
        self._metrics.add(outcome)
        if outcome.dropped != "duplicate":
            self._returns.add(report.actor_id, report.episodes.returns.tolist(), report.unfinished_environments)
        if outcome.dropped is not None:
            message = self._dropped_reports.message(str(outcome.dropped), report.actor_id)
            if message is not None:
                self._log(message)

    def _take_evaluation(self, result: EvaluationResult) -> None:
        taken = self._evaluations.receive(
            result, episodes=self.learner.account.episodes, untrained=self._returns.untrained
        )
        mean = taken.entry["mean_return"]
        self._metrics.add_evaluation(taken.point())
        self._messages.emit(Evaluated(taken.point()))
        if result.video is not None:
            self._saving.keep_video(result.version, result.video)
            self._trackers.write_video(result.video, taken.at.frames)
        if result.video_error is not None:
            self._log(f"warning: the evaluation of update {result.version} has no video: {result.video_error}")
        # Weights that ended the run are kept, even if others were luckier in an evaluation before.
        self._saving.best.keep_if_best(result.version, result.parameters, mean, "evaluation", surely=taken.confirmed)

    def _counts(self) -> RunCounts:
        """Over all processes of the run, up to now."""
        return self._earlier + RunCounts(
            elapsed_seconds=time.monotonic() - self._started,
            messages=self._coordinator.messages,
            actor_restarts=self._coordinator.actor_restarts,
            rollouts_lost=self._coordinator.rollouts_lost,
        )

    def _progress(self) -> Progress:
        counts = self._counts()
        return self._metrics.progress(counts.elapsed_seconds, self._executor.actors, counts.actor_restarts)

    def _save(self) -> None:
        if self._saving.save(window_counts=self._returns.last_count):
            self._messages.emit(Saved(self.learner.version))

    def _log_last(self) -> None:
        try:
            self._reporting.write_last_row()
        except OSError as error:
            self._log(f"warning: the last row could not be written: {error.strerror}")

    def _end_actors(self) -> None:
        """Whatever an environment or a process raises at its end, the run is saved."""
        try:
            self._executor.close()
        except Exception as error:
            self._log(f"warning: the actors could not be ended: {typed_line(error)}; the run is saved")

    def _finish(self, failure: TrainingStoppedError | None) -> dict[str, Any]:
        try:
            self._save()
        except TrainingStoppedError as error:
            if str(error) != str(failure):
                self._log(str(error))
            failure = error
        new_agent_steps = self.learner.account.ledger.sampled - self._sampled_before
        message = self._stopping.saved_last(failed=failure is not None, new_agent_steps=new_agent_steps)
        if message is not None:
            self._log(message)
        summary = run_summary(
            self._stopping.status,
            self.learner,
            self._counts(),
            actor=self._config.actor,
            target=self._target,
            returns=self._returns,
            evaluation=self._evaluations.last,
        )
        write_summary(summary, self._folder.summary, self._log)
        # After the summary: closing a tracker that hangs takes its time.
        self._trackers.close()
        self._saving.finish_copy()
        return summary

    def _resume(self) -> None:
        self._saving.restore()
        dropped = self.learner.fit_unfinished_update()
        if dropped:
            self._log(f"dropped {dropped} gradients of an unfinished update, which no longer fit the settings")

    def _account_for(self, death: LearnerDeath) -> None:
        """Count what the dead learner had taken in since the checkpoint that is gone on from: it is done again."""
        lost = max(0, death.agent_steps_seen - self.learner.account.ledger.sampled)
        self._earlier += RunCounts(learner_restarts=1, agent_steps_lost=lost)
        self._log(
            f"learner: {death.reason}; the run goes on from its checkpoint of update {self.learner.version}, and plays "
            f"{lost:,} agent steps again"
        )
        if self._config.record_arrivals is not None:
            self._log(f"warning: {self._config.record_arrivals} has the order of arrivals up to here, and no further")

    def _first_actor_id(self) -> int:
        """Of new actors. In an exact resume the actors have the ids that they had, and so the same seeds."""
        if self._saved_executor is None:
            return self.learner.next_actor_id
        return min(map(int, self._saved_executor["actors"]))

    def _state(self) -> dict[str, Any]:
        """All that a checkpoint holds besides the learner's variables, as plain values."""
        return {
            **self.learner.state(),
            **self._counts().state(),
            **self._saving.best.state(),
            **self._returns.state(exact=self._exact),
            **self._evaluations.state(exact=self._exact),
            # Only where the actors, and the calls under way, are the same as before.
            "executor": self._executor.state() if self._exact else None,
        }

    def _restore_state(self, state: dict[str, Any]) -> None:
        """The inverse of `_state`, but for the executor, which is not there yet. Older versions had fewer keys."""
        self.learner.restore_state(state)
        self._earlier = RunCounts.restored(state)
        self._saved_executor = state["executor"] if self._exact else None
        self._saving.best.restore(state, evaluates=bool(self._config.evaluation.every_frames))
        # With a new executor, evaluations under way are lost, and the environments in their first episodes.
        goes_on = self._saved_executor is not None and state.get("evaluations") is not None
        self._returns.restore(state, exact=goes_on)
        self._evaluations.restore(state, self.learner.account.frames, exact=goes_on)
