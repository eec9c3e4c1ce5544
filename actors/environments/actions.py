"""From the actions that methods choose to those that a space of Gymnasium's has."""

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from shared.types import ActionSpec


class Actions:
    """The actions of one space.

    Args:
        space: of one action.

    Raises:
        ValueError: it is neither a choice, nor several, nor an array.
    """

    def __init__(self, space: gymnasium.Space) -> None:
        self._shape: tuple[int, ...] = space.shape or ()
        self._dtype = space.dtype
        self._start: Any = 0
        self._bounds: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None = None
        if isinstance(space, Discrete):
            self.spec = ActionSpec(int(space.n))
            self._start = int(space.start)
        elif isinstance(space, MultiDiscrete):
            choices = tuple(map(int, space.nvec.ravel()))
            self.spec = ActionSpec(sum(choices), choices=choices)
            self._start = space.start
        elif isinstance(space, MultiBinary):
            choices = (2,) * int(np.prod(space.shape))
            self.spec = ActionSpec(sum(choices), choices=choices)
        elif isinstance(space, Box):
            self.spec = ActionSpec(int(np.prod(space.shape)), continuous=True)
            # They come in units of half the range. Without two finite bounds they are taken as they are.
            if np.isfinite(space.low).all() and np.isfinite(space.high).all():
                # In float32 the width of a range may be infinite, and the end of one of whole numbers beyond it.
                self._bounds = space.low.astype(np.float64), space.high.astype(np.float64)
        else:
            raise ValueError(
                f"actions are {space}: a choice, several choices or an array can be played; wrap it in an environment "
                f"that takes one of these: --environment.wrappers MODULE:WRAPPER"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Of the actions of one choice; of the parts of an action that has several."""
        return tuple(str(i) for i in range(self.spec.shape[0] if self.spec.shape else self.spec.size))

    def of_space(self, actions: npt.NDArray[Any]) -> npt.NDArray[np.generic]:
        """Actions [B, …] of the space, from int32 [B(, C)], or float32 [B, D] that are clipped to the bounds."""
        if not self.spec.continuous:
            if not self.spec.shape:
                return actions + self._start if self._start else actions
            return (actions.reshape(-1, *self._shape) + self._start).astype(self._dtype)
        shaped = actions.astype(np.float64).reshape(-1, *self._shape)
        if self._bounds is not None:
            low, high = self._bounds
            middle, half = 0.5 * low + 0.5 * high, 0.5 * high - 0.5 * low
            shaped = np.clip(middle + half * shaped, low, high)
        # A space may be of whole numbers.
        whole = np.issubdtype(self._dtype, np.integer)
        return np.rint(shaped).astype(self._dtype) if whole else shaped.astype(np.float32)


def random_actions(spec: ActionSpec, count: int, generator: np.random.Generator) -> npt.NDArray[np.generic]:
    """So many actions [count, …] as methods choose them, drawn uniformly."""
    if spec.continuous:
        return generator.uniform(-1.0, 1.0, (count, *spec.shape)).astype(np.float32)
    return generator.integers(0, spec.choices or spec.size, (count, *spec.shape), np.int32)
