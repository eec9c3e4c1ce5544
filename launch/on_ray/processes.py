"""The processes of a run as Ray actors: construct and delegate.

Each imports TensorFlow, and what needs it, in its constructor: threads and devices are set first, and the driver,
which only names these classes, does without.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from actors.environments import EnvironmentSpec
from launch.machine.budget import ThreadBudget
from launch.machine.shared_memory import VectorAddress, attach
from launch.machine.tensorflow_process import prepare_tensorflow
from launch.on_ray.placement import Node
from launch.run.folder_copy import Changes, Stamp, apply_changes, changes_since
from launch.run.progress import View
from shared.config import RunConfig
from shared.types import EvaluationResult, GradientReport, WeightSnapshot
from shared.wire import decode, encode

if TYPE_CHECKING:
    from launch.loop.executor import Executor
    from launch.run.trackers import Sink

_NO_GRADIENT = np.empty(0, np.float32)


class Weights(NamedTuple):
    """A `WeightSnapshot` as it travels: its parameters encoded, see `shared.wire`, or where they are in memory."""

    version: int
    parameters: npt.NDArray[np.generic] | VectorAddress
    frames: int


class Reply(NamedTuple):
    """A report as it travels: without its gradient, which is encoded beside it, or None if it was left in memory."""

    report: GradientReport
    gradient: npt.NDArray[np.generic] | None


class Runner(Protocol):
    """What an actor's process holds: an `Actor`, or what stands for it in a bench."""

    def run(self, snapshot: WeightSnapshot, target: WeightSnapshot | None) -> GradientReport: ...


class ActorProcess:
    """An `Actor` in a process of its own."""

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, actor_id: int) -> None:
        self._attached: dict[VectorAddress, npt.NDArray[np.generic] | None] = {}
        self._precision = config.transfer.precision
        prepare_tensorflow(config.actor.tensorflow_threads, gpu=config.actor.device == "gpu")
        self._runner = self.make_runner(config, spec, actor_id)

    def make_runner(self, config: RunConfig, spec: EnvironmentSpec, actor_id: int) -> Runner:
        """What runs here."""
        from actors.actor import Actor

        return Actor(config, spec, actor_id)

    def run(self, weights: Weights, target: WeightSnapshot | None, reply_in: VectorAddress | None) -> Reply:
        """See `Actor.run`. The gradient is written to the vector `reply_in`, if it is reachable from here."""
        parameters = weights.parameters
        if isinstance(parameters, VectorAddress):
            attached = self._attach(parameters)
            assert attached is not None, "weights come in memory only after a gradient went out that way"
            parameters = attached
        report = self._runner.run(WeightSnapshot(weights.version, decode(parameters), weights.frames), target)
        gradient = encode(report.gradient, self._precision)
        report = report._replace(gradient=_NO_GRADIENT)
        to = None if reply_in is None else self._attach(reply_in)
        if to is None:
            return Reply(report, gradient)
        to[...] = gradient
        return Reply(report, None)

    def _attach(self, address: VectorAddress) -> npt.NDArray[np.generic] | None:
        if address not in self._attached:
            self._attached[address] = attach(address)
        return self._attached[address]


class EvaluatorProcess:
    """An `Evaluator` in a process of its own."""

    def __init__(self, config: RunConfig, spec: EnvironmentSpec) -> None:
        prepare_tensorflow(config.actor.tensorflow_threads, gpu=False)
        from actors.evaluator import Evaluator

        self._config, self._spec = config, spec
        self._evaluator = Evaluator(config, spec, config.evaluation)

    def run(self, weights: Weights) -> EvaluationResult:
        """See `Evaluator.run`."""
        assert isinstance(weights.parameters, np.ndarray)
        snapshot = WeightSnapshot(weights.version, decode(weights.parameters), weights.frames)
        result = self._evaluator.run(snapshot)
        if not self._config.evaluation.video:
            return result
        from launch.film.episode import film_episode

        return result._replace(video=film_episode(self._config, self._spec, snapshot))


MARK = ".driver"


class SentFolder(NamedTuple):
    """The driver's run folder, for a learner that may be on another machine; its file `MARK` holds `mark`."""

    mark: str
    folder: Changes


class LearnerProcess:
    """A `TrainingSession` over Ray actors. `run` returns the summary; the other methods may be called meanwhile."""

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        folder: str,
        budget: ThreadBudget,
        node: Node | None,
        *,
        resume: bool,
        gpu: bool,
        aggregate: bool,
        death: tuple[str, int] | None,
        sent: SentFolder | None,
    ) -> None:
        self._folder, self._shared = Path(folder), True
        if sent is not None and not self._shares_folder(sent.mark):
            # The driver is on another machine: its folder starts here as it is there.
            apply_changes(self._folder, sent.folder)
        prepare_tensorflow(budget.learner_threads, gpu=gpu)
        from launch.on_ray.aggregation import AggregatingExecutor
        from launch.on_ray.cluster import ClusterView
        from launch.on_ray.executor import RayExecutor
        from launch.run.session import LearnerDeath, TrainingSession

        def make_executor(first_actor_id: int) -> "Executor":
            cluster = None if node is None else ClusterView(config, node)
            kind = AggregatingExecutor if aggregate else RayExecutor
            return kind(config, spec, budget.actors, first_actor_id, cluster=cluster)

        after = None if death is None else LearnerDeath(*death)
        sinks: list[Sink] = []
        if config.address != "local":
            from launch.on_ray.prometheus import RayMetrics

            sinks.append(RayMetrics(Path(folder).name))
        self._session = TrainingSession(
            config, spec, Path(folder), make_executor, resume=resume, after=after, sinks=sinks
        )

    def run(self) -> dict[str, Any]:
        """See `TrainingSession.run`."""
        return self._session.run()

    def view(self) -> View:
        """See `TrainingSession.view`."""
        return self._session.view()

    def interrupt(self) -> None:
        """See `TrainingSession.interrupt`."""
        self._session.interrupt()

    def folder_changes(self, known: dict[str, Stamp]) -> Changes:
        """See `changes_since`. Nothing, where the driver sees the same folder."""
        return Changes({}, {}) if self._shared else changes_since(self._folder, known)

    def _shares_folder(self, mark: str) -> bool:
        """Whether the driver sees the same folder: then what it wrote there is here."""
        file = self._folder / MARK
        self._shared = file.is_file() and file.read_text() == mark
        return self._shared
