"""How many gradients make an update so that the mean policy lag stays near a target, and at which learning rate."""

import math
from collections import deque
from typing import Any, Literal

# A mean over at least so many gradients, and over about two of each that is in flight.
_LEAST_WINDOW = 64
_WINDOW_FLIGHTS = 2.0
# K changes only where that brings the logarithm of the lag this much nearer to that of its target.
_HYSTERESIS = 0.05
# Versions whose count is remembered; a gradient of an older one was in flight for at least so long.
_MOST_VERSIONS = 4096

Scaling = Literal["square_root", "linear", "none"]


def rate_factor(gradients_per_update: int, tuned_gradients_per_update: int, scaling: Scaling) -> float:
    """What the learning rate is multiplied by for updates of K averaged gradients, if it was tuned for K₀.

        square_root: √(K/K₀)        linear: K/K₀        none: 1

    The square root is for optimizers that divide by the root of the mean square, RMSProp and Adam: the noise of a mean
    of K gradients falls as 1/√K, and the steps that it is divided into grow as √K (Malladi et al. 2022, arXiv
    2205.10287). Their rule scales 1 - α and ε as well; only the rate is scaled here, since K changes within a run. The
    linear rule is for SGD (Goyal et al. 2017, arXiv 1706.02677).
    """
    ratio = gradients_per_update / tuned_gradients_per_update
    return {"square_root": math.sqrt(ratio), "linear": ratio, "none": 1.0}[scaling]


class LagControl:
    """Chooses K, the gradients that make an update, so that gradients are L updates old on average.

    The *flight* of a gradient is how many gradients arrived between the weights that it was computed with and those
    that it met. With N gradients in flight its mean is N - 1, whatever K is and however fast each actor is, since every
    other gradient arrives once, on average, during a flight. Updates of K make a flight F a lag of F/K, so the law is

        K = F/L, or the whole number that is nearest to it as a ratio, within bounds,

    with F the running mean of flights over the last max(64, 2F) gradients. As F does not depend on K, nothing is fed
    back, and nothing can swing. K stays as it is until another one is nearer by 5 % (hysteresis), and changes only
    between two updates. Where K is at its least, and gradients in flight are too few for L, the lag is below L.

    Gradients that are dropped have flown as well. Were only those measured that a limit on the lag lets through, F
    would be no more than that limit times K, and K stay where most are dropped.

    All of it follows from the versions of the gradients in the order of their arrival: no clock, no number of actors.

    Args:
        target: L, in updates.
        least, most: bounds of K.
    """

    def __init__(self, target: float, least: int, most: int) -> None:
        self._target, self._least, self._most = target, least, most
        self.gradients_per_update = least
        self.mean_flight = 0.0
        self._seen = 0
        self._arrived = self._pending = 0
        # Of each of the newest versions, how many gradients had arrived when it was made.
        self._arrived_at: deque[int] = deque([0], maxlen=_MOST_VERSIONS)

    def arrive(self, lag: int) -> None:
        """Take in a gradient whose weights were so many updates old, whether it is accepted or dropped."""
        flight = self._arrived - self._arrived_at[-1 - min(lag, len(self._arrived_at) - 1)]
        self._seen += 1
        window = min(self._seen, max(_LEAST_WINDOW, _WINDOW_FLIGHTS * self.mean_flight))
        self.mean_flight += (flight - self.mean_flight) / window
        self._pending += 1

    def update(self) -> None:
        """Take in that there was an update; choose the K of the next one."""
        self._arrived += self._pending
        self._pending = 0
        self._arrived_at.append(self._arrived)
        best = self._nearest()
        if self._distance(best) + _HYSTERESIS < self._distance(self.gradients_per_update):
            self.gradients_per_update = best

    def forget_pending(self) -> None:
        """Take in that the gradients that arrived since the last update will not be applied."""
        self._pending = 0

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {
            "gradients_per_update": self.gradients_per_update,
            "mean_flight": self.mean_flight,
            "seen": self._seen,
            "applied": self._arrived,
            "pending": self._pending,
            "applied_at": list(self._arrived_at),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`. K is brought within the bounds, which may be others now."""
        self.gradients_per_update = min(max(state["gradients_per_update"], self._least), self._most)
        self.mean_flight = state["mean_flight"]
        self._seen, self._arrived, self._pending = state["seen"], state["applied"], state["pending"]
        self._arrived_at = deque(state["applied_at"], maxlen=_MOST_VERSIONS)

    def _nearest(self) -> int:
        """The K within bounds whose lag is nearest to the target, as a ratio."""
        below = min(max(int(self.mean_flight / self._target), self._least), self._most)
        above = min(below + 1, self._most)
        return min(below, above, key=self._distance)

    def _distance(self, gradients_per_update: int) -> float:
        """|log(lag/target)| with this K; the less K the nearer, where nothing is in flight."""
        if not self.mean_flight:
            return float(gradients_per_update)
        return abs(math.log(self.mean_flight / (gradients_per_update * self._target)))
