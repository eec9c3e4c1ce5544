"""Mean and variance of a stream, in parts that can be merged in any order."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]

WINDOW = 1024
"""Agent steps of the exponential window of `AdvantageMoments`: advantages of 710 steps ago have half the weight. As
many as in a rollout of the presets for images, where one actor's advantages are standardised."""


class AdvantageMoments(NamedTuple):
    """The number of advantages, their sum, and the sum of their squares."""

    number: float = 0.0
    total: float = 0.0
    squares: float = 0.0


def with_newer(moments: Any, newer: Any, maximum: Callable = max) -> Any:
    """`AdvantageMoments` [3] in an exponential window: n `newer` agent steps scale the old moments by 1 - n/1024.

    The number of agent steps rises to 1,024, or to the size of a larger rollout.
    """
    return maximum(1.0 - newer[0] / WINDOW, 0.0) * moments + newer


class Moments(NamedTuple):
    """Moments of `number` vectors: their `mean` and their summed squared deviations `squares`, float64 [n]."""

    number: int
    mean: Float64Array
    squares: Float64Array

    @classmethod
    def zero(cls, size: int) -> "Moments":
        return cls(0, np.zeros(size), np.zeros(size))

    @classmethod
    def of(cls, vectors: npt.NDArray[np.generic]) -> "Moments":
        """Moments of the vectors [..., n] whose numbers are all finite: one NaN would stay in them for good."""
        rows = vectors.reshape(-1, vectors.shape[-1]).astype(np.float64)
        finite = np.isfinite(rows)
        if not finite.all():
            rows = rows[finite.all(axis=1)]
        if not len(rows):
            return cls.zero(rows.shape[1])
        mean = rows.mean(axis=0)
        return cls(len(rows), mean, np.square(rows - mean).sum(axis=0))

    def merge(self, other: "Moments") -> "Moments":
        """Moments of the union (Chan, Golub and LeVeque 1983)."""
        number = self.number + other.number
        if number == 0:
            return self
        # From the difference of the means: sums of squares cancel where the mean is large.
        delta = other.mean - self.mean
        mean = self.mean + delta * (other.number / number)
        squares = self.squares + other.squares + np.square(delta) * (self.number * other.number / number)
        return Moments(number, mean, squares)

    @property
    def variance(self) -> Float64Array:
        """Population variance; ones before the first vector."""
        return self.squares / self.number if self.number else np.ones_like(self.squares)

    def to_json(self) -> list[object]:
        return [self.number, self.mean.tolist(), self.squares.tolist()]

    @classmethod
    def from_json(cls, values: Sequence) -> "Moments":
        number, mean, squares = values
        return cls(int(number), np.array(mean, np.float64), np.array(squares, np.float64))


def factor_of_rewards(discounted_returns: Moments) -> float | None:
    """Factor of rewards from the `Moments` of discounted returns; None while all returns are equal."""
    if not discounted_returns.squares[0] > 0.0:
        return None
    # The constant guards returns of almost no variance.
    return float((discounted_returns.variance[0] + 1e-8) ** -0.5)
