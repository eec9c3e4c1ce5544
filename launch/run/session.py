"""One training run from start to summary: the coordinator's loop, with logging, checkpoints and stopping around it.

Each pass of the loop takes one event of the coordinator, which is None when nothing happened for a while, and then:

    record the event in the trace   before anything can fail because of it
    take the event                  metrics, returns, evaluation results, messages about actors
    request an evaluation           if the weights cross the target, or a regular one is due
    save a checkpoint               if one is due
    write a row                     if one is due; its readers find the checkpoints that were due before it
    stop                            if a rule holds; actors then finish their rollouts, and the loop drains them
"""

import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from actors.environments import AtariAdapter, EnvironmentSpec, adapter_of
from actors.policy import Policy
from launch.loop.coordinator import Coordinator, Event
from launch.loop.evaluation import EvaluationLost
from launch.loop.executor import Drained, Executor, Failed, Heartbeat, Joined, Replaced
from launch.loop.trace import TraceEvent, TraceWriter
from launch.loop.worker_pool import TrainingStoppedError
from launch.output import write_json
from launch.run.events import Evaluated, Preparing, Progress, Saved, View, Weights
from launch.run.folder import RunFolder, read_weights
from launch.run.metrics import Messages, Metrics, MissingInfo, Reporting, change_message, dropped_message
from launch.run.saving import Saving
from launch.run.status import LearnerDeath, RunCounts, run_summary
from launch.run.stopping import (
    Evaluations,
    RecentReturn,
    ReturnTarget,
    StoppingRules,
    TrainingPoint,
    TrainingReturns,
)
from launch.run.tensorboard import TensorBoard
from learner.learner import Learner, Outcome
from shared.config import RunConfig
from shared.errors import EnvironmentFailedError, typed_line
from shared.types import EvaluationPart, EvaluationResult, Video, WeightSnapshot


def trace_event(event: Event | None) -> TraceEvent | None:
    """The line of the trace for an event of the loop; None for events that are not in it."""
    match event:
        case Outcome():
            return TraceEvent("report", event.report.actor_id)
        case Heartbeat():
            return TraceEvent("played" if event.expects_report else "played-ahead", event.actor_id)
        case EvaluationPart():
            return TraceEvent("evaluation", event.actor_id)
        case Failed():
            return TraceEvent("lost-with-node" if event.node_lost else "lost", event.actor_id)
        case Replaced(replacement_id=actor_id):
            return TraceEvent("replacement", actor_id)
        case Joined(actor_id):
            return TraceEvent("joined", actor_id)
        case Drained(actor_id):
            return TraceEvent("released", actor_id)
    return None


def longest_episode(config: RunConfig) -> int:
    """Agent steps of the longest episode, where the settings limit them; else 0."""
    limited = isinstance(adapter_of(config.environment), AtariAdapter)
    return config.environment.max_episode_frames // config.environment.frame_skip if limited else 0


ExecutorFactory = Callable[[int], Executor]
Film = Callable[[RunConfig, EnvironmentSpec, WeightSnapshot], Video]


class TrainingSession:
    """The learner, the coordinator and the files of a run. `view` and `interrupt` may be called from other threads.

    Args:
        config: resolved settings.
        spec: of the environment, with the mean observation.
        folder: of the run. It exists, and its lock is held.
        make_executor: starts the actors. Its argument is the first free actor id.
        resume: start from the newest checkpoint in `folder`.
        after: the death of the learner process before this one, in the same run.
        film: plays one more episode of each evaluation for `evaluation.video`. Actors wait for it.
        started: `time.time()` at the beginning of the start-up; default: now. A wall clock, since it may be the one of
            the driver's machine.
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
        film: Film | None = None,
        started: float | None = None,
    ) -> None:
        self._start_up_began = time.monotonic() - (0.0 if started is None else max(0.0, time.time() - started))
        self._config, self._spec, self._film = config, spec, film
        self._resumed = resume
        self._folder = RunFolder(folder)
        self._messages = Messages(self._folder.log)
        # Logs a line. Thread-safe.
        self.log = self._messages.log
        policy = Policy(config, spec)
        if self._folder.first_weights.is_file():
            initial = read_weights(self._folder.first_weights, policy.layout)[0].parameters
        else:
            initial = policy.initial_parameters()
        self.learner = Learner(config, policy.layout, initial)
        self._earlier = RunCounts()
        goal = config.stop_at_return
        self._target = None if goal is None else ReturnTarget(goal, config.stop_measure)
        self._stopping = StoppingRules(config, self._target)
        self._returns, self._recent_return = TrainingReturns(), RecentReturn()
        # The trace drives a replay, never the clock: every wait is over at once, and the limit on deaths is off.
        self._replays = config.replay_arrivals is not None
        supervision, clock = config.supervision, time.monotonic
        if self._replays:
            supervision = replace(supervision, max_restarts=sys.maxsize)
            clock = itertools.count(0.0, 3600.0).__next__
        self._evaluations = Evaluations(config.evaluation, self._target, self.log)
        self._saving = Saving(config, self._folder, self.learner, self._state, self._restore_state, self.log)
        if resume:
            self._saving.restore()
            dropped = self.learner.fit_unfinished_update()
            if dropped:
                self.log(f"dropped {dropped} gradients of an unfinished update, which no longer fit the settings")
        if after is not None:
            self._account_for(after)
        # First of all that takes time below: the learner's graphs are built while the actors' processes start.
        self._executor = make_executor(self.learner.next_actor_id)
        self._coordinator = Coordinator(
            self.learner,
            self._executor,
            calls_per_actor=config.actor.calls_in_flight,
            supervision=supervision,
            clock=clock,
            longest_episode=longest_episode(config),
        )
        # The living actors that have reported, None once all have. With sums on nodes the executor's ids are others.
        self._at_work: set[int] | None = set() if config.executor == "ray" else None
        self._first_logged = False
        if self._at_work is not None:
            self.log(f"learner: ready; {self._executor.actors} actor{'s' * (self._executor.actors > 1)} to come")
            self._messages.emit(Preparing("actors: building environments and networks, then playing"))
        self._metrics = Metrics(self.learner, self._evaluations.last, config.actor)
        resumed_at = self.learner.account.frames if resume else None
        self._tensorboard = TensorBoard(folder, config, self.log, resumed_at=resumed_at)
        self._reporting = Reporting(
            config, self._folder, self._metrics, self._progress, self._tensorboard.write, self._messages
        )
        self._trace: TraceWriter | None = None
        if config.record_arrivals is not None and not resume:
            self._trace = TraceWriter(Path(config.record_arrivals), self._executor.actor_ids)
        self._missing_info = MissingInfo(config.environment.log_info, self.log)
        self._dropped_reports: Counter[str] = Counter()
        self._weights_requested = False
        # True after a resume of a run that has logged it.
        self._non_finite_return_logged = self.learner.account.non_finite_returns > 0
        self._crowding_logged = False

    @property
    def elapsed_seconds(self) -> float:
        """Seconds of training since the first actor's first rollout began, with those before a resume."""
        began = self._coordinator.began
        return self._earlier.elapsed_seconds + (0.0 if began is None else time.monotonic() - began)

    def _startup_seconds(self) -> float:
        """Seconds from the start of this process's part of the run to the first rollout, or until now."""
        return max(0.0, (self._coordinator.began or time.monotonic()) - self._start_up_began)

    def interrupt(self) -> None:
        """Let the run stop at its next check, and save."""
        self._stopping.interrupted = True

    def view(self, weights: bool = False) -> View:
        """The present progress, and the events since the last view. With `weights` a later one has the weights."""
        self._weights_requested |= weights
        return View(self._reporting.latest, self._messages.take())

    def run(self) -> dict[str, Any]:
        """Train until a rule stops the run, save it, and return the content of summary.json.

        Raises:
            TrainingStoppedError, EnvironmentFailedError: the run could not go on. It was saved before.
        """
        failure: Exception | None = None
        try:
            if not self._resumed:
                # A run that fails in its first minutes can be resumed, too.
                self._save()
            self._loop()
        except (TrainingStoppedError, EnvironmentFailedError) as error:
            # Without an event: the caller gets the error itself.
            self._messages.write(str(error))
            failure = error
            raise
        finally:
            # The row counts the living actors, so it comes before their end.
            self._reporting.write_last_row()
            try:
                self._executor.close()
            # Environments of users raise anything in `close`, and the run is still to be saved.
            except Exception as error:
                self.log(f"warning: the actors could not be ended: {typed_line(error)}; the run is saved")
            summary = self._finish(failure)
        return summary

    def _loop(self) -> None:
        self._reporting.count_from(self.elapsed_seconds)
        self._saving.count_from(self.elapsed_seconds)
        for event in self._coordinator.run():
            self._record(event)
            self._take(event)
            self._returns.update(len(self.learner.account.recent_returns), self._executor.actors)
            now = self.elapsed_seconds
            if self._stopping.running:
                at = TrainingPoint.of(self.learner.version, self.learner.account, now, self._recent_return.value)
                self._evaluations.request_if_due(
                    at,
                    self._coordinator.evaluate,
                    window_counts=self._returns.last_count,
                    untrained=self._returns.untrained,
                )
            if self._saving.is_due(now):
                self._save()
                self._saving.count_from(self.elapsed_seconds)
            self._reporting.report_if_due(now, self.learner.account.frames)
            if self._weights_requested:
                self._weights_requested = False
                snapshot, layout = self.learner.snapshot(), self.learner.layout
                shapes = dict(zip(layout.names, layout.shapes, strict=True))
                self._messages.emit(Weights(snapshot.version, snapshot.frames, shapes, snapshot.parameters.tobytes()))
            self._stop_if_due()
            if self._ends_at_once():
                break

        if self._trace is not None:
            self._trace.close()
        self._stopping.loop_ended()

    def _record(self, event: Event | None) -> None:
        """Write an event to the trace, if it comes from outside of the learner."""
        from_outside = trace_event(event)
        if self._trace is None or from_outside is None:
            return
        try:
            self._trace.add(from_outside)
        except OSError as error:
            # A trace with a gap cannot be replayed beyond it.
            self._trace = None
            self.log(
                f"warning: {self._config.record_arrivals} could not be written: {error.strerror}; the order is kept up "
                f"to here, and training goes on"
            )

    def _ends_at_once(self) -> bool:
        """Whether the loop ends without the calls under way."""
        if self._stopping.interrupted and not self._coordinator.messages and self._config.executor == "ray":
            # The actors may still start, which takes a minute on a busy machine.
            return True
        if not self._replays:
            return False
        # The end of a trace can leave no actor to wait for, and an interrupted replay needs none of its next events.
        no_actor_left = not (self._executor.actor_ids or self._executor.calls_in_flight or self._executor.free_slots())
        return self._stopping.interrupted or no_actor_left

    def _stop_if_due(self) -> None:
        if self._stopping.stops(self.learner.account.frames, self.elapsed_seconds):
            self._coordinator.stop()
            self._metrics.drains = True
            if self._coordinator.evaluates and not self._stopping.interrupted:
                self.log("waiting for the evaluation under way; Ctrl-C ends the run without it")
        if self._stopping.interrupted:
            self._coordinator.give_up_evaluation()

    def _take(self, event: Event | None) -> None:
        match event:
            case Outcome():
                self._take_outcome(event)
            case EvaluationResult():
                self._take_evaluation(event)
            case EvaluationLost():
                self._evaluations.lose(event, seconds=self.elapsed_seconds, trained=self.learner.account.ledger.sampled)
            case Failed() | Replaced() | Joined() | Drained():
                self.log(change_message(event))
                if isinstance(event, Failed) and self._at_work is not None:
                    self._at_work.discard(event.actor_id)
                crowding = self._config.actor.crowding(self._executor.actors)
                if isinstance(event, Joined) and crowding and not self._crowding_logged:
                    self._crowding_logged = True
                    self.log(f"warning: {crowding}")

    def _take_outcome(self, outcome: Outcome) -> None:
        report = outcome.report
        self._log_first(report.actor_id)
        self._metrics.add(outcome, self.elapsed_seconds)
        if outcome.dropped != "duplicate":
            returns = report.episodes.returns
            finite = returns[np.isfinite(returns)].tolist()
            self._returns.add(report.actor_id, finite, report.unfinished_environments)
            self._recent_return.add(report)
            if self.learner.account.non_finite_returns and not self._non_finite_return_logged:
                self._non_finite_return_logged = True
                self.log(
                    "warning: the return of an episode is not finite; such returns are counted (non_finite_returns in "
                    "summary.json), and are in no mean return"
                )
            self._missing_info.add(report.episodes.info)
        if outcome.dropped is not None:
            self._dropped_reports[outcome.dropped] += 1
            count = self._dropped_reports[outcome.dropped]
            message = dropped_message(outcome.dropped, count, report.actor_id)
            if message is not None:
                self.log(f"{message}: {report.non_finite}" if report.non_finite else message)

    def _log_first(self, actor_id: int) -> None:
        """Log the first report of the first actor, and that of the last one."""
        if self._at_work is None:
            return
        self._at_work.add(actor_id)
        if not self._first_logged:
            self._first_logged = True
            self.log(f"start-up: {self._startup_seconds():.1f} s until actor {actor_id} was at work, the first one")
        if len(self._at_work) >= self._executor.actors:
            self._at_work = None
            self.log("actors: all are at work")

    def _take_evaluation(self, result: EvaluationResult) -> None:
        point, confirmed = self._evaluations.receive(
            result,
            seconds=self.elapsed_seconds,
            trained=self.learner.account.ledger.sampled,
            untrained=self._returns.untrained,
        )
        self._metrics.add_evaluation(point)
        self._messages.emit(Evaluated(point))
        if self._config.evaluation.video and self._film is not None:
            self._keep_film(WeightSnapshot(result.version, result.parameters, point["frames"]))
        # The weights that ended the run are kept, even if an earlier evaluation had a luckier result. Those of a failed
        # confirmation are not compared: it would outrank every later return of training.
        if confirmed or not point["confirms"]:
            self._saving.best.keep_if_best(
                result.version, result.parameters, point["mean_return"], "evaluation", surely=confirmed
            )

    def _keep_film(self, snapshot: WeightSnapshot) -> None:
        assert self._film is not None
        try:
            video = self._film(self._config, self._spec, snapshot)
        # A failed film does not cost the evaluation.
        except Exception as error:
            self.log(f"warning: the evaluation of update {snapshot.version} has no video: {typed_line(error)}")
            return
        self._saving.keep_video(snapshot.version, video)
        self._tensorboard.write_video(video, snapshot.frames)

    def _counts(self) -> RunCounts:
        return self._earlier + RunCounts(
            elapsed_seconds=self.elapsed_seconds - self._earlier.elapsed_seconds,
            startup_seconds=self._startup_seconds(),
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

    def _finish(self, failure: Exception | None) -> dict[str, Any]:
        self._missing_info.warn()
        try:
            self._save()
        except TrainingStoppedError as error:
            # `run` has logged the same failure already.
            if str(error) != str(failure):
                self.log(str(error))
            failure = error
        if failure is not None or self._stopping.running:
            self._stopping.status = "failed"
        summary = run_summary(
            self._stopping.status,
            self.learner,
            self._counts(),
            actor=self._config.actor,
            target=self._target,
            returns=self._returns,
            evaluations=self._evaluations,
        )
        try:
            write_json(self._folder.summary, summary)
        except OSError as error:
            self.log(f"warning: {self._folder.summary.name} could not be written: {error.strerror}")
        # After the summary: W&B may take its time to upload the rest.
        self._tensorboard.close()
        self._saving.finish_copy()
        return summary

    def _account_for(self, death: LearnerDeath) -> None:
        """Count the agent steps that the dead learner had sampled after its last checkpoint."""
        lost = max(0, death.agent_steps_seen - self.learner.account.ledger.sampled)
        self._earlier += RunCounts(learner_restarts=1, agent_steps_lost=lost)
        self.log(
            f"learner: {death.reason}; the run goes on from its checkpoint of update {self.learner.version}, and plays "
            f"{lost:,} agent steps again"
        )
        if self._config.record_arrivals is not None:
            self.log(f"warning: {self._config.record_arrivals} has the order of arrivals up to here, and no further")

    def _state(self) -> dict[str, Any]:
        """The plain values in a checkpoint, beside the learner's variables."""
        return {
            **self.learner.state(),
            **asdict(self._counts()),
            **self._returns.state(),
            **self._evaluations.state(),
        }

    def _restore_state(self, state: dict[str, Any]) -> None:
        """The inverse of `_state`."""
        self.learner.restore_state(state)
        self._earlier = RunCounts.restored(state)
        self._returns.restore(state)
        self._evaluations.restore(state)
