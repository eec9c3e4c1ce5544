"""One training run from start to summary: the coordinator's loop, with logging, checkpoints and stopping around it.

Each pass of the loop takes one event of the coordinator, which is None when nothing happened for a while, and then:

    take the event                  metrics, returns, evaluation results, messages about actors
    request an evaluation           if the weights cross the target, or a regular one is due
    call the timers                 a checkpoint, then a row, whose readers find the weights of its moment, then a view
    stop                            if a rule holds; actors then finish their rollouts, and the loop drains them
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from actors.environments import EnvironmentSpec
from actors.policy import Policy
from launch.files import write_json
from launch.loop.coordinator import Coordinator, Event
from launch.loop.evaluation import EvaluationLost, EvaluationResult
from launch.loop.executor import Executor, Failed, Joined, Replaced
from launch.run.events import Evaluated, Preparing, Saved, View
from launch.run.folder import RunFolder, agent_steps_learned, read_object
from launch.run.metrics import Messages, Metrics, Timer, annealing_warning
from launch.run.returns import TrainingReturns
from launch.run.stopping import Evaluations, Status, TrainingPoint, reason_to_stop
from launch.run.storage import RemoteCopy
from launch.run.summary import LearnerDeath, RunCounts, run_summary
from launch.run.tensorboard import TensorBoard
from launch.run.weights import TRAINING, BestWeights, read_weights
from learner.checkpoint import CheckpointError, Checkpoints
from learner.learner import Learner, Outcome
from shared.config import RunConfig
from shared.errors import EnvironmentFailedError, TrainingFailedError, counted, typed_line

# A job that Slurm interrupts waits so long for its copy: it has two minutes.
_COPY_SECONDS = 60.0


class TrainingSession:
    """The learner, the coordinator and the files of a run. `view` and `interrupt` may be called from other threads.

    The constructor opens the files, restores the checkpoint, and starts the actors.

    Args:
        spec: of the environment, with the mean observation.
        folder: of the run. It exists, and its lock is held.
        make_executor: starts the actors. Its argument is the first free actor id.
        resume: start from the newest checkpoint in `folder`.
        after: the death of the learner process before this one, in the same run.
        started: `time.time()` at the beginning of the start-up; None: now. Not a monotonic clock, because the driver
            may be on another machine.

    Attributes:
        earlier: counts of the processes of this run before this one.
    """

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        folder: Path,
        make_executor: Callable[[int], Executor],
        *,
        resume: bool,
        after: LearnerDeath | None = None,
        started: float | None = None,
    ) -> None:
        self._start_up_began = time.monotonic() - (0.0 if started is None else max(0.0, time.time() - started))
        self.config, self.folder, self._has_new_settings = config, RunFolder(folder), resume
        # A run that fails in its first minutes can be resumed, and each death of a learner counts.
        self._saves_first = not resume or after is not None
        self._messages = Messages(self.folder.log)
        self.log, self.earlier = self._messages.log, RunCounts()
        self.learner = self._new_learner(spec)
        returns = TrainingReturns(config.actor.environments)
        if (origin := read_object(self.folder.manifest).get("started_from")) is not None:
            returns.begins_untrained, returns.untrained = False, origin.get("untrained_mean_return")
        self.evaluations = Evaluations(config, returns, self.log)
        self._checkpoints = Checkpoints(
            self.folder.checkpoints, config.checkpoint.keep, self.learner.variables(), self._state, self._restore
        )
        if resume:
            self._resume()
            returns.begins_untrained &= self.learner.account.ledger.sampled == 0
        if after is not None:
            self._count_death(after)
        if (warning := annealing_warning(config)) is not None:
            self.log(f"warning: {warning}")
        # First of all that takes time below: the learner's graphs are built while the actors' processes start.
        self._executor = make_executor(self.learner.next_actor_id)
        self._coordinator = Coordinator(self.learner, self._executor, config.supervision)
        self.tensorboard = TensorBoard(folder, config, self.log)
        write = self.tensorboard.write
        self._metrics = Metrics(config, self.folder, self.learner, self._actors_now, write, self._messages)
        if self.evaluations.last is not None:
            self._metrics.evaluation_return = self.evaluations.last["mean_return"]
        if config.executor == "ray":
            self._messages.emit(Preparing("actors: building environments and networks, then playing"))
        self._best = BestWeights(self.folder, self.log)
        self._copy = None if config.storage is None else RemoteCopy(self.folder.path, config.storage, self.log)
        self._status: Status = "running"
        self._interrupted = False
        # Subjects of `_log_once`.
        self._logged = set[str]()

    def _new_learner(self, spec: EnvironmentSpec) -> Learner:
        policy, first = Policy(self.config, spec), self.folder.first_weights
        if not first.is_file():
            return Learner(self.config, policy.layout, policy.initial_parameters())
        initial, _ = read_weights(first, policy.layout)
        # Those of the run before: this one has sampled none when it begins, and a resume restores the moments.
        observed = agent_steps_learned(self.folder)
        return Learner(self.config, policy.layout, initial.parameters, observed=observed)

    def _count_death(self, after: LearnerDeath) -> None:
        # The agent steps that the dead learner had sampled after its last checkpoint.
        lost = max(0, after.agent_steps_seen - self.learner.account.ledger.sampled)
        self.earlier += RunCounts(learner_restarts=1, agent_steps_lost_with_learner=lost)
        self.log(
            f"learner: {after.reason}; the run goes on from its checkpoint of update {self.learner.version}, and plays "
            f"{lost:,} agent steps again"
        )

    def _state(self) -> dict[str, Any]:
        """The plain values in a checkpoint, beside the learner's variables."""
        return {**self.learner.state(), **asdict(self._counts()), **self.evaluations.state()}

    def _restore(self, values: dict[str, Any]) -> None:
        self.learner.restore_state(values)
        self.earlier = RunCounts(**{name: values[name] for name in asdict(self.earlier)})
        self.evaluations.restore(values)

    def _resume(self) -> None:
        for message in self._checkpoints.restore():
            self.log(message)
        self.log(f"continues from update {self.learner.version:,}, after {self.learner.account.frames:,} frames")
        if dropped := self.learner.drop_excess_pending():
            self.log(f"dropped {counted(dropped, 'gradient')} of an unfinished update, for the settings have changed")

    @property
    def _elapsed_seconds(self) -> float:
        """Seconds of training since the first actor's first rollout began, with those before a resume."""
        began = self._coordinator.began
        return self.earlier.wall_seconds + (0.0 if began is None else time.monotonic() - began)

    def _counts(self) -> RunCounts:
        loop, seconds = self._coordinator, self._elapsed_seconds - self.earlier.wall_seconds
        startup = max(0.0, (loop.began or time.monotonic()) - self._start_up_began)
        return self.earlier + RunCounts(
            seconds, startup, loop.messages, loop.pool.actor_restarts, loop.pool.rollouts_lost
        )

    def _actors_now(self) -> tuple[float, int, int]:
        """The seconds of training, the living actors, and the actors that were replaced."""
        restarts = self.earlier.actor_restarts + self._coordinator.pool.actor_restarts
        return self._elapsed_seconds, self._executor.actors, restarts

    def _now(self) -> tuple[float, int]:
        return self._elapsed_seconds, self.learner.account.frames

    def _point(self) -> TrainingPoint:
        account, returns = self.learner.account, self.evaluations.returns
        return TrainingPoint(
            self.learner.version,
            account.episodes,
            account.ledger.sampled,
            account.frames,
            self._elapsed_seconds,
            returns.mean,
            recent_return=returns.recent.value,
        )

    def interrupt(self) -> None:
        """Let the run stop at its next check, and save."""
        self._interrupted = True

    def view(self, numbers: Mapping[str, float]) -> View:
        """The present progress, and the events since the last view. `numbers` are the caller's, for the next row."""
        self._metrics.own.update(numbers)
        return View(self._metrics.latest, self._messages.take())

    def run(self) -> dict[str, Any]:
        """Train until a rule stops the run, save it, and return the content of summary.json.

        Raises:
            TrainingFailedError, EnvironmentFailedError: the run could not go on. It was saved before.
        """
        failure: Exception | None = None
        try:
            if self._saves_first:
                self._save()
            self._loop()
        except (TrainingFailedError, EnvironmentFailedError) as error:
            # Without an event: the caller gets the error itself.
            self._messages.write(str(error))
            failure = error
            raise
        finally:
            # The row counts the living actors, so it comes before their end.
            self._metrics.write_last_row()
            try:
                self._executor.close()
            # Environments of users raise anything in `close`, and the run is still to be saved.
            except Exception as error:
                self.log(f"warning: the actors could not be ended: {typed_line(error)}; the run is saved")
            summary = self._finish(failure)
        return summary

    def _loop(self) -> None:
        every = self.config.checkpoint
        timers = (Timer(self._save, every.every_seconds, every.every_frames), *self._metrics.timers)
        for timer in timers:
            timer.since = self._now()
        for event in self._coordinator.run():
            self._take(event)
            self.evaluations.returns.update(len(self.learner.account.recent_returns), self._executor.actors)
            if self._status == "running":
                self.evaluations.request_if_due(self._point(), self._coordinator.evaluate)
            # A resume after a kill finds an evaluation in the checkpoint, and in a row with the checkpoint's frames.
            ended = isinstance(event, EvaluationResult)
            for timer in timers:
                timer.tick(self._now, due=ended)
            self._stop_if_due()
            # Actors that may still start, which takes a minute on a busy machine, are not waited for.
            if self._interrupted and not self._coordinator.messages and self.config.executor == "ray":
                break

    def _stop_if_due(self) -> None:
        if self._status == "running":
            frames, seconds = self.learner.account.frames, self._elapsed_seconds
            reason = reason_to_stop(self.config, frames, seconds, confirmed=self.evaluations.confirmed is not None)
            self._status = "interrupted" if self._interrupted else reason or "running"
            if self._status != "running":
                self._coordinator.stop()
                self._metrics.drains = True
                if self._coordinator.evaluates and not self._interrupted:
                    self.log("waiting for the evaluation under way; Ctrl-C ends the run without it")
        elif self._status in ("frames_reached", "time_reached") and self.evaluations.confirmed is not None:
            # By the confirmation that the run has waited for.
            self._status = "return_reached"
        if self._interrupted and (lost := self._coordinator.give_up_evaluation()) is not None:
            self.evaluations.lose(lost, self._point())

    def _take(self, event: Event | None) -> None:
        match event:
            case Outcome():
                self._take_outcome(event)
            case EvaluationResult():
                self._take_evaluation(event)
            case EvaluationLost():
                self.evaluations.lose(event, self._point())
            case Failed() | Replaced() | Joined():
                self.log(str(event))
                crowding = self.config.actor.crowding(self._executor.actors)
                if isinstance(event, Joined) and crowding:
                    self._log_once("crowding", f"warning: {crowding}")

    def _take_outcome(self, outcome: Outcome) -> None:
        report = outcome.report
        self._metrics.add(outcome)
        if outcome.dropped != "duplicate":
            self.evaluations.returns.add(report.actor_id, report.episodes)
            self.evaluations.returns.recent.add(report)
            if self.learner.account.non_finite_returns:
                self._log_once(
                    "non-finite return",
                    "warning: the return of an episode is not finite; such returns are counted (non_finite_returns in "
                    "summary.json), and are in no mean return",
                )
        if outcome.dropped is not None:
            what = f" ({report.non_finite})" if report.non_finite else ""
            line = f"dropped a report of actor {report.actor_id} for the reason {outcome.dropped}{what}"
            self._log_once(outcome.dropped, f"{line}; later ones are counted, and not logged")

    def _log_once(self, subject: str, message: str) -> None:
        if subject not in self._logged:
            self._logged.add(subject)
            self.log(message)

    def _take_evaluation(self, result: EvaluationResult) -> None:
        entry, confirmed = self.evaluations.receive(result, self._point())
        self._metrics.add_evaluation(entry)
        self._messages.emit(Evaluated(entry))
        # The weights that ended the run are kept, even if an earlier evaluation had a luckier result. Weights of a
        # failed confirmation are not compared: it would outrank every later return of training.
        if confirmed or not entry["confirms"]:
            measure = f"an evaluation with {result.policy} actions"
            self._best.keep_if_best(result.snapshot, entry["mean_return"], measure, always=confirmed)

    def _save(self, *, last: bool = False) -> None:
        """Compare the weights with the best ones, write a checkpoint, and start an update of the remote copy.

        Raises:
            TrainingFailedError: the folder is gone, the parameters are not finite, or the last checkpoint could not be
                written.
        """
        learner = self.learner
        # A folder of checkpoints alone could be neither resumed nor played.
        if self.folder.was_removed:
            raise TrainingFailedError(f"{self.folder.path} was removed: nothing of the run can be saved any more")
        # Before the write: a few such checkpoints would replace all good ones.
        if not learner.is_finite():
            raise TrainingFailedError(
                f"the parameters are not finite any more at update {learner.version}; the last checkpoint is from "
                f"before that: resume it with a lower --optimizer.learning-rate"
            )
        by_training = not (self.evaluations.every_frames and self._best.by_evaluation)
        if by_training and self.evaluations.confirmed is None:
            # Before the first evaluation, and without regular ones, the best weights are those with the best training
            # return at a checkpoint. Those that confirmed the target stay.
            self._best.keep_if_best(learner.snapshot(), self.evaluations.returns.mean, TRAINING)
        try:
            self._checkpoints.save(learner.version)
            self._messages.emit(Saved(learner.version))
            self._write_new_settings()
        except CheckpointError as error:
            if last:
                lost = "what was learned since the checkpoint before it"
                raise TrainingFailedError(f"{error}; {lost} is lost") from error
            # A full disk is no reason to stop learning: a later checkpoint may find space.
            self.log(f"warning: {error}; training goes on")
        if self._copy is not None and self.learner.account.ledger.sampled:
            self._copy.start()

    def _write_new_settings(self) -> None:
        """Write the settings of a resumed run, once. One that fails before its first report leaves the earlier ones."""
        if not self._has_new_settings or not self._coordinator.messages:
            return
        try:
            self.folder.write_config(self.config)
            self._has_new_settings = False
        except OSError as error:
            self.log(f"warning: {self.folder.settings_file.name} could not be written: {error.strerror}")

    def _finish(self, failure: Exception | None) -> dict[str, Any]:
        try:
            self._save(last=True)
        except TrainingFailedError as error:
            # `run` has logged the same failure already.
            if str(error) != str(failure):
                self.log(str(error))
            failure = error
        if failure is not None or self._status == "running":
            self._status = "failed"
        summary = run_summary(self._status, self.learner, self._counts(), self.config.actor, self.evaluations)
        try:
            write_json(self.folder.summary, summary)
        except OSError as error:
            self.log(f"warning: {self.folder.summary.name} could not be written: {error.strerror}")
        # After the summary: W&B may take its time to upload the rest.
        self.tensorboard.close()
        # A run that ends before it trains may be discarded.
        if self._copy is not None and self.learner.account.ledger.sampled:
            limited = self._interrupted and "SLURM_JOB_ID" in os.environ
            self._copy.finish(_COPY_SECONDS if limited else None)
        return summary
