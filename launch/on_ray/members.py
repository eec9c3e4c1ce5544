"""What both executors share: how processes are started, and the weights that they are given."""

from typing import Any

import ray

from actors.environments import EnvironmentSpec
from launch.on_ray.actor_process import EvaluatorProcess, Weights
from shared.config import RunConfig
from shared.types import WeightSnapshot
from shared.wire import WirePrecision, encode

# Ray never starts a process or a call again by itself: it would be counted twice. Nor does it keep a record of every
# call: in half an hour of CartPole its server had grown to 400 MB by them.
PROCESS_OPTIONS: dict[str, Any] = {"max_restarts": 0, "max_task_retries": 0, "enable_task_events": False}


def start_evaluator(config: RunConfig, spec: EnvironmentSpec) -> Any:
    """Start the evaluator's process. It takes no core from the actors' count: between evaluations it sleeps."""
    return ray.remote(num_cpus=0, **PROCESS_OPTIONS)(EvaluatorProcess).remote(config, spec)


class Published:
    """What an executor was given to publish, as objects in Ray's store.

    They are put there once a version, and only when somebody will read them.

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
        """The one that dispatches carry now."""
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
        """A snapshot as an object, which need not be the one that dispatches carry now."""
        return self.weights() if snapshot is self._snapshot else self._put(snapshot)

    def new_target(self, actor_id: int) -> ray.ObjectRef | None:
        """The weights of the target network, if this actor was not given them yet: it keeps what it has."""
        if self._target is None or self._target_versions.get(actor_id) == self._target[0]:
            return None
        self._target_versions[actor_id], target = self._target
        return target

    def _put(self, snapshot: WeightSnapshot) -> ray.ObjectRef:
        return ray.put(Weights(snapshot.version, encode(snapshot.parameters, self._precision), snapshot.frames))
