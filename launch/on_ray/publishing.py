"""Weights as objects in Ray's store: put once a version, and only when somebody will read them."""

import ray

from launch.on_ray.processes import Weights
from shared.types import WeightSnapshot
from shared.wire import WirePrecision, encode


class Published:
    """What an executor was given to publish.

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
            snapshot = self.snapshot
            parameters = encode(snapshot.parameters, self._precision)
            self._object = ray.put(Weights(snapshot.version, parameters, snapshot.frames))
        return self._object

    def new_target(self, actor_id: int) -> ray.ObjectRef | None:
        """The weights of the target network, if this actor was not given them yet: it keeps what it has."""
        if self._target is None or self._target_versions.get(actor_id) == self._target[0]:
            return None
        self._target_versions[actor_id], target = self._target
        return target
