"""The process of one of the learner's slices as a Ray actor: construct and delegate.

It imports TensorFlow, and what needs it, in its constructor: threads and devices are set first, and the driver, which
only names this class, does without.
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from launch.machine.tensorflow_process import prepare_tensorflow
from shared.config import OptimizerConfig
from shared.types import Float32Array
from shared.wire import WirePrecision, decode, encode

if TYPE_CHECKING:
    from learner.slices import State


class SliceProcess:
    """A `Slice` in a process of its own. The first argument of each call is its number, from 1 on.

    Args:
        parameters: initial float32 [N].
        block: elements of a block of the whole vector.
        optimizer: which optimizer with which constants.
        precision: of gradients and weights as they travel.
        target: whether there is a target network.
    """

    def __init__(
        self,
        parameters: Float32Array,
        block: int,
        optimizer: OptimizerConfig,
        precision: WirePrecision,
        *,
        target: bool,
    ) -> None:
        prepare_tensorflow(1, gpu=False)
        from learner.slice import Slice

        self._slice = Slice(parameters, block, optimizer, target=target)
        self._precision = precision
        self._calls = 0

    def check(self, number: int) -> None:
        """Take in that this call comes next.

        Raises:
            RuntimeError: another one should.
        """
        if number != self._calls + 1:
            raise RuntimeError(f"it has missed call {self._calls + 1}: what came with it could not be fetched")
        self._calls = number

    def add(self, number: int, gradient: npt.NDArray[np.generic], weight: float) -> None:
        """See `Slice.add`; the gradient is encoded."""
        self.check(number)
        self._slice.add(decode(gradient), weight)

    def complete(self, number: int, gradient: npt.NDArray[np.generic], weight: float, scale: float) -> Float32Array:
        """See `Slice.complete`; the gradient is encoded."""
        self.check(number)
        return self._slice.complete(decode(gradient), weight, scale)

    def update(
        self, number: int, gradient: npt.NDArray[np.generic] | None, learning_rate: float, factor: float
    ) -> npt.NDArray[np.generic]:
        """See `Slice.update`; the gradient is encoded. Returns the new parameters, encoded."""
        self.check(number)
        self._slice.update(None if gradient is None else decode(gradient), learning_rate, factor)
        return encode(self._slice.read(), self._precision)

    def discard(self, number: int) -> None:
        """See `Slice.discard`."""
        self.check(number)
        self._slice.discard()

    def write(self, number: int, begin: int, values: Float32Array) -> None:
        """See `Slice.write`."""
        self.check(number)
        self._slice.write(begin, values)

    def piece(self, number: int) -> npt.NDArray[np.generic]:
        """The parameters, encoded."""
        self.check(number)
        return encode(self._slice.read(), self._precision)

    def read(self, number: int) -> Float32Array:
        """See `Slice.read`."""
        self.check(number)
        return self._slice.read()

    def keep_target(self, number: int) -> None:
        """See `Slice.keep_target`."""
        self.check(number)
        self._slice.keep_target()

    def read_target(self, number: int) -> Float32Array:
        """See `Slice.read_target`."""
        self.check(number)
        return self._slice.read_target()

    def state(self, number: int) -> "State":
        """See `Slice.state`."""
        self.check(number)
        return self._slice.state()

    def restore(self, number: int, state: "State") -> None:
        """See `Slice.restore`."""
        self.check(number)
        self._slice.restore(state)
