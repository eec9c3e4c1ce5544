"""The tensors of a run: parameters, accumulator, optimizer's slots, target network, and the moments in snapshots."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from learner.accumulator import GradientAccumulator
from learner.slices import Part, Slices, parts_here
from learner.staleness import VersionRing
from learner.tensors import PushResult, Tensors
from shared.config import RunConfig
from shared.layout import ParameterLayout
from shared.moments import Moments
from shared.networks import RUNNING_MEAN, RUNNING_VARIANCE
from shared.schedules import crossed_multiple
from shared.types import Float32Array, GradientPieces, WeightSnapshot

# What only an update that is not complete yet has.
_OF_AN_UPDATE = ("accumulated", "pending", "weights")
# In snapshots whose weights are in other processes.
_ELSEWHERE = np.empty(0, np.float32)


class Parameters:
    """Everything of length P that a run trains, and the snapshots that are taken of it.

    It counts nothing but the copies into the target network: versions and frames come from the account of the run.

    The target network of the Q methods is a copy of the parameters, made when the global agent steps cross a multiple
    of `method.target_interval_agent_steps`. Running moments of observations, where the network scales by them, are
    merged from the accepted reports and written into the parameters of each new snapshot.

    Where gradients are compared with the weights that they were computed with, the newest snapshots are kept.

    Args:
        config: of the run.
        layout: of the parameters.
        initial: float32 [P].
        parts: the slices, where they are in other processes. None: all is in this one.
    """

    def __init__(
        self,
        config: RunConfig,
        layout: ParameterLayout,
        initial: Float32Array,
        parts: Sequence[Part] | None = None,
    ) -> None:
        self._layout = layout
        self._tensors = _tensors(config, layout, initial, parts)
        self._ring = VersionRing(config.learner.staleness_versions) if config.learner.keeps_versions else None
        # Where actors are new after a resume, no gradient is of weights from before.
        self._saves_ring = config.checkpoint.exact
        self._snapshot: WeightSnapshot | None = None
        self._restored_snapshot_frames: int | None = None
        self._target_interval_agent_steps = config.method.target_interval_agent_steps
        self._has_target = config.method.uses_target_network
        self._target_snapshot: WeightSnapshot | None = None
        self.target_updates = 0
        self._moments: Moments | None = None
        if RUNNING_MEAN in layout.names:
            self._moments = Moments.zero(layout.sizes[layout.names.index(RUNNING_MEAN)])
        self._return_moments = Moments.zero(1)

    @property
    def keeps_versions(self) -> bool:
        """Whether snapshots are kept. Each version then needs one before the next gradient is pushed."""
        return self._ring is not None

    def push(
        self,
        gradient: Float32Array | GradientPieces,
        learning_rate: float,
        version: int,
        *,
        count: int = 1,
        gradients_per_update: int = 1,
        rate_factor: float = 1.0,
        lag: int = 0,
    ) -> PushResult:
        """Add a gradient float32 [P] of the weights of `version`, and apply an update if it completes one.

        See `Tensors.push`.
        """
        result = self._tensors.push(
            gradient,
            learning_rate,
            count,
            gradients_per_update=gradients_per_update,
            rate_factor=rate_factor,
            lag=lag,
            former=None if self._ring is None else self._ring.at(version),
        )
        if result.applied:
            self._snapshot = self._restored_snapshot_frames = None
        return result

    def discard_pending(self) -> None:
        """Forget the gradients that wait for an update."""
        self._tensors.discard()

    def merge_moments(self, observations: Moments | None, returns: Moments | None) -> None:
        """Take in the moments of an accepted report; they are in the snapshots from the next update on."""
        if self._moments is not None and observations is not None:
            self._moments = self._moments.merge(observations)
        if returns is not None:
            self._return_moments = self._return_moments.merge(returns)

    def refresh_target(self, before: int, now: int) -> None:
        """Copy the parameters into the target network if the agent steps have crossed a multiple of its interval."""
        if self._has_target and crossed_multiple(before, now, self._target_interval_agent_steps):
            self._tensors.keep_target()
            self.target_updates += 1
            self._target_snapshot = None

    def snapshot(self, version: int, frames: int) -> WeightSnapshot:
        """The current weights, under this version and time. The same object until the next update."""
        if self._snapshot is None:
            if self._restored_snapshot_frames is not None:
                # It was published before the checkpoint: the moments are in the parameters as they were published,
                # and reports have been merged since, so to write them again would make other weights of one version.
                frames, self._restored_snapshot_frames = self._restored_snapshot_frames, None
            else:
                self._write_moments()
            # 1 before the first report. Where returns have not varied yet, rewards are as good as 0, or clipped.
            factor = float((self._return_moments.variance[0] + 1e-8) ** -0.5) if self._return_moments.number else 1.0
            pieces = self._tensors.pieces()
            parameters = _ELSEWHERE if pieces else self._copy_of(version)
            self._snapshot = WeightSnapshot(version, parameters, frames, factor, pieces)
        return self._snapshot

    def target_snapshot(self) -> WeightSnapshot | None:
        """The weights of the target network, numbered by its updates; None if the method has none.

        The same object until the next update of the target network. Its frames are 0: schedules follow the weights
        that act.
        """
        if self._target_snapshot is None and self._has_target:
            pieces = self._tensors.target_pieces()
            parameters = _ELSEWHERE if pieces else _copy(self._tensors.read_target())
            self._target_snapshot = WeightSnapshot(self.target_updates, parameters, frames=0, pieces=pieces)
        return self._target_snapshot

    def take_over(self, tensors: Mapping[str, npt.NDArray[Any]], state: dict[str, Any]) -> None:
        """Go on with the weights, optimizer's slots, target network and moments of another run of the same network.

        `tensors` and `state` are those of its checkpoint. Gradients that wait for an update are forgotten.
        """
        self.discard_pending()
        self.gather()
        for name, variable in self.variables().items():
            if name not in _OF_AN_UPDATE:
                variable.assign(tensors[name])
        self.scatter()
        # How often the target was copied counts for this run, and the next snapshot is of its own time. No gradient of
        # this run was computed with a version of the other one.
        own: dict[str, Any] = {"target_updates": self.target_updates, "snapshot_frames": None, "versions": {}}
        self.restore({**state, **own})

    def variables(self) -> dict[str, tf.Variable]:
        """The variables of a checkpoint, by name."""
        return self._tensors.variables

    def whole(self) -> Float32Array:
        """The current parameters float32 [P], read-only, wherever they are. They may change with the next update."""
        return self._tensors.read()

    def gather(self) -> None:
        """Bring the variables of a checkpoint up to date, before one is saved."""
        self._tensors.gather()

    def scatter(self) -> None:
        """Go on from the variables of a checkpoint, after one was restored into them."""
        self._tensors.scatter()

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs beside the variables, as plain values."""
        returns = {"return_moments": self._return_moments.to_json()} if self._return_moments.number else {}
        versions = {"versions": self._ring.state()} if self._ring is not None and self._saves_ring else {}
        return {
            "target_updates": self.target_updates,
            "snapshot_frames": None if self._snapshot is None else self._snapshot.frames,
            "observation_moments": None if self._moments is None else self._moments.to_json(),
            **returns,
            **versions,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`; what else `state` holds is left alone."""
        self.target_updates = state["target_updates"]
        if self._moments is not None:
            self._moments = Moments.from_json(state["observation_moments"])
        if "return_moments" in state:
            self._return_moments = Moments.from_json(state["return_moments"])
        if self._ring is not None:
            self._ring.restore(state.get("versions", {}) if self._saves_ring else {})
        self._snapshot = self._target_snapshot = None
        self._restored_snapshot_frames = state["snapshot_frames"]

    def _copy_of(self, version: int) -> Float32Array:
        parameters = self._tensors.read()
        return _copy(parameters) if self._ring is None else self._ring.keep(version, parameters)

    def _write_moments(self) -> None:
        if self._moments is None:
            return
        for name, values in ((RUNNING_MEAN, self._moments.mean), (RUNNING_VARIANCE, self._moments.variance)):
            self._tensors.write(self._layout.range_of(name), values.astype(np.float32))


def _tensors(
    config: RunConfig, layout: ParameterLayout, initial: Float32Array, parts: Sequence[Part] | None
) -> Tensors:
    learner, optimizer, target = config.learner, config.optimizer, config.method.uses_target_network
    if parts is not None:
        return Slices(initial, learner, optimizer, parts, target=target, elsewhere=True)
    if learner.shards > 1:
        parts = parts_here(initial, learner, optimizer, target=target)
        return Slices(initial, learner, optimizer, parts, target=target, elsewhere=False)
    return GradientAccumulator(initial, learner, optimizer, _trained(layout), target=target)


def _trained(layout: ParameterLayout) -> Float32Array | None:
    """0 for the running moments, which no gradient trains, and 1 for all else, float32 [P]; None: there are none."""
    if RUNNING_MEAN not in layout.names:
        return None
    trained = np.ones(layout.size, np.float32)
    for name in (RUNNING_MEAN, RUNNING_VARIANCE):
        trained[layout.range_of(name)] = 0.0
    return trained


def _copy(parameters: Float32Array) -> Float32Array:
    """A copy float32 [P] that nobody can write to."""
    values = parameters.copy()
    values.flags.writeable = False
    return values
