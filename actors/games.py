"""Which of the episodes that were played are one and the same game."""

import hashlib

import numpy as np
import numpy.typing as npt


class Games:
    """Tells the games of B environments apart by what is seen at the start, and all actions and rewards.

    An emulator without sticky actions has one course for each start and sequence of actions: greedy play from few
    starts repeats a few games, and so many episodes as it may play, a score rests on those.

    Args:
        observations: of the first start, [B, …].
    """

    def __init__(self, observations: npt.NDArray[np.generic]) -> None:
        self._courses = [hashlib.blake2b(observation.tobytes()) for observation in observations]
        self._numbers: dict[bytes, int] = {}

    def step(
        self,
        actions: npt.NDArray[np.generic],
        rewards: npt.NDArray[np.float32],
        observations: npt.NDArray[np.generic],
        resets: npt.NDArray[np.bool_],
    ) -> None:
        """Take in a vector step: actions [B, …], rewards float32 [B], observations [B, …].

        Environments in `resets` bool [B] only reset in it: their next game starts with what they see.
        """
        for i, course in enumerate(self._courses):
            if resets[i]:
                self._courses[i] = hashlib.blake2b(observations[i].tobytes())
            else:
                course.update(actions[i].tobytes() + rewards[i].tobytes())

    def ended(self, environment: int) -> int:
        """The number of the game that has just ended in an environment; the first is 0, equal games have one."""
        return self._numbers.setdefault(self._courses[environment].digest(), len(self._numbers))


def standard_error(returns: npt.NDArray[np.float64], games: npt.NDArray[np.int64] | None) -> float | None:
    """Of the mean of returns float64 [E], over the distinct games; None for a single one.

    A game that is played again says nothing new: it weighs by how often it was played, and counts once. `games` int64
    [E] has one number for episodes that were the same game; None: no two were. Of games played once it is s/√E.
    """
    if games is None:
        games = np.arange(len(returns))
    _, first, times_played = np.unique(games, return_index=True, return_counts=True)
    count = len(first)
    if count < 2:
        return None
    weights = times_played / np.sum(times_played)
    deviations = returns[first] - np.sum(weights * returns[first])
    return float(np.sqrt(count / (count - 1) * np.sum((weights * deviations) ** 2)))
