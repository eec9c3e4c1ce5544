"""The same loop in one process and one thread: deterministic for a seed. For tests, debugging and small tasks."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from actors.actor import Actor
from actors.environments import EnvironmentSpec
from actors.evaluator import Evaluator
from launch.coordinator import Completion
from shared.config import RunConfig
from shared.types import EvaluationResult, GradientReport, WeightSnapshot


class InlineExecutor:
    """Runs each dispatched call when its completion is asked for, first in first out.

    Calls carry the snapshot that was published when they were dispatched, as they do between processes, so policy
    lag is what it would be if the actors took turns. An actor that raises, raises here: there is no process to
    replace.
    """

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, actors: int, first_actor_id: int = 0) -> None:
        ids = range(first_actor_id, first_actor_id + actors)
        self._actors = {actor_id: Actor(config, spec, actor_id) for actor_id in ids}
        self._evaluator = Evaluator(config, spec, config.evaluation) if config.evaluation.every_frames else None
        self._calls: deque[Callable[[], GradientReport | EvaluationResult]] = deque()
        self._snapshot: WeightSnapshot | None = None
        self._target: WeightSnapshot | None = None

    @property
    def actor_ids(self) -> Sequence[int]:
        return list(self._actors)

    @property
    def calls_in_flight(self) -> int:
        return len(self._calls)

    def publish(self, snapshot: WeightSnapshot) -> None:
        self._snapshot = snapshot

    def publish_target(self, snapshot: WeightSnapshot) -> None:
        self._target = snapshot

    def dispatch(self, actor_id: int) -> None:
        assert self._snapshot is not None, "publish comes before dispatch"
        self._calls.append(partial(self._actors[actor_id].run, self._snapshot, self._target))

    def evaluate(self) -> None:
        assert self._evaluator is not None, "the settings ask for no evaluations"
        assert self._snapshot is not None, "publish comes before evaluate"
        self._calls.append(partial(self._evaluator.run, self._snapshot))

    def next_completion(self) -> Completion | None:
        return self._calls.popleft()()

    def has_completed(self, actor_id: int) -> bool:  # noqa: ARG002
        # Calls run when their completion is asked for: none can hang apart from this process.
        return True

    def remove(self, actor_id: int) -> None:
        raise AssertionError(f"inline actor {actor_id} does not fail apart from its process")

    def add(self) -> int:
        raise AssertionError("inline actors are not replaced")

    def replace_evaluator(self) -> None:
        raise AssertionError("the inline evaluator does not fail apart from its process")

    def close(self) -> None:
        for actor in self._actors.values():
            actor.close()
        if self._evaluator is not None:
            self._evaluator.close()
