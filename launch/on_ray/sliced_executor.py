"""An executor of actors whose gradients go to the learner's slices, and whose weights come from there."""

import numpy as np
from ray.exceptions import RayError

from actors.environments import EnvironmentSpec
from launch.loop.executor import Completion, Failed
from launch.machine.line import OfferedLine
from launch.on_ray.actor_process import ActorProcess, Reply, Weights
from launch.on_ray.cluster import ClusterView
from launch.on_ray.executor import RayExecutor
from launch.on_ray.members import Call
from launch.on_ray.slices import SliceProcesses
from shared.config import RunConfig
from shared.types import GradientReport, WeightSnapshot

_NO_PARAMETERS = np.empty(0, np.float32)


class SlicedExecutor(RayExecutor):
    """An `Executor` over Ray actors, of which the learner's process sees reports and references only.

    The slices of a snapshot are arguments of a call, and those of a gradient are its further results: Ray moves each
    from the process that made it to the one that needs it. So all calls go through Ray.

    Args:
        config: of the run.
        spec: of its environment.
        actors: how many to start.
        first_actor_id: ids count up from here, and are never used again.
        actor_process: the class that is started in each process.
        cluster: where there are places for actors. None: all are on one machine.
        slices: of the learner.
    """

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        actors: int,
        first_actor_id: int,
        actor_process: type[ActorProcess],
        cluster: ClusterView | None,
        slices: SliceProcesses,
    ) -> None:
        super().__init__(config, spec, actors, first_actor_id, actor_process, cluster)
        self._slices = slices

    def dispatch(self, actor_id: int) -> None:
        snapshot, target = self._published.snapshot, self._published.new_target(actor_id)
        pieces, header = snapshot.pieces, None
        if target is not None:
            pieces, header = pieces + target.pieces, _header(target)
        run = self._members[actor_id].handle.run_in_slices
        report, *slices = run.options(num_returns=1 + len(snapshot.pieces)).remote(_header(snapshot), header, *pieces)
        self._calls[report] = Call(actor_id, slices=tuple(slices))

    def _completion(self, call: Call, result: Reply | GradientReport) -> Completion:
        assert isinstance(result, GradientReport)
        assert result.pieces is not None
        return result._replace(pieces=result.pieces._replace(slices=call.slices))

    def _failed(self, actor_id: int | None, error: RayError) -> Failed:
        # With a slice that is lost, all fail that wait for its weights.
        self._slices.check()
        return super()._failed(actor_id, error)

    def remove(self, actor_id: int) -> None:
        # An actor that hangs may be waiting for a slice that does.
        self._slices.check()
        super().remove(actor_id)

    def _offer(self, node: str) -> OfferedLine | None:  # noqa: ARG002
        return None


def _header(snapshot: WeightSnapshot) -> Weights:
    """All but the parameters."""
    return Weights(snapshot.version, _NO_PARAMETERS, snapshot.frames, snapshot.reward_factor)
