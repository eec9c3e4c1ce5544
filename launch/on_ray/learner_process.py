"""The learner's process: a training session over Ray actors, and how it is started.

It imports TensorFlow, and what needs it, in its constructor: threads and devices are set first, and the driver, which
only names this class, does without.
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import ray

from actors.environments import EnvironmentSpec
from launch.loop.executor import Executor
from launch.machine.budget import ThreadBudget
from launch.machine.tensorflow_process import prepare_tensorflow
from launch.on_ray.cluster import ClusterView, on_node, takes_gpu_here
from launch.on_ray.executor import PROCESS_OPTIONS, RayExecutor
from launch.on_ray.node_aggregator import NodesExecutor
from launch.on_ray.placement import Aggregation, Node, Placement, aggregation
from launch.run.events import View
from launch.run.saving import Changes, Stamp, apply_changes, changes_since
from launch.run.status import LearnerDeath
from shared.config import RunConfig

if TYPE_CHECKING:
    from launch.run.session import TrainingSession
    from launch.run.trackers import OpenTracker

# The learner's `run` occupies one thread; `view` and `interrupt` are answered beside it.
_LEARNER_THREADS = 3
# A file in the run folder, by which the learner sees whether its folder is the driver's own.
MARK = ".driver"


class SentFolder(NamedTuple):
    """The driver's run folder, for a learner that may be on another machine; its file `MARK` holds `mark`."""

    mark: str
    folder: Changes


class LearnerStart(NamedTuple):
    """What a learner's process starts from.

    Attributes:
        config: of the run.
        spec: of its environment.
        folder: of the run.
        budget: threads of the learner, and how many actors there are.
        node: of the learner, on a cluster. None: everything is on this machine.
        resume: go on from the newest checkpoint in `folder`.
        gpu: whether the learner has one.
        aggregation: where gradients are added before they reach the learner.
        death: of the process before this one, if it is the same run that goes on.
        sent: the run folder, for a learner that may be on another machine.
    """

    config: RunConfig
    spec: EnvironmentSpec
    folder: Path
    budget: ThreadBudget
    node: Node | None
    resume: bool
    gpu: bool
    aggregation: Aggregation
    death: LearnerDeath | None
    sent: SentFolder | None


class LearnerProcess:
    """A `TrainingSession` over Ray actors. `run` returns the summary; the other methods may be called meanwhile.

    What its constructor raises, each method raises: to Ray a constructor that raises is a process that died, which
    would be started again, and Ray would print the traceback on the driver's terminal.
    """

    def __init__(self, start: LearnerStart) -> None:
        self._folder, self._shared = start.folder, True
        self._session: TrainingSession | None = None
        self._not_made: Exception | None = None
        try:
            self._session = self._make_session(start)
        except Exception as error:
            self._not_made = error

    def _make_session(self, start: LearnerStart) -> "TrainingSession":
        if start.sent is not None and not self._shares_folder(start.sent.mark):
            # The driver is on another machine: its folder starts here as it is there.
            apply_changes(start.folder, start.sent.folder)
        prepare_tensorflow(start.budget.learner_threads, gpu=start.gpu)
        from launch.run.session import TrainingSession

        config, spec = start.config, start.spec

        def executor_from(first_actor_id: int) -> Executor:
            cluster = None if start.node is None else ClusterView(config, start.node)
            actors = start.budget.actors
            if start.aggregation.level == "node":
                return NodesExecutor(config, spec, actors, first_actor_id, cluster)
            return RayExecutor(config, spec, actors, first_actor_id, cluster=cluster)

        trackers: dict[str, OpenTracker] = {}
        if config.address != "local":
            from launch.on_ray.prometheus import RayMetrics

            trackers["Ray's metrics"] = partial(RayMetrics, start.folder.name)
        return TrainingSession(
            config,
            spec,
            start.folder,
            executor_from,
            resume=start.resume,
            after=start.death,
            trackers=trackers,
        )

    def run(self) -> dict[str, Any]:
        """See `TrainingSession.run`."""
        return self._made().run()

    def view(self) -> View:
        """See `TrainingSession.view`."""
        return self._made().view()

    def interrupt(self) -> None:
        """See `TrainingSession.interrupt`."""
        self._made().interrupt()

    def folder_changes(self, known: dict[str, Stamp]) -> Changes:
        """See `changes_since`. Nothing, where the driver sees the same folder."""
        return Changes({}, {}, {}) if self._shared else changes_since(self._folder, known, tails=True)

    def _made(self) -> "TrainingSession":
        if self._not_made is not None:
            raise self._not_made
        assert self._session is not None
        return self._session

    def _shares_folder(self, mark: str) -> bool:
        """Whether the driver sees the same folder: then what it wrote there is here."""
        file = self._folder / MARK
        self._shared = file.is_file() and file.read_text() == mark
        return self._shared


def start_learner(
    config: RunConfig,
    spec: EnvironmentSpec,
    folder: Path,
    budget: ThreadBudget,
    placement: Placement | None,
    *,
    resume: bool,
    death: LearnerDeath | None,
    sent: SentFolder | None,
) -> Any:
    """Start the learner's process where the placement has it; without one, on this machine. See `LearnerStart`."""
    if placement is None:
        gpu, where = takes_gpu_here(config), dict[str, Any]()
    else:
        gpu, where = placement.gpu, on_node(placement.learner.id)
    options = PROCESS_OPTIONS | where
    remote = ray.remote(num_cpus=0, num_gpus=int(gpu), max_concurrency=_LEARNER_THREADS, **options)
    start = LearnerStart(
        config,
        spec,
        folder,
        budget,
        node=None if placement is None else placement.learner,
        resume=resume,
        gpu=gpu,
        aggregation=aggregation(config, placement),
        death=death,
        sent=sent,
    )
    return remote(LearnerProcess).remote(start)
