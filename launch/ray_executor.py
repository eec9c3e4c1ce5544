"""Rollouts in Ray actors: construct and delegate. What decides anything is in `coordinator` and `session`."""

import itertools
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from actors.environments import EnvironmentSpec
from launch.coordinator import Completion, Failed
from launch.ray_processes import ActorProcess, EvaluatorProcess
from shared.config import RunConfig
from shared.types import WeightSnapshot

_POLL_SECONDS = 0.5
_EVALUATOR = -1


class RayExecutor:
    """An `Executor` over Ray actors.

    A snapshot is put in the object store once and travels as a reference; a report goes from the actor's node to
    this one the same way. No call is retried: a retried rollout would be counted twice.

    Args:
        config: of the run.
        spec: of its environment.
        actors: how many to start.
        first_actor_id: ids count up from here, and are never used again.
        actor_process: the class that is started in each process.
    """

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        actors: int,
        first_actor_id: int = 0,
        actor_process: type = ActorProcess,
    ) -> None:
        self._config, self._spec, self._actor_process = config, spec, actor_process
        self._ids = itertools.count(first_actor_id)
        self._actors: dict[int, Any] = {}
        self._calls: dict[ray.ObjectRef, int] = {}
        self._snapshot: ray.ObjectRef | None = None
        self._target: ray.ObjectRef | None = None
        for _ in range(actors):
            self._start_actor()
        self._evaluator: Any = None
        if config.evaluation.every_frames:
            # It takes no core from the actors' count: between evaluations it sleeps.
            self._evaluator = ray.remote(num_cpus=0, max_task_retries=0)(EvaluatorProcess).remote(config, spec)

    @property
    def actor_ids(self) -> Sequence[int]:
        return list(self._actors)

    @property
    def calls_in_flight(self) -> int:
        return len(self._calls)

    def publish(self, snapshot: WeightSnapshot) -> None:
        self._snapshot = ray.put(snapshot)

    def publish_target(self, snapshot: WeightSnapshot) -> None:
        self._target = ray.put(snapshot)

    def dispatch(self, actor_id: int) -> None:
        self._calls[self._actors[actor_id].run.remote(self._snapshot, self._target)] = actor_id

    def evaluate(self) -> None:
        self._calls[self._evaluator.run.remote(self._snapshot)] = _EVALUATOR

    def next_completion(self) -> Completion | None:
        ready, _ = ray.wait(list(self._calls), num_returns=1, timeout=_POLL_SECONDS)
        if not ready:
            return None
        actor_id = self._calls.pop(ready[0])
        try:
            return ray.get(ready[0])
        except RayError as error:
            if actor_id == _EVALUATOR:
                raise
            return Failed(actor_id, _reason(error))

    def replace(self, actor_id: int) -> int:
        # Further calls of the dead actor would each report its death again.
        self._calls = {call: callee for call, callee in self._calls.items() if callee != actor_id}
        ray.kill(self._actors.pop(actor_id), no_restart=True)
        return self._start_actor()

    def close(self) -> None:
        for actor in (*self._actors.values(), *([self._evaluator] if self._evaluator else [])):
            ray.kill(actor, no_restart=True)

    def _start_actor(self) -> int:
        actor_id = next(self._ids)
        remote = ray.remote(num_cpus=self._config.actor.cores, max_restarts=0, max_task_retries=0)
        self._actors[actor_id] = remote(self._actor_process).remote(self._config, self._spec, actor_id)
        return actor_id


def _reason(error: RayError) -> str:
    text = str(error).strip().splitlines()
    kind = "its process died" if isinstance(error, RayActorError) else "its rollout raised"
    return f"{kind}: {text[-1].strip() if text else type(error).__name__}"
