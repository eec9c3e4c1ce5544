"""The learner's process, and the driver's side of it: start, progress, restarts.

    driver                                              learner's process (on the node of the placement)
    run_learners ── LearnerStart ─────────────────────► LearnerProcess ── TrainingSession ── coordinator, executor
    RemoteLearner ◄── progress, every second ─────────
    process or node lost: a new placement, another learner from the last checkpoint

On another node the learner needs access to the run folder of the driver, which is on a shared file system then.

The process imports TensorFlow, and modules that need it, in its constructor: after threads and devices have been set,
and never in the driver, which only names the class.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import ray
from ray.exceptions import ActorUnschedulableError, RayActorError, RayTaskError

from actors.environments import EnvironmentSpec
from launch.interrupts import StoppedBeforeTrainingError, StoppedWithoutLearnerError, StopRequest
from launch.loop.executor import Executor
from launch.on_ray.cluster import ClusterSlots, cluster_nodes, on_node
from launch.on_ray.executor import DYING_SECONDS, PROCESS_OPTIONS, RayExecutor, failure_reason
from launch.on_ray.node_aggregator import AggregatingExecutor
from launch.on_ray.placement import Placement, Slots, gradients_per_sum_by_node, place, placement_lines
from launch.processes import without_collections
from launch.run.events import Progress, View
from launch.run.folder import RunFolder
from launch.run.lock import LOCK_FILE
from launch.run.session_thread import VIEW_SECONDS, SessionThread
from launch.run.summary import LearnerDeath
from launch.tensorflow_setup import prepare_for
from shared.config import RunConfig
from shared.errors import ConfigurationError, TrainingFailedError, setting_error

if TYPE_CHECKING:
    from launch.run.session import TrainingSession

# `interrupt` is served beside `poll`.
_LEARNER_THREADS = 2
# A learner that dies again and again has a lasting cause, which another one would meet too.
_MAX_RESTARTS = 3


class LearnerStart(NamedTuple):
    """The arguments of a learner's process.

    Attributes:
        started: the driver's `time.time()` at the beginning of the start-up.
        death: of the learner before this one in the same run.
        lock: content of the lock file in the driver's folder, which the learner must find in its own; None for a
            learner on the driver's machine.
    """

    config: RunConfig
    spec: EnvironmentSpec
    folder: Path
    placement: Placement
    resume: bool
    started: float
    death: LearnerDeath | None = None
    lock: bytes | None = None


class LearnerProcess(SessionThread):
    """A `TrainingSession` over Ray actors.

    Each method raises the error of the session's construction. To Ray, a constructor that raises is a process that
    died, and Ray would print the traceback on the driver's terminal.
    """

    def __init__(self, start: LearnerStart) -> None:
        super().__init__(partial(self._make_session, start))

    def _make_session(self, start: LearnerStart) -> "TrainingSession":
        config, spec, folder, placement, resume, started, death, lock = start
        if lock is not None and not ((own := folder / LOCK_FILE).is_file() and own.read_bytes() == lock):
            problem = (
                f"is not on {placement.learner.address}, the learner's node: name a folder that all nodes share, or "
                f"type the command on that node"
            )
            raise setting_error("run_dir", folder, problem)

        def executor_from(first_actor_id: int) -> Executor:
            slots = Slots(placement.total_actors)
            if not placement.here:
                slots = ClusterSlots(config, placement.learner, beside=placement.beside)
            kind = AggregatingExecutor if gradients_per_sum_by_node(config, placement) else RayExecutor
            executor = kind(config, spec, slots, first_actor_id)
            undo.callback(executor.close)
            return executor

        with ExitStack() as undo, without_collections(freeze=True):
            # The actors import TensorFlow beside this process. A checkpoint to resume from has their first id.
            early = None if resume else executor_from(0)
            prepare_for("learner", config)
            from launch.run.session import TrainingSession

            make_executor = executor_from if early is None else lambda _: early
            session = TrainingSession(config, spec, folder, make_executor, resume=resume, after=death, started=started)
            undo.pop_all()
            return session


def run_learners(
    start: LearnerStart,
    watch: Callable[["RemoteLearner"], dict[str, Any]],
    say: Callable[[str], None],
    stop: StopRequest,
) -> dict[str, Any]:
    """Let `watch` poll a learner to its end. If its process dies, another one goes on from the last checkpoint.

    Raises:
        ConfigurationError: the run cannot start; nothing was learned.
        RayError, TrainingFailedError: the run failed, or its learner died more often than it may.
        StoppedWithoutLearnerError: the run was stopped while it waited for nodes, or for another learner to be ready.
    """
    restarts = 0
    while True:
        if not start.placement.here:
            start = start._replace(lock=(start.folder / LOCK_FILE).read_bytes())
        process = start_learner(start)
        learner = RemoteLearner(process, alone=start.placement.here)
        try:
            return watch(learner)
        except KeyboardInterrupt as error:
            # A second Ctrl-C, which may come before the first one was passed on.
            if learner.ready and not isinstance(error, StoppedBeforeTrainingError):
                raise
            # The process would go on to write into the folder.
            ray.kill(process, no_restart=True)
            raise _stopped(start, say, "before another learner was ready") from None
        except RayTaskError as error:
            # It raised and its process lives: another one would raise the same.
            if not isinstance(error.cause, ConfigurationError):
                raise
            if restarts == 0 or not start.resume:
                raise error.cause from None
            # There is something to keep by now, and Ray's error is a ConfigurationError, too.
            raise TrainingFailedError(str(error.cause)) from error
        except (RayActorError, ActorUnschedulableError) as error:
            if stop.requested or restarts == _MAX_RESTARTS:
                raise
            restarts += 1
            say(f"learner: its process died; another one goes on from the last checkpoint ({restarts})")
            # Its node may be unreachable and not dead: Ray then frees its resources, and its actors end with it.
            ray.kill(process, no_restart=True)
            start = _start_after_death(start, learner, failure_reason(error))
            if not start.placement.here:
                start = start._replace(placement=_place_again(start, say, stop))


def _start_after_death(start: LearnerStart, learner: "RemoteLearner", reason: str) -> LearnerStart:
    resume = start.resume or RunFolder(start.folder).has_checkpoint
    death = LearnerDeath(reason, learner.progress.agent_steps)
    if start.death is not None and not learner.ready:
        # It was placed on a node that was about to be lost, for example: nothing has counted the death before.
        death = start.death
    return start._replace(resume=resume, started=time.time(), death=death)


def start_learner(start: LearnerStart) -> Any:
    # It takes no core from the actors' count. Ray hides no GPU that it does not grant: `prepare_for` does.
    gpus = int(start.config.learner.device == "gpu")
    options = PROCESS_OPTIONS | on_node(start.placement.learner.id)
    remote = ray.remote(num_cpus=0, num_gpus=gpus, max_concurrency=_LEARNER_THREADS, **options)
    return remote(LearnerProcess).remote(start)


def _place_again(start: LearnerStart, say: Callable[[str], None], stop: StopRequest) -> Placement:
    """Wait until the nodes have room for the run, and plan its placement."""
    config = start.config
    # The learner's node may be lost, of which Ray knows when its own process there ends, the last one.
    time.sleep(DYING_SECONDS)
    message = ""
    while not stop.requested:
        nodes = cluster_nodes()
        try:
            placement = place(config, nodes, beside=start.placement.beside)
        except ConfigurationError as error:
            if str(error) != message:
                message = str(error)
                say(f"waiting for nodes: {message}")
            # Ray sends no event when a node joins, and `stop` has none on purpose.
            time.sleep(VIEW_SECONDS)
            continue
        for line in placement_lines(config, placement, nodes):
            say(line)
        return placement
    raise _stopped(start, say, "while it waited for nodes")


def _stopped(start: LearnerStart, say: Callable[[str], None], when: str) -> KeyboardInterrupt:
    """The end of a run without a learner: one that was stopped before it trained, or that ends with its checkpoint."""
    if start.death is None or not start.resume:
        return StoppedBeforeTrainingError()
    # The files of earlier learners must not be discarded.
    say(f"stopped {when}: the run ends with its last checkpoint")
    return StoppedWithoutLearnerError()


class RemoteLearner:
    """The driver's view of a learner's process. `alone`: the run is on this machine alone."""

    def __init__(self, process: Any, *, alone: bool = False) -> None:
        self._process, self._alone = process, alone
        # The call whose result the next view is.
        self._next_view: Any = None
        self._numbers = dict[str, float]()
        # True if the process has responded, and its last progress.
        self.ready, self.progress = False, Progress()

    def poll(self, numbers: Mapping[str, float]) -> View:
        """See `SessionThread.poll`. The last progress again while the process does not respond, as in its start.

        Raises:
            TrainingFailedError: it will not, because Ray's process of this machine, on which the run is alone, died.
        """
        self._numbers |= numbers
        if self._next_view is None:
            self._next_view = self._process.poll.remote(self._numbers)
            self._numbers = {}
        if not ray.wait([self._next_view], timeout=2 * VIEW_SECONDS)[0]:
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
            raise StoppedBeforeTrainingError
        ray.get(self._process.interrupt.remote())
