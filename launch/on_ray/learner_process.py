"""The learner's process, and the driver's side of it: start, progress, copies of the run folder, restarts.

    driver                                              learner's process (on the node of the placement)
    run_learners ── LearnerStart, resume files ───────► LearnerProcess ── TrainingSession ── coordinator, executor
    RemoteLearner ◄── progress, every second ─────────
                  ◄── changes of the folder, every 10 s (if the learner has no access to the driver's folder)
    process or node lost: a new placement, another learner from the last checkpoint

The process imports TensorFlow, and modules that need it, in its constructor: after threads and devices have been set,
and never in the driver.
"""

import itertools
import re
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
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
from launch.tensorflow_setup import prepare_tensorflow
from shared.config import RunConfig
from shared.errors import ConfigurationError

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
# Called with `wait`, `view` and `interrupt`: shows what `view` returns, calls `interrupt` when the user stops the run,
# and returns the summary as soon as `wait` does.
Watch = Callable[[Callable[[], Summary | None], Callable[[bool, dict[str, float]], View], Callable[[], None]], Summary]


class SentFolder(NamedTuple):
    """The files of the driver's run folder that a learner on another machine resumes from.

    `mark` is the content of the file `.driver` there.
    """

    mark: str
    files: Changes


class LearnerStart(NamedTuple):
    """The arguments of a learner's process.

    `sent` is None where all processes are on one machine. `death` is that of the learner before this one in the same
    run. `started` is the driver's `time.time()` at the beginning of the start-up.
    """

    config: RunConfig
    spec: EnvironmentSpec
    folder: Path
    placement: Placement
    resume: bool
    death: LearnerDeath | None
    sent: SentFolder | None
    started: float


class LearnerProcess:
    """A `TrainingSession` over Ray actors. `run` returns the summary; other methods may be called meanwhile.

    Each method raises what the constructor raised. To Ray, a constructor that raises is a process that died, and Ray
    would print the traceback on the driver's terminal.
    """

    def __init__(self, start: LearnerStart) -> None:
        self._folder, self._shared = start.folder, True
        self._session: TrainingSession | None = None
        self._not_made: Exception | None = None
        try:
            with without_collections(freeze=True):
                self._session = self._make_session(start)
        except Exception as error:
            # Raised by `run`, `view` and `interrupt` with its type, which the driver reads.
            self._not_made = error

    def _make_session(self, start: LearnerStart) -> "TrainingSession":
        if start.sent is not None:
            mark = start.folder / _MARK
            self._shared = mark.is_file() and mark.read_text(encoding="utf-8") == start.sent.mark
            if not self._shared:
                # The driver is on another machine, without a file system in common.
                apply_changes(start.folder, start.sent.files)
        config, spec, placement = start.config, start.spec, start.placement

        made: list[Executor] = []

        def executor_from(first_actor_id: int) -> Executor:
            slots = Slots(placement.total_actors) if placement.here else ClusterSlots(config, placement.learner)
            kind = NodesExecutor if aggregation(config, placement).level == "node" else RayExecutor
            made.append(kind(config, spec, slots, first_actor_id))
            return made[0]

        # The actors import TensorFlow beside this process. A checkpoint to resume from has their first id.
        early = None if start.resume else executor_from(0)
        try:
            prepare_tensorflow(gpu=config.learner.device == "gpu", network=config.network)
            from launch.run.session import TrainingSession

            return TrainingSession(
                config,
                spec,
                start.folder,
                executor_from if early is None else lambda _: early,
                resume=start.resume,
                after=start.death,
                started=start.started,
            )
        except BaseException:
            for executor in made:
                executor.close()
            raise

    def run(self) -> Summary:
        return self._made().run()

    def view(self, weights: bool = False, numbers: Mapping[str, float] | None = None) -> View:
        return self._made().view(weights, numbers)

    def interrupt(self) -> None:
        self._made().interrupt()

    def folder_changes(self, known: dict[str, Stamp]) -> Changes:
        """See `changes_since`. Empty if the driver has access to the same folder."""
        return Changes({}, {}) if self._shared else changes_since(self._folder, known, tails=True)

    def _made(self) -> "TrainingSession":
        if self._not_made is not None:
            raise self._not_made
        assert self._session is not None
        return self._session


def run_learners(
    config: RunConfig,
    spec: EnvironmentSpec,
    folder: RunFolder,
    placement: Placement,
    *,
    resume: bool,
    started: float,
    watch: Watch,
    say: Callable[[str], None],
    stop: StopRequest,
) -> Summary:
    """Run a learner to its end. If its process dies, another one goes on from the last checkpoint.

    Raises:
        ConfigurationError: the run cannot start; nothing was learned.
        RayError: the run failed, or its learner died more often than it may.
        KeyboardInterrupt: the run was stopped while it waited for nodes. Its last checkpoint is its result.
    """
    death = None
    for restarts in itertools.count():
        sent = None if placement.here else sent_folder(folder.path)
        process = start_learner(LearnerStart(config, spec, folder.path, placement, resume, death, sent, started))
        learner = RemoteLearner(process, folder.path, say, copies=sent is not None)
        try:
            return watch(learner.wait, learner.view, learner.interrupt)
        except RayTaskError as error:
            # It raised and its process lives: another one would raise the same.
            if restarts == 0 and isinstance(error.cause, ConfigurationError):
                raise error.cause from None
            raise
        except RayActorError as error:
            if stop.requested or restarts == _MOST_RESTARTS:
                raise
            say(f"learner: its process died; another one goes on from the last checkpoint ({restarts + 1})")
            # Its node may be unreachable and not dead: Ray then frees its resources, and its actors end with it.
            ray.kill(process, no_restart=True)
            resume, started = resume or folder.has_checkpoint, time.time()
            death = LearnerDeath(failure_reason(error), learner.agent_steps)
            if not placement.here:
                placement = _place_again(config, say, stop)
    raise AssertionError("unreachable")


def start_learner(start: LearnerStart) -> Any:
    """Start the learner's process on its node."""
    # It takes no core from the actors' count. Ray hides no GPU that it does not grant: `prepare_tensorflow` does.
    gpus = int(start.config.learner.device == "gpu")
    options = PROCESS_OPTIONS | on_node(start.placement.learner.id)
    remote = ray.remote(num_cpus=0, num_gpus=gpus, max_concurrency=_LEARNER_THREADS, **options)
    return remote(LearnerProcess).remote(start)


def sent_folder(folder: Path) -> SentFolder:
    """The files that a learner resumes from, and a new mark in the folder."""
    mark = secrets.token_hex(8)
    (folder / _MARK).write_text(mark, encoding="utf-8")
    return SentFolder(mark, changes_since(folder, {}, leave_out=_NOT_SENT))


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
    raise KeyboardInterrupt


class RemoteLearner:
    """The driver's view of a learner's process. With `copies` it copies the learner's folder to this machine."""

    def __init__(self, process: Any, folder: Path, say: Callable[[str], None], *, copies: bool) -> None:
        self._process = process
        self._result = process.run.remote()
        self._folder, self._copies = folder, copies
        self._stamps: dict[str, Stamp] = {}
        self._copied = time.monotonic()
        # The call whose result the next copy is.
        self._next_changes: Any = None
        self._say, self._copy_fails = say, False
        # The call whose result the next view is, and the last progress.
        self._next_view: Any = None
        self._weights_requested, self._numbers = False, dict[str, float]()
        self._progress: Progress | None = None

    @property
    def agent_steps(self) -> int:
        """Agent steps of the last progress."""
        return 0 if self._progress is None else self._progress.agent_steps

    def wait(self) -> Summary | None:
        """The summary, if the run ends within a moment."""
        ready, _ = ray.wait([self._result], timeout=VIEW_SECONDS)
        if ready:
            # Before the result, which may be an error: a run that fails has saved. After the death of the process
            # there is nothing to copy, and the result has the reason.
            with suppress(RayActorError):
                self._copy_last()
            summary: Summary = ray.get(self._result)
            return summary
        # Ten seconds of metrics and log are what the death of the learner's machine costs the copy.
        if time.monotonic() - self._copied >= _COPY_SECONDS:
            self._copy()
        return None

    def _copy_last(self) -> None:
        """Update the copy to what a run has left, unless its node does not respond any more."""
        # Changes that are under way may be of before the end.
        for _ in range(1 if self._next_changes is None else 2):
            if not self._copy(_LAST_COPY_SECONDS):
                self._say(
                    f"warning: the copy of the run in {self._folder} is not complete: the learner's machine did not "
                    f"respond within {_LAST_COPY_SECONDS:.0f} seconds"
                )

    def _copy(self, most_seconds: float = VIEW_SECONDS) -> bool:
        """Update the copy, in a later call if the process does not respond within `most_seconds`: a process that is
        being made responds to nothing. Returns whether it did. A full disk here ends no run elsewhere."""
        if not self._copies:
            return True
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
            self._copy_fails = True
            # Part of it may have been written: the next copy is of the whole folder.
            self._stamps = {}
            return
        if self._copy_fails:
            self._say(f"the copy of the run in {self._folder} is up to date again")
        self._copy_fails = False
        self._stamps = changes.stamps

    def view(self, weights: bool = False, numbers: Mapping[str, float] | None = None) -> View:
        """See `TrainingSession.view`. The last progress again while the process does not respond, as in its start."""
        self._weights_requested |= weights
        self._numbers |= numbers or {}
        if self._next_view is None:
            self._next_view = self._process.view.remote(self._weights_requested, self._numbers)
            self._weights_requested, self._numbers = False, {}
        if not ray.wait([self._next_view], timeout=VIEW_SECONDS)[0]:
            return View(self._progress or Progress(), [])
        view: View = ray.get(self._next_view)
        self._next_view, self._progress = None, view.progress
        return view

    def interrupt(self) -> None:
        """See `TrainingSession.interrupt`.

        Raises:
            StoppedBeforeTrainingError: the process has not started yet.
        """
        if self._progress is None:
            # It would go on to write into the folder.
            ray.kill(self._process, no_restart=True)
            raise StoppedBeforeTrainingError
        ray.get(self._process.interrupt.remote())
