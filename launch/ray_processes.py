"""The processes of a run as Ray actors: construct and delegate.

Each imports TensorFlow, and what needs it, in its constructor: threads and devices are set first, and the driver,
which only names these classes, does without.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.environments import EnvironmentSpec
from launch.budget import ThreadBudget
from launch.process import prepare_tensorflow
from launch.progress import View
from shared.config import RunConfig
from shared.types import EvaluationResult, GradientReport, WeightSnapshot

if TYPE_CHECKING:
    from launch.coordinator import Executor


class ActorProcess:
    """An `Actor` in a process of its own."""

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, actor_id: int) -> None:
        prepare_tensorflow(config.actor.tensorflow_threads, gpu=False)
        from actors.actor import Actor

        self._actor = Actor(config, spec, actor_id)

    def run(self, snapshot: WeightSnapshot, target: WeightSnapshot | None) -> GradientReport:
        """See `Actor.run`."""
        return self._actor.run(snapshot, target)


class EvaluatorProcess:
    """An `Evaluator` in a process of its own."""

    def __init__(self, config: RunConfig, spec: EnvironmentSpec) -> None:
        prepare_tensorflow(config.actor.tensorflow_threads, gpu=False)
        from actors.evaluator import Evaluator

        self._evaluator = Evaluator(config, spec, config.evaluation)

    def run(self, snapshot: WeightSnapshot) -> EvaluationResult:
        """See `Evaluator.run`."""
        return self._evaluator.run(snapshot)


class LearnerProcess:
    """A `TrainingSession` over Ray actors. `run` returns the summary; the other methods may be called meanwhile."""

    def __init__(
        self, config: RunConfig, spec: EnvironmentSpec, folder: str, budget: ThreadBudget, resume: bool, gpu: bool
    ) -> None:
        prepare_tensorflow(budget.learner_threads, gpu=gpu)
        from launch.ray_executor import RayExecutor
        from launch.session import TrainingSession

        def make_executor(first_actor_id: int) -> "Executor":
            return RayExecutor(config, spec, budget.actors, first_actor_id)

        self._session = TrainingSession(config, spec, Path(folder), make_executor, resume=resume)

    def run(self) -> dict[str, Any]:
        """See `TrainingSession.run`."""
        return self._session.run()

    def view(self) -> View:
        """See `TrainingSession.view`."""
        return self._session.view()

    def interrupt(self) -> None:
        """See `TrainingSession.interrupt`."""
        self._session.interrupt()
