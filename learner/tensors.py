"""What the learner asks of whoever holds the tensors of a run, be they whole or in slices."""

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from shared.types import Float32Array, GradientPieces


class PushResult(NamedTuple):
    """What became of one gradient.

    `finite` is False when it was refused; `applied` is True when it completed an update, and then `gradient_norm`
    is the global norm of the accumulated gradient before clipping (else that of the pushed one alone). `weight` is
    what it counts for in its update.
    """

    finite: bool
    applied: bool
    gradient_norm: float
    weight: float


class Tensors(Protocol):
    """Parameters float32 [P], the sum of gradients that waits for an update, optimizer's slots and target network."""

    variables: dict[str, tf.Variable]
    """Those of a checkpoint, by name: whole vectors and scalars. They are up to date after `gather`."""

    def push(
        self,
        gradient: Float32Array | GradientPieces,
        learning_rate: float,
        count: int = 1,
        *,
        gradients_per_update: int = 1,
        rate_factor: float = 1.0,
        lag: int = 0,
        former: tf.Tensor | None = None,
    ) -> PushResult:
        """Add a gradient float32 [P]; apply the sum, and reset it to exact zero, if it is the K-th.

        A gradient whose norm is not finite changes nothing.

        Args:
            gradient: float32 [P].
            learning_rate: η of the schedule.
            count: how many gradients it is the sum of.
            gradients_per_update: K of the update in progress, and
            rate_factor: what η is multiplied by: both only where the settings have a target for the policy lag.
            lag: updates between the weights that the gradient was computed with and the present ones.
            former: those weights, float32 [P], where the settings keep former weights.
        """
        ...

    def discard(self) -> None:
        """Forget the gradients that wait for an update."""
        ...

    def write(self, where: slice, values: Float32Array) -> None:
        """Set some of the parameters."""
        ...

    def read(self) -> npt.NDArray[np.float32]:
        """The parameters float32 [P]. Read-only; what it shows may change with the next call."""
        ...

    def pieces(self) -> tuple[Any, ...]:
        """What stands for the slices of the parameters in other processes; nothing where they are in this one."""
        ...

    def keep_target(self) -> None:
        """Copy the parameters into the target network."""
        ...

    def read_target(self) -> npt.NDArray[np.float32]:
        """The target network's, as `read`."""
        ...

    def target_pieces(self) -> tuple[Any, ...]:
        """The target network's, as `pieces`."""
        ...

    def gather(self) -> None:
        """Bring `variables` up to date."""
        ...

    def scatter(self) -> None:
        """Go on from what has been written into `variables`."""
        ...
