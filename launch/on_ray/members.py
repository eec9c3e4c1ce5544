"""What both Ray executors share: how processes are started, and the weights that they are given."""

from typing import Any

import ray

from actors.environments import EnvironmentSpec
from launch.on_ray.actor_process import EvaluatorProcess, Weights
from shared.config import RunConfig
from shared.types import WeightSnapshot
from shared.wire import WirePrecision, encode

# Ray retries nothing. A retried rollout would be counted twice, and a restarted process would begin its sequence
# numbers anew, so that its reports would be dropped as duplicates: the coordinator starts others under new ids instead.
# Nor does Ray keep a record of every call: within half an hour of CartPole they filled 400 MB of its server.
PROCESS_OPTIONS: dict[str, Any] = {"max_restarts": 0, "max_task_retries": 0, "enable_task_events": False}


def start_evaluator(config: RunConfig, spec: EnvironmentSpec) -> Any:
    """Start the evaluator's process. It takes no core from the actors' count: between evaluations it sleeps."""
    return ray.remote(num_cpus=0, **PROCESS_OPTIONS)(EvaluatorProcess).remote(config, spec)


class Published:
    """The published weights as objects in Ray's store.

    A snapshot becomes an object once, however many actors read it, and only when the first of them needs it.

    Args:
        precision: of the weights as they travel.
    """

    def __init__(self, precision: WirePrecision) -> None:
        self._precision = precision
        self._snapshot: WeightSnapshot | None = None
        self._object: ray.ObjectRef | None = None
        self._target: tuple[int, ray.ObjectRef] | None = None
        self._target_versions: dict[int, int] = {}

    @property
    def snapshot(self) -> WeightSnapshot:
        """The snapshot that dispatches carry now."""
        assert self._snapshot is not None, "publish comes before dispatch"
        return self._snapshot

    def publish(self, snapshot: WeightSnapshot) -> None:
        """See `Executor`."""
        self._snapshot, self._object = snapshot, None

    def publish_target(self, snapshot: WeightSnapshot) -> None:
        """See `Executor`."""
        self._target = snapshot.version, ray.put(snapshot)

    def weights(self) -> ray.ObjectRef:
        """The snapshot as an object."""
        if self._object is None:
            self._object = self._put(self.snapshot)
        return self._object

    def weights_of(self, snapshot: WeightSnapshot) -> ray.ObjectRef:
        """Any snapshot as an object, be it the one that dispatches carry now or not."""
        return self.weights() if snapshot is self._snapshot else self._put(snapshot)

    def new_target(self, actor_id: int) -> ray.ObjectRef | None:
        """The weights of the target network, or None if this actor was given them before: it keeps what it has."""
        if self._target is None or self._target_versions.get(actor_id) == self._target[0]:
            return None
        # An actor takes its calls in order, so it has what an earlier call brought when this one begins.
        self._target_versions[actor_id], target = self._target
        return target

    def _put(self, snapshot: WeightSnapshot) -> ray.ObjectRef:
        return ray.put(Weights(snapshot.version, encode(snapshot.parameters, self._precision), snapshot.frames))
