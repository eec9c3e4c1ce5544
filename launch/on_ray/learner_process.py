"""The learner's process, and the driver's side of it: start, progress, copies of the run folder, restarts.

    driver                                              learner's process (on the node of the placement)
    run_learners ── LearnerStart, resume files ───────► LearnerProcess ── TrainingSession ── coordinator, executor
    RemoteLearner ◄── progress, every second ─────────
                  ◄── changes of the folder, every 10 s (if the learner has no access to the driver's folder)
    process or node lost: a new placement, another learner from the last checkpoint

The process imports TensorFlow, and modules that need it, after threads and devices have been set, and never in the
driver.
"""

import re
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import ray
from ray.exceptions import RayActorError, RayTaskError

from actors.environments import EnvironmentSpec
from launch.interrupts import StoppedBeforeTrainingError, StopRequest
from launch.loop.executor import Executor
from launch.machine import without_collections
from launch.on_ray.cluster import ClusterSlots, cluster_nodes, on_node
from launch.on_ray.executor import PROCESS_OPTIONS, RayExecutor, failure_reason
from launch.on_ray.node_aggregator import NodesExecutor
from launch.on_ray.placement import Placement, Slots, aggregation, place, placement_lines
from launch.run.events import Progress, View
from launch.run.folder import RunFolder
from launch.run.saving import Changes, Stamp, apply_changes, changes_since
from launch.run.summary import LearnerDeath
from launch.tensorflow_setup import prepare_for
from shared.config import RunConfig
from shared.errors import ConfigurationError, TrainingFailedError

if TYPE_CHECKING:
    from launch.run.session import TrainingSession

# `run` occupies one thread; `view`, `interrupt` and `folder_changes` are served beside it.
_LEARNER_THREADS = 3
# A file in the run folder, by which the learner sees whether its folder is the driver's own.
_MARK = ".driver"
# Videos and TensorBoard's events: gigabytes in a long run, and a learner that goes on needs none. The driver's copy
# keeps them.
_NOT_SENT = re.compile(r"videos/.*|(.*/)?events\.out\.tfevents\..*")

VIEW_SECONDS = 1.0
_COPY_SECONDS = 10.0
# A copy of hundreds of megabytes over a slow network.
_LAST_COPY_SECONDS = 300.0
# A learner that dies again and again has a lasting cause, which another one would meet too.
_MOST_RESTARTS = 3

Summary = dict[str, Any]
# Called with `wait`, `view` and `interrupt`: shows the result of `view`, calls `interrupt` when the user stops the run,
# and returns the summary as soon as `wait` does.
Watch = Callable[[Callable[[], Summary | None], Callable[[dict[str, float]], View], Callable[[], None]], Summary]


class LearnerStart(NamedTuple):
    """The arguments of a learner's process.

    Attributes:
        started: the driver's `time.time()` at the beginning of the start-up.
        death: of the learner before this one in the same run.
        sent: see `sent_folder`, for a learner that may be on another machine.
    """

    config: RunConfig
    spec: EnvironmentSpec
    folder: Path
    placement: Placement
    resume: bool
    started: float
    death: LearnerDeath | None = None
    sent: tuple[str, Changes] | None = None


class LearnerProcess:
    """A `TrainingSession` over Ray actors. `run` returns the summary; other methods may be called meanwhile.

    Each method raises the error of the session's construction. To Ray, a constructor that raises is a process that
    died, and Ray would print the traceback on the driver's terminal.
    """

    def __init__(self, start: LearnerStart) -> None:
        self._folder, self._shared = start.folder, True
        self._session = futures.ThreadPoolExecutor(1).submit(self._make_session, start)

    def _make_session(self, start: LearnerStart) -> "TrainingSession":
        config, spec, folder, placement, resume, started, death, sent = start
        if sent is not None:
            mark, (content, files) = folder / _MARK, sent
            self._shared = mark.is_file() and mark.read_text(encoding="utf-8") == content
            if not self._shared:
                # The driver is on another machine, without a file system in common.
                apply_changes(folder, files)

        def executor_from(first_actor_id: int) -> Executor:
            slots = Slots(placement.total_actors) if placement.here else ClusterSlots(config, placement.learner)
            level, _ = aggregation(config, placement)
            executor = (NodesExecutor if level == "node" else RayExecutor)(config, spec, slots, first_actor_id)
            undo.callback(executor.close)
            return executor

        with ExitStack() as undo, without_collections(freeze=True):
            # The actors import TensorFlow beside this process. A checkpoint to resume from has their first id.
            early = None if resume else executor_from(0)
            prepare_for("learner", config)
            from launch.run.session import make_session

            make_executor = executor_from if early is None else lambda _: early
            session = make_session(config, spec, folder, make_executor, resume=resume, after=death, started=started)
            undo.pop_all()
            return session

    def run(self) -> Summary:
        return self._session.result().run()

    def view(self, numbers: Mapping[str, float]) -> View:
        return self._session.result().view(numbers)

    def interrupt(self) -> None:
        self._session.result().interrupt()

    def folder_changes(self, known: dict[str, Stamp]) -> Changes:
        """See `changes_since`. Empty if the driver has access to the same folder."""
        return Changes({}, {}) if self._shared else changes_since(self._folder, known, tails=True)


def run_learners(start: LearnerStart, watch: Watch, say: Callable[[str], None], stop: StopRequest) -> Summary:
    """Run a learner to its end. If its process dies, another one goes on from the last checkpoint.

    Raises:
        ConfigurationError: the run cannot start; nothing was learned.
        RayError: the run failed, or its learner died more often than it may.
        KeyboardInterrupt: the run was stopped while it waited for nodes, or for another learner to be ready. Its last
            checkpoint is its result.
    """
    restarts = 0
    while True:
        if not start.placement.here:
            start = start._replace(sent=sent_folder(start.folder))
        process = start_learner(start)
        learner = RemoteLearner(process, start.folder, say, alone=start.placement.here)
        try:
            return watch(learner.wait, learner.view, learner.interrupt)
        except KeyboardInterrupt as error:
            if not isinstance(error, StoppedBeforeTrainingError):
                # A second Ctrl-C, which may come before the first one was passed on.
                if learner.ready:
                    raise
                ray.kill(process, no_restart=True)
            if start.death is None or not start.resume:
                raise StoppedBeforeTrainingError from None
            # The files of earlier learners must not be discarded.
            say("stopped before another learner was ready: the run ends with its last checkpoint")
            raise KeyboardInterrupt from None
        except RayTaskError as error:
            # It raised and its process lives: another one would raise the same.
            if restarts == 0 and isinstance(error.cause, ConfigurationError):
                raise error.cause from None
            raise
        except RayActorError as error:
            if stop.requested or restarts == _MOST_RESTARTS:
                raise
            restarts += 1
            say(f"learner: its process died; another one goes on from the last checkpoint ({restarts})")
            # Its node may be unreachable and not dead: Ray then frees its resources, and its actors end with it.
            ray.kill(process, no_restart=True)
            resume = start.resume or RunFolder(start.folder).has_checkpoint
            death = LearnerDeath(failure_reason(error), learner.progress.agent_steps)
            start = start._replace(resume=resume, started=time.time(), death=death)
            if not start.placement.here:
                start = start._replace(placement=_place_again(start.config, say, stop))


def start_learner(start: LearnerStart) -> Any:
    # It takes no core from the actors' count. Ray hides no GPU that it does not grant: `prepare_for` does.
    gpus = int(start.config.learner.device == "gpu")
    options = PROCESS_OPTIONS | on_node(start.placement.learner.id)
    remote = ray.remote(num_cpus=0, num_gpus=gpus, max_concurrency=_LEARNER_THREADS, **options)
    return remote(LearnerProcess).remote(start)


def sent_folder(folder: Path) -> tuple[str, Changes]:
    """The content of a new mark in the driver's folder, and the files there that a learner elsewhere resumes from."""
    mark = secrets.token_hex(8)
    (folder / _MARK).write_text(mark, encoding="utf-8")
    return mark, changes_since(folder, {}, leave_out=_NOT_SENT)


def _place_again(config: RunConfig, say: Callable[[str], None], stop: StopRequest) -> Placement:
    """Wait until the nodes have room for the run, and plan its placement."""
    shown = ""
    while not stop.requested:
        nodes = cluster_nodes()
        try:
            placement = place(config, nodes)
        except ConfigurationError as error:
            if str(error) != shown:
                shown = str(error)
                say(f"waiting for nodes: {shown}")
            # Ray sends no event when a node joins, and `stop` has none on purpose.
            time.sleep(VIEW_SECONDS)
            continue
        for line in placement_lines(config, placement, nodes):
            say(line)
        return placement
    say("stopped while it waited for nodes: what it has saved is kept")
    raise KeyboardInterrupt


class RemoteLearner:
    """The driver's view of a learner's process. It copies the learner's folder, if that is another, to this machine.

    `alone`: the run is on this machine alone.
    """

    def __init__(self, process: Any, folder: Path, say: Callable[[str], None], *, alone: bool = False) -> None:
        self._process, self._folder, self._alone = process, folder, alone
        self._result = process.run.remote()
        self._stamps: dict[str, Stamp] = {}
        self._copied = time.monotonic()
        # The call whose result the next copy is.
        self._next_changes: Any = None
        self._say, self._copy_fails = say, False
        # The call whose result the next view is.
        self._next_view: Any = None
        self._numbers = dict[str, float]()
        # True if the process has responded, and its last progress.
        self.ready, self.progress = False, Progress()

    def wait(self) -> Summary | None:
        """The summary, if the run ends within a moment."""
        ready, _ = ray.wait([self._result], timeout=VIEW_SECONDS)
        if not ready:
            # The death of the learner's machine costs the copy ten seconds of metrics and log.
            if time.monotonic() - self._copied >= _COPY_SECONDS:
                self._copy()
            return None
        # Before the result, which may be an error: a run that fails has saved. After the death of the process there is
        # nothing to copy, and the result has the reason.
        with suppress(RayActorError):
            self._copy_last()
        summary: Summary = ray.get(self._result)
        return summary

    def _copy_last(self) -> None:
        """Update the copy to the state at the run's end, unless the node does not respond any more."""
        # Changes under way may be older than the end.
        for _ in range(1 if self._next_changes is None else 2):
            if not self._copy(_LAST_COPY_SECONDS):
                self._say(
                    f"warning: the copy of the run in {self._folder} is not complete: the learner's machine did not "
                    f"respond within {_LAST_COPY_SECONDS:.0f} seconds"
                )

    def _copy(self, most_seconds: float = VIEW_SECONDS) -> bool:
        """Update the copy, in a later call if the process does not respond within `most_seconds`. Returns whether it
        did. A full disk here ends no run elsewhere."""
        if self._next_changes is None:
            self._next_changes = self._process.folder_changes.remote(self._stamps)
        if not ray.wait([self._next_changes], timeout=most_seconds)[0]:
            return False
        self._copied = time.monotonic()
        self._next_changes, changes = None, ray.get(self._next_changes)
        if changes.stamps:
            self._apply(changes)
        return True

    def _apply(self, changes: Changes) -> None:
        try:
            apply_changes(self._folder, changes)
        except OSError as error:
            if not self._copy_fails:
                self._say(
                    f"warning: the copy of the run in {self._folder} cannot be written: {error.strerror}; the run goes "
                    f"on, and the copy is tried again every {_COPY_SECONDS:.0f} seconds"
                )
            # A part may have been written: the next copy is of the whole folder.
            self._copy_fails, self._stamps = True, {}
            return
        if self._copy_fails:
            self._say(f"the copy of the run in {self._folder} is up to date again")
        self._copy_fails, self._stamps = False, changes.stamps

    def view(self, numbers: Mapping[str, float]) -> View:
        """See `TrainingSession.view`. The last progress again while the process does not respond, as in its start.

        Raises:
            TrainingFailedError: it will not, because Ray's process of this machine, on which the run is alone, died.
        """
        self._numbers |= numbers
        if self._next_view is None:
            self._next_view = self._process.view.remote(self._numbers)
            self._numbers = {}
        if not ray.wait([self._next_view], timeout=VIEW_SECONDS)[0]:
            # Ray would wait for another machine for ever.
            if self._alone and not self.ready and not cluster_nodes():
                raise TrainingFailedError("Ray's process of this machine, the raylet, has died: --resume continues")
            return View(self.progress, [])
        view: View = ray.get(self._next_view)
        self._next_view, self.ready, self.progress = None, True, view.progress
        return view

    def interrupt(self) -> None:
        """See `TrainingSession.interrupt`.

        Raises:
            StoppedBeforeTrainingError: the process has not started yet.
        """
        if not self.ready:
            # The process would go on to write into the folder.
            ray.kill(self._process, no_restart=True)
            raise StoppedBeforeTrainingError
        ray.get(self._process.interrupt.remote())
