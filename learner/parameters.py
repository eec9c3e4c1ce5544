"""The tensors of a run: parameters, accumulator, optimizer's slots, target network, and the moments in snapshots."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from learner.accumulator import GradientAccumulator, PushResult
from learner.staleness import VersionRing
from shared.config import RunConfig
from shared.graph import as_array
from shared.layout import ParameterLayout
from shared.moments import Moments
from shared.networks import RUNNING_MEAN, RUNNING_VARIANCE
from shared.schedules import crossed_multiple
from shared.types import Float32Array, WeightSnapshot

# What only an update that is not complete yet has.
_OF_AN_UPDATE = ("accumulated", "pending", "weights")


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
    """

    def __init__(self, config: RunConfig, layout: ParameterLayout, initial: Float32Array) -> None:
        self._layout = layout
        self._accumulator = GradientAccumulator(initial, config.learner, config.optimizer, _trained(layout))
        self._ring = VersionRing(config.learner.staleness_versions) if config.learner.keeps_versions else None
        # Where actors are new after a resume, no gradient is of weights from before.
        self._saves_ring = config.checkpoint.exact
        self._snapshot: WeightSnapshot | None = None
        self._restored_snapshot_frames: int | None = None
        self._target_interval_agent_steps = config.method.target_interval_agent_steps
        self._target: tf.Variable | None = None
        if config.method.uses_target_network:
            self._target = tf.Variable(initial, trainable=False, name="target_parameters")
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
        gradient: Float32Array,
        learning_rate: float,
        version: int,
        *,
        count: int = 1,
        gradients_per_update: int = 1,
        rate_factor: float = 1.0,
        lag: int = 0,
    ) -> PushResult:
        """Add a gradient float32 [P] of the weights of `version`, and apply an update if it completes one.

        See `GradientAccumulator.push`.
        """
        result = self._accumulator.push(
            gradient,
            learning_rate,
            count,
            gradients_per_update=gradients_per_update,
            rate_factor=rate_factor,
            lag=lag,
            former=None if self._ring is None else self._ring.tensor_at(version),
        )
        if result.applied:
            self._snapshot = self._restored_snapshot_frames = None
        return result

    def discard_pending(self) -> None:
        """Forget the gradients that wait for an update."""
        self._accumulator.discard()

    def merge_moments(self, observations: Moments | None, returns: Moments | None) -> None:
        """Take in the moments of an accepted report; they are in the snapshots from the next update on."""
        if self._moments is not None and observations is not None:
            self._moments = self._moments.merge(observations)
        if returns is not None:
            self._return_moments = self._return_moments.merge(returns)

    def refresh_target(self, before: int, now: int) -> None:
        """Copy the parameters into the target network if the agent steps have crossed a multiple of its interval."""
        if self._target is not None and crossed_multiple(before, now, self._target_interval_agent_steps):
            self._target.assign(self._accumulator.parameters)
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
            self._snapshot = WeightSnapshot(version, self._copy_of(version), frames, factor)
        return self._snapshot

    def target_snapshot(self) -> WeightSnapshot | None:
        """The weights of the target network, numbered by its updates; None if the method has none.

        The same object until the next update of the target network. Its frames are 0: schedules follow the weights
        that act.
        """
        if self._target_snapshot is None and self._target is not None:
            self._target_snapshot = WeightSnapshot(self.target_updates, _read_only(self._target), frames=0)
        return self._target_snapshot

    def take_over(self, tensors: Mapping[str, npt.NDArray[Any]], state: dict[str, Any]) -> None:
        """Go on with the weights, optimizer's slots, target network and moments of another run of the same network.

        `tensors` and `state` are those of its checkpoint. Gradients that wait for an update are forgotten.
        """
        self.discard_pending()
        for name, variable in self.variables().items():
            if name not in _OF_AN_UPDATE:
                variable.assign(tensors[name])
        # How often the target was copied counts for this run, and the next snapshot is of its own time. Versions of the
        # other run are none that gradients of this run are of.
        own: dict[str, Any] = {"target_updates": self.target_updates, "snapshot_frames": None, "versions": {}}
        self.restore({**state, **own})

    def variables(self) -> dict[str, tf.Variable]:
        """The variables of a checkpoint, by name."""
        variables = self._accumulator.variables
        if self._target is not None:
            variables["target_parameters"] = self._target
        return variables

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
        if self._ring is None:
            return _read_only(self._accumulator.parameters)
        return self._ring.keep(version, as_array(self._accumulator.parameters.value()))

    def _write_moments(self) -> None:
        if self._moments is None:
            return
        for name, values in ((RUNNING_MEAN, self._moments.mean), (RUNNING_VARIANCE, self._moments.variance)):
            self._accumulator.parameters[self._layout.range_of(name)].assign(values.astype(np.float32))


def _trained(layout: ParameterLayout) -> Float32Array | None:
    """0 for the running moments, which no gradient trains, and 1 for all else, float32 [P]; None: there are none."""
    if RUNNING_MEAN not in layout.names:
        return None
    trained = np.ones(layout.size, np.float32)
    for name in (RUNNING_MEAN, RUNNING_VARIANCE):
        trained[layout.range_of(name)] = 0.0
    return trained


def _read_only(variable: tf.Variable) -> Float32Array:
    """A copy float32 [P] of the variable that nobody can write to."""
    # `variable.numpy()` does one operation more.
    values = as_array(variable.value()).copy()
    values.flags.writeable = False
    return values
