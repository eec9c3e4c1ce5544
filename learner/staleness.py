"""What becomes of gradients that meet newer weights than those they were computed with.

In all of this g is a gradient, τ its policy lag in updates, θ' the weights that it was computed with and θ those that
it meets. A *weight* says what a gradient counts for in its update, a *correction* makes another gradient of it.
"""

from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from shared.config import LearnerConfig, OptimizerConfig
from shared.graph import aligned, tensor_on
from shared.types import Float32Array

# ε in the root of the adaptive λ.
_COMPENSATION_EPSILON = 1e-7
# Of the mean square of the sizes of updates.
_STEP_DECAY = 0.999


def inverse_weight(lag: tf.Tensor) -> tf.Tensor:
    """1/max(1, τ): staleness-aware SGD (Zhang et al. 2016, arXiv 1511.05950), which divides the learning rate by τ.

    Args:
        lag: τ, a float32 scalar.
    """
    return 1.0 / tf.maximum(1.0, lag)


def gap_weight(gap: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
    """1/(1 + ‖θ - θ'‖/C): gap-aware (Barkai et al. 2020, arXiv 1909.10802), in one number for all parameters.

    C is the size of an average update, so that a gradient whose weights are one average update away counts half. The
    gap can be taken parameter by parameter, too. One number keeps the direction of the gradient, and can be applied to
    the step of an optimizer that takes the scale out of gradients.

    Args:
        gap: ‖θ - θ'‖, a float32 scalar.
        step: C, a float32 scalar; while it is 0, before the first update, the weight is 1.
    """
    return 1.0 / (1.0 + tf.math.divide_no_nan(gap, step))


def compensated(gradient: tf.Tensor, strength: tf.Tensor, moved: tf.Tensor) -> tf.Tensor:
    """g + λ g ⊙ g ⊙ (θ - θ'): delay compensation (Zheng et al. 2017, arXiv 1609.08326).

    A Taylor expansion of the gradient at θ whose Hessian is replaced by the diagonal of the outer product g gᵀ.

    Args:
        gradient: g, float32 [P].
        strength: λ, a float32 scalar or [P].
        moved: θ - θ', float32 [P].
    """
    return gradient + strength * tf.square(gradient) * moved


def adaptive_compensation(initial: float, mean_square: tf.Tensor) -> tf.Tensor:
    """λ = λ₀/√(m + ε) for each parameter, ε = 1e-7: DC-ASGD-a of the same paper.

    With it the correction is relative to the gradient: λ₀ |g| (θ - θ') at most, where gradients keep their size. A
    constant λ (DC-ASGD-c) would have to be found anew for each scale of the loss.

    Args:
        initial: λ₀.
        mean_square: m, the running mean of g ⊙ g, float32 [P].
    """
    return initial * tf.math.rsqrt(mean_square + _COMPENSATION_EPSILON)


def euclidean_norm(vector: tf.Tensor) -> tf.Tensor:
    """The Euclidean norm of float32 [P], in one pass over memory where `tf.norm` takes three."""
    return tf.sqrt(2.0 * tf.nn.l2_loss(vector))


class Judged(NamedTuple):
    """A gradient float32 [P] as it goes into its update, what it counts for there, a float32 scalar, and what is to be
    remembered of it if it does: float32 [P]."""

    gradient: tf.Tensor
    weight: tf.Tensor
    memory: tf.Tensor | None = None


class Staleness(ABC):
    """One way to treat old gradients, as graph code. `judge` changes nothing that is remembered."""

    weighs = True
    """Whether it gives weights. Without, all of them are 1."""

    def __init__(self) -> None:
        self.variables: dict[str, tf.Variable] = {}
        """What it remembers between gradients, by name; a checkpoint holds it."""

    @abstractmethod
    def judge(self, gradient: tf.Tensor, lag: tf.Tensor, moved: tf.Tensor | None) -> Judged:
        """What becomes of g, float32 [P], with τ, a float32 scalar, and θ - θ', float32 [P].

        θ - θ' is None where the settings keep no former weights.
        """

    def accept(self, judged: Judged) -> None:  # noqa: B027
        """Take in that this gradient is finite and goes into an update. Most have nothing to remember."""

    def around_update(self, parameters: tf.Variable, learning_rate: tf.Tensor, update: Callable[[], None]) -> None:  # noqa: ARG002
        """Have `update` change the parameters, and take in how far they moved.

        `learning_rate`, a float32 scalar, is that of the schedule times the mean weight of the gradients.
        """
        update()


class Inverse(Staleness):
    """See `inverse_weight`."""

    def judge(self, gradient: tf.Tensor, lag: tf.Tensor, moved: tf.Tensor | None) -> Judged:  # noqa: ARG002
        """See `Staleness.judge`."""
        return Judged(gradient, inverse_weight(lag))


class Gap(Staleness):
    """See `gap_weight`.

    The size of an average update is C = η₀ √(mean of ‖Δθ‖²/(η w)²), with η₀ the learning rate at the start, η that of
    each update and w its mean weight: an average update at the rate of the start, had its gradients counted in full.
    With w left out, small weights would make a small C, and that still smaller weights. As the rate falls, and former
    weights come to be near, old gradients come to count in full. The running mean has a decay of 0.999, and is
    corrected for its start at 0.
    """

    def __init__(self, learning_rate: float) -> None:
        super().__init__()
        self._learning_rate = learning_rate
        self._mean_square = tf.Variable(0.0, name="step_mean_square")
        # 0.999^t, kept as a running product so that it is saved and restored with the rest.
        self._decay_power = tf.Variable(1.0, dtype=tf.float64, name="step_decay_power")
        self.variables = {"step_mean_square": self._mean_square, "step_decay_power": self._decay_power}

    def judge(self, gradient: tf.Tensor, lag: tf.Tensor, moved: tf.Tensor | None) -> Judged:  # noqa: ARG002
        """See `Staleness.judge`."""
        assert moved is not None
        corrected = tf.math.divide_no_nan(self._mean_square, tf.cast(1.0 - self._decay_power, tf.float32))
        return Judged(gradient, gap_weight(euclidean_norm(moved), self._learning_rate * tf.sqrt(corrected)))

    def around_update(self, parameters: tf.Variable, learning_rate: tf.Tensor, update: Callable[[], None]) -> None:
        """See `Staleness.around_update`. An update at a rate of 0 says nothing about the size of others."""
        before = parameters.read_value()
        with tf.control_dependencies([before]):
            update()
        moved = euclidean_norm(parameters.read_value() - before)

        def remember() -> tf.Tensor:
            self._decay_power.assign(self._decay_power * _STEP_DECAY)
            # The square of a small rate is 0 long before the rate is.
            change = tf.square(moved / learning_rate) - self._mean_square
            return self._mean_square.assign_add((1.0 - _STEP_DECAY) * change)

        tf.cond(learning_rate > 0.0, remember, self._mean_square.read_value)


class DelayCompensated(Staleness):
    """See `compensated` and `adaptive_compensation`. The mean square starts at 0."""

    weighs = False

    def __init__(self, size: int, initial: float, decay: float | None) -> None:
        super().__init__()
        self._initial, self._decay = initial, decay
        self._mean_square = tf.Variable(tf.zeros([size]), name="compensation_mean_square")
        self.variables = {"compensation_mean_square": self._mean_square}

    def judge(self, gradient: tf.Tensor, lag: tf.Tensor, moved: tf.Tensor | None) -> Judged:  # noqa: ARG002
        """See `Staleness.judge`."""
        assert moved is not None
        one = tf.constant(1.0)
        if self._decay is None:
            return Judged(compensated(gradient, tf.constant(self._initial), moved), one)
        mean_square = self._decay * self._mean_square + (1.0 - self._decay) * tf.square(gradient)
        return Judged(compensated(gradient, adaptive_compensation(self._initial, mean_square), moved), one, mean_square)

    def accept(self, judged: Judged) -> None:
        """See `Staleness.accept`."""
        if judged.memory is not None:
            self._mean_square.assign(judged.memory)


def make_staleness(size: int, learner: LearnerConfig, optimizer: OptimizerConfig) -> Staleness | None:
    """What the settings name, for a vector of `size` parameters; None if old gradients count like new ones."""
    match learner.staleness:
        case "inverse":
            return Inverse()
        case "gap":
            return Gap(optimizer.learning_rate)
        case "delay_compensated":
            return DelayCompensated(size, learner.compensation, learner.compensation_decay)
    return None


class VersionRing:
    """The newest parameter vectors of a run, by version: at most `size` of them, each float32 [P]."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._vectors: dict[int, tuple[Float32Array, tf.Tensor]] = {}

    def keep(self, version: int, parameters: Float32Array) -> Float32Array:
        """Copy the parameters of a version that is not older than any before; return the copy, which is read-only."""
        vector: Float32Array = aligned(parameters.shape, "float32")  # type: ignore[assignment]
        np.copyto(vector, parameters)
        # What a graph takes without copying it. It can only be made of an array that is still writeable.
        tensor = tensor_on(vector)
        vector.flags.writeable = False
        self._vectors[version] = vector, tensor
        if len(self._vectors) > self._size:
            del self._vectors[next(iter(self._vectors))]
        return vector

    def at(self, version: int) -> tf.Tensor:
        """The parameters of a version, as a `Graph` takes them; of one that is not kept any more, the oldest kept."""
        _, tensor = self._vectors.get(version) or next(iter(self._vectors.values()))
        return tensor

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint, by version, oldest first: 5.3 bytes per parameter and version."""
        return {str(version): b64encode(vector.tobytes()).decode() for version, (vector, _) in self._vectors.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`. What does not fit in the ring is left out, the oldest first."""
        self._vectors = {}
        for version, encoded in state.items():
            self.keep(int(version), np.frombuffer(b64decode(encoded), np.float32))
