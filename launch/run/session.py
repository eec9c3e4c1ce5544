"""One training run from start to summary: the coordinator's loop, with logging, checkpoints and stopping around it."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from actors.environments import EnvironmentSpec
from actors.policy import Policy
from launch.loop.arrivals import Arrival, ArrivalsWriter
from launch.loop.coordinator import Coordinator, Event, Joined, Released, TrainingStoppedError
from launch.loop.executor import Executor, Failed, Replaced
from launch.output.json_file import write_json
from launch.run.annealing import AnnealingWatch
from launch.run.evaluations import Asked, Evaluations, evaluation_entry, evaluation_line
from launch.run.folder import RunFolder
from launch.run.metrics import Metrics
from launch.run.progress import Progress, View, lag_summary
from launch.run.rows import JsonLines
from launch.run.stopping import CONFIRMING_POLICY, FirstEpisodes, Moment, ReturnMark, TrainingWindow, crossings
from launch.run.storage import RemoteCopy
from launch.run.tracker_thread import OpenTracker, Trackers
from launch.run.trackers import tracker_openers
from launch.run.weights import best_score
from learner.checkpoint import CheckpointError, Checkpoints
from learner.learner import Learner, Outcome
from shared.config import RunConfig
from shared.types import EvaluationResult, Float32Array, GradientReport, Video

ExecutorFactory = Callable[[int], Executor]


class LearnerDeath(NamedTuple):
    """The learner's process died, and this session goes on in a new one.

    `agent_steps_seen` is how far the dead one was known to have come; `reason` is one line.
    """

    reason: str
    agent_steps_seen: int


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
        self._folder = RunFolder(folder)
        policy = Policy(config, spec)
        self.learner = Learner(config, policy.layout, policy.initial_parameters())
        self._earlier_seconds = 0.0
        self._earlier_messages = self._earlier_restarts = self._earlier_rollouts_lost = 0
        self._learner_restarts = self._agent_steps_lost = 0
        self._saved_executor: dict[str, Any] | None = None
        self._best_return: float | None = None
        self._best_measure = "training"
        self._last_evaluation: dict[str, Any] | None = None
        self._window = TrainingWindow()
        self._window_counts = False
        self._first_episodes = FirstEpisodes()
        self._evaluations = Evaluations(config.evaluation, 0)
        self._mark: ReturnMark | None = None
        if config.stop_at_return is not None:
            self._mark = ReturnMark(config.stop_at_return, config.stop_measure)
        self._checkpoints = Checkpoints(
            self._folder.checkpoints, config.checkpoint.keep, self.learner.variables(), self._state, self._restore_state
        )
        self._started = time.monotonic()
        self._messages: deque[str] = deque()
        self._resumed = resume
        if resume:
            for message in self._checkpoints.restore():
                self._say(message)
            dropped = self.learner.fit_unfinished_update()
            if dropped:
                self._say(f"dropped {dropped} gradients of an unfinished update, which no longer fit the settings")
        # A learner that died may have written better ones after its last checkpoint.
        kept = self._best_return, self._best_measure
        self._best_return, self._best_measure = best_score(self._folder, otherwise=kept)
        self._sampled_before = self.learner.ledger.sampled
        if after is not None:
            self._account_for(after)
        # Actors that go on to the bit have their old ids, and so their old seeds.
        saved = self._saved_executor
        first_id = self.learner.next_actor_id if saved is None else min(map(int, saved["actors"]))
        # The learner's graphs are built while the actors' processes start.
        self._executor = make_executor(first_id)
        self._coordinator = Coordinator(
            self.learner,
            self._executor,
            calls_per_actor=config.actor.calls_in_flight,
            supervision=config.supervision,
        )
        if saved is not None:
            self._coordinator.resume(self._executor.restore(saved))
        self._metrics = Metrics(self.learner)
        self._annealing = AnnealingWatch(config)
        self._rows = JsonLines(folder)
        self._trackers = Trackers(tracker_openers(folder, config) | dict(trackers or {}), self._say)
        self._copy = RemoteCopy(folder, config.storage) if config.storage is not None else None
        self._arrivals: ArrivalsWriter | None = None
        if config.record_arrivals is not None and not resume:
            self._arrivals = ArrivalsWriter(Path(config.record_arrivals), self._executor.actor_ids)
        self._interrupted = threading.Event()
        self._latest = Progress()
        self._metrics_missing = False
        self._dropped_reports: Counter[str] = Counter()
        self._started = time.monotonic()
        self._status = "running"

    @property
    def elapsed_seconds(self) -> float:
        """Seconds of training, those before a resume included."""
        return self._earlier_seconds + time.monotonic() - self._started

    def interrupt(self) -> None:
        """Ask the run to finish cleanly and save."""
        self._interrupted.set()

    def view(self) -> View:
        """The progress, and the messages that no view has shown yet."""
        messages = [self._messages.popleft() for _ in range(len(self._messages))]
        return View(self._latest, messages)

    def run(self) -> dict[str, Any]:
        """Train until a condition to stop holds; save, and return the summary that was written.

        Raises:
            TrainingStoppedError: the run could not go on. It was saved before.
        """
        try:
            if not self._resumed:
                # Whatever happens from now on, there is something to go on from.
                self._save()
            self._loop()
        except TrainingStoppedError as error:
            self._say(str(error))
            raise
        finally:
            self._end_actors()
            summary = self._finish()
        return summary

    def _end_actors(self) -> None:
        """Whatever an environment or a process raises at its end, the run is saved."""
        try:
            self._executor.close()
        except Exception as error:
            reason = " ".join(str(error).split())
            self._say(f"warning: the actors could not be ended: {type(error).__name__}: {reason}; the run is saved")

    def _loop(self) -> None:
        now = self.elapsed_seconds
        shown = logged = saved = now
        saved_version = self.learner.version
        config = self._config
        for event in self._coordinator.run():
            now = self.elapsed_seconds
            arrival = _arrival(event)
            if self._arrivals is not None and arrival is not None:
                self._record(self._arrivals, arrival)
            if isinstance(event, Outcome):
                self._metrics.add(event)
                self._take_episodes(event.report)
                if event.dropped is not None:
                    self._note_dropped(event)
            elif isinstance(event, EvaluationResult):
                self._take_evaluation(event)
            elif isinstance(event, Failed):
                self._say(f"actor {event.actor_id}: {event.reason}")
            elif isinstance(event, Replaced):
                self._say(_replacement(event))
                if event.replacement_id is None:
                    self._evaluations.lost(now, config.supervision.backoff_seconds)
            elif isinstance(event, Joined):
                self._say(f"actor {event.actor_id} joins")
            elif isinstance(event, Released):
                self._say(f"actor {event.actor_id}: its place is about to go; it made its last report")
            self._window_counts = self._window.counts(len(self.learner.recent_returns), self._executor.actors)
            if now - shown >= min(1.0, config.log_every_seconds):
                self._latest, shown = self._progress(), now
            if now - logged >= config.log_every_seconds:
                self._log()
                logged = now
            # Before a checkpoint, which then has it under way.
            if self._status == "running":
                self._evaluate_if_due(now)
            new_updates = self.learner.version - saved_version
            if now - saved >= config.checkpoint.every_seconds or (
                config.checkpoint.every_updates and new_updates >= config.checkpoint.every_updates
            ):
                self._save()
                saved, saved_version = self.elapsed_seconds, self.learner.version
            self._stop_if_due()
            if self._exact and self._status != "running":
                # What is under way is saved as that. Taken in here, its actors would not be sent on as they are there.
                break

        if self._arrivals is not None:
            self._arrivals.close()
        if self._status == "running" and config.replay_arrivals is not None:
            self._status = "arrivals_replayed"

    def _stop_if_due(self) -> None:
        if self._status != "running":
            return
        config = self._config
        if self._interrupted.is_set():
            self._status = "interrupted"
        elif self._mark is not None and self._mark.confirmed is not None:
            self._status = "return_reached"
        elif self.learner.frames >= config.total_frames:
            self._status = "frames_reached"
        elif config.stop_after_seconds is not None and self.elapsed_seconds >= config.stop_after_seconds:
            self._status = "time_reached"
        if self._status != "running":
            self._coordinator.stop()

    def _take_episodes(self, report: GradientReport) -> None:
        self._window.reported(report.actor_id, report.unfinished_environments)
        self._first_episodes.add(report.episodes.returns.tolist())

    def _evaluate_if_due(self, now: float) -> None:
        """Have the weights evaluated that cross the mark, again if the evaluator died over it, and others regularly."""
        learner, evaluations = self.learner, self._evaluations
        at = Moment(learner.version, learner.episodes, learner.ledger.sampled, learner.frames, now, learner.mean_return)
        repeated = evaluations.to_repeat(now)
        if repeated is not None:
            asked, snapshot = repeated
            self._coordinator.evaluate(asked.policy, snapshot)
            evaluations.asked_to_confirm(asked, snapshot)
        elif self._mark is not None and self._mark.crosses(at, counts=self._window_counts):
            self._say(
                f"the mean return of the last 100 training episodes is {at.mean_return_100:.2f}, at the mark of "
                f"{self._mark.mean_return:g}: an evaluation of update {at.update} is to confirm it"
            )
            snapshot = self._coordinator.evaluate(CONFIRMING_POLICY)
            evaluations.asked_to_confirm(Asked(at, CONFIRMING_POLICY), snapshot)
        elif evaluations.is_due(learner.frames):
            self._coordinator.evaluate(self._config.evaluation.policy)
            evaluations.asked(Asked(at, self._config.evaluation.policy))

    def _take_evaluation(self, result: EvaluationResult) -> None:
        self._last_evaluation = evaluation_entry(result, self._first_episodes.mean_return)
        mean = self._last_evaluation["mean_return"]
        self._metrics.add_evaluation(mean)
        self._say(f"evaluation of update {result.version}: {evaluation_line(self._last_evaluation)}")
        if result.video is not None:
            self._keep_video(result.version, result.video)
        asked = self._evaluations.taken(result)
        confirmed = self._mark is not None and self._mark.evaluated(
            mean, asked.at, asked.policy, episodes=self.learner.episodes
        )
        self._keep_best(result.version, result.parameters, mean, "evaluation", surely=confirmed)

    def _keep_best(
        self, version: int, parameters: Float32Array, mean: float, measure: str, *, surely: bool = False
    ) -> None:
        """Write the weights if no earlier ones were as good: an evaluation says more than what training saw."""
        if self._best_return is not None and not surely:
            best = self._best_measure == "evaluation", self._best_return
            if (measure == "evaluation", mean) <= best:
                return
        self._best_return, self._best_measure = mean, measure
        part = self._folder.best_weights.with_suffix(".part.npz")
        try:
            np.savez(part, version=version, parameters=parameters, mean_return=mean, measure=measure)
            part.replace(self._folder.best_weights)
        except OSError as error:
            self._say(f"warning: the best weights could not be written: {error.strerror}; training goes on")

    def _keep_video(self, version: int, video: Video) -> None:
        file = self._folder.videos / f"update-{version}.gif"
        try:
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(video.gif)
        except OSError as error:
            self._say(f"warning: the video of an evaluation could not be written: {error.strerror}")
        self._trackers.write_video(video.gif, video.width, video.height, self.learner.frames)

    def _record(self, arrivals: ArrivalsWriter, arrival: Arrival) -> None:
        try:
            arrivals.add(arrival)
        except OSError as error:
            self._arrivals = None
            self._say(
                f"warning: {self._config.record_arrivals} could not be written: {error.strerror}; the order is kept up "
                f"to here, and training goes on"
            )

    def _note_dropped(self, outcome: Outcome) -> None:
        """Say so for the first report that is dropped for a reason, the tenth, the hundredth …"""
        reason = str(outcome.dropped)
        self._dropped_reports[reason] += 1
        count = self._dropped_reports[reason]
        if count == 10 ** (len(str(count)) - 1):
            which = "a report" if count == 1 else f"the {count}th report"
            self._say(f"dropped {which} for the reason {reason}, of actor {outcome.report.actor_id}")

    def _save(self) -> None:
        """Write a checkpoint; where that fails, warn and go on with those there are."""
        if not self.learner.is_finite():
            raise TrainingStoppedError(
                f"the parameters are not finite any more at update {self.learner.version}; the last checkpoint is from "
                f"before that: resume it with a lower --optimizer.learning-rate"
            )
        try:
            self._checkpoints.save(self.learner.version)
        except CheckpointError as error:
            self._say(f"warning: {error}; training goes on")
        if not self._config.evaluation.every_frames and self._window_counts:
            # Nobody evaluates, before the mark: the best by what training saw, looked at when a checkpoint is due.
            snapshot, mean = self.learner.snapshot(), self.learner.mean_return
            assert mean is not None
            self._keep_best(snapshot.version, snapshot.parameters, mean, "training")
        if self._copy is not None:
            self._say_if_not_copied(self._copy.start())

    def _say_if_not_copied(self, failure: str | None) -> None:
        if failure is not None:
            self._say(f"warning: the copy at {self._config.storage} could not be brought up to date: {failure}")

    def _account_for(self, death: LearnerDeath) -> None:
        """Count what the dead learner had taken in since the checkpoint that is gone on from: it is done again."""
        lost = max(0, death.agent_steps_seen - self.learner.ledger.sampled)
        self._learner_restarts += 1
        self._agent_steps_lost += lost
        self._say(
            f"learner: {death.reason}; the run goes on from its checkpoint of update {self.learner.version}, and plays "
            f"{lost:,} agent steps again"
        )

    def _progress(self) -> Progress:
        return self._metrics.progress(
            self.elapsed_seconds,
            self._executor.actors,
            self._earlier_restarts + self._coordinator.actor_restarts,
        )

    def _log(self) -> None:
        row = self._latest = self._progress()
        try:
            self._rows.write(row)
            self._metrics_missing = False
        except OSError as error:
            if not self._metrics_missing:
                self._say(f"warning: metrics could not be written: {error.strerror}; training goes on")
            self._metrics_missing = True
        self._trackers.write(row)
        for warning in (self._metrics.next_interval(row), self._annealing.message(row)):
            if warning is not None:
                self._say(f"warning: {warning}")

    def _finish(self) -> dict[str, Any]:
        self._log()
        self._rows.close()
        try:
            self._save()
        except TrainingStoppedError as error:
            self._say(str(error))
            self._status = "running"
        learner, ledger = self.learner, self.learner.ledger
        if self._status == "time_reached" and ledger.sampled == self._sampled_before:
            self._say("no actor has made a report before the time was up: nothing was learned")
            self._status = "failed"
        lag_mean, lag_p95, lag_max = lag_summary(learner.lag_counts)
        elapsed = self.elapsed_seconds
        actor = self._config.actor
        rollouts_lost = self._earlier_rollouts_lost + self._coordinator.rollouts_lost
        summary = {
            "status": self._status if self._status != "running" else "failed",
            "agent_steps_sampled": ledger.sampled,
            "agent_steps_applied": ledger.applied,
            "agent_steps_dropped": ledger.dropped_if_it_ends(),
            "frames": learner.frames,
            "updates": ledger.updates,
            "gradients_applied": ledger.gradients_applied,
            "messages": self._earlier_messages + self._coordinator.messages,
            "agent_steps_per_second": ledger.sampled / elapsed,
            "frames_per_second": learner.frames / elapsed,
            "policy_lag_mean": lag_mean,
            "policy_lag_p95": lag_p95,
            "policy_lag_max": lag_max,
            "mean_return_100": learner.mean_return,
            "mean_return_first_100": self._first_episodes.mean_return,
            **crossings(self._mark),
            "episodes": learner.episodes,
            "target_updates": learner.target_updates,
            "evaluation": self._last_evaluation,
            "actor_restarts": self._earlier_restarts + self._coordinator.actor_restarts,
            "rollouts_lost_with_actors": rollouts_lost,
            "agent_steps_lost_with_actors_at_most": rollouts_lost * actor.unroll_length * actor.environments,
            "learner_restarts": self._learner_restarts,
            "agent_steps_lost_with_learner": self._agent_steps_lost,
            "tracker_rows_left_out": self._trackers.rows_left_out,
            "wall_seconds": elapsed,
        }
        self._write_summary(summary)
        # Only now, since a tracker that does not answer takes its time to be given up.
        self._trackers.close()
        if self._trackers.rows_left_out != summary["tracker_rows_left_out"]:
            summary["tracker_rows_left_out"] = self._trackers.rows_left_out
            self._write_summary(summary)
        if self._copy is not None:
            self._say_if_not_copied(self._copy.finish())
        return summary

    def _write_summary(self, summary: dict[str, Any]) -> None:
        try:
            write_json(self._folder.summary, summary)
        except OSError as error:
            self._say(f"warning: {self._folder.summary.name} could not be written: {error.strerror}")

    def _say(self, message: str) -> None:
        self._messages.append(message)
        # On a full disk the message is still shown.
        with suppress(OSError), open(self._folder.path / "log.txt", "a") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n")

    def _state(self) -> dict[str, Any]:
        return {
            **self.learner.state(),
            "elapsed_seconds": self.elapsed_seconds,
            "evaluated_frames": self._evaluations.since_frames,
            "messages": self._earlier_messages + self._coordinator.messages,
            "actor_restarts": self._earlier_restarts + self._coordinator.actor_restarts,
            "rollouts_lost": self._earlier_rollouts_lost + self._coordinator.rollouts_lost,
            "learner_restarts": self._learner_restarts,
            "agent_steps_lost": self._agent_steps_lost,
            "best_return": self._best_return,
            "best_measure": self._best_measure,
            "return_mark": None if self._mark is None else self._mark.state(),
            "first_episodes": self._first_episodes.state(),
            # Only where the actors, and the calls under way, are the same as before.
            "training_window": self._window.state() if self._exact else None,
            "evaluations": self._evaluations.state() if self._exact else None,
            "executor": self._executor.state() if self._exact else None,
        }

    def _restore_state(self, state: dict[str, Any]) -> None:
        self.learner.restore_state(state)
        self._earlier_seconds = state["elapsed_seconds"]
        self._earlier_messages = state.get("messages", 0)
        self._earlier_restarts = state["actor_restarts"]
        self._earlier_rollouts_lost = state["rollouts_lost"]
        self._learner_restarts = state["learner_restarts"]
        self._agent_steps_lost = state["agent_steps_lost"]
        self._saved_executor = state["executor"] if self._exact else None
        self._best_return = state.get("best_return")
        evaluates = bool(self._config.evaluation.every_frames)
        self._best_measure = state.get("best_measure", "evaluation" if evaluates else "training")
        self._first_episodes.restore(state.get("first_episodes"))
        self._evaluations = Evaluations(self._config.evaluation, state.get("evaluated_frames", self.learner.frames))
        # With a new executor, evaluations under way are lost, and the environments in their first episodes.
        goes_on = self._saved_executor is not None and state.get("evaluations") is not None
        if goes_on:
            self._window.restore(state["training_window"])
            self._evaluations.restore(state["evaluations"])
        if self._mark is not None and state.get("return_mark") is not None:
            self._mark.restore(state["return_mark"], asked=goes_on)


def _replacement(event: Replaced) -> str:
    if event.replacement_id is None:
        return f"evaluator: {event.failed.reason}; another one replaces it"
    return f"actor {event.replacement_id} replaces actor {event.failed.actor_id}"


def _arrival(event: Event | None) -> Arrival | None:
    """Whose call ended with this event, if one did."""
    if isinstance(event, Outcome):
        return Arrival(event.report.actor_id)
    if isinstance(event, Failed):
        return Arrival(event.actor_id, lost=True)
    return Arrival(None) if isinstance(event, EvaluationResult) else None
