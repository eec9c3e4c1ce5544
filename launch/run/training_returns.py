"""What the returns of training episodes say of untrained play, and of play now. No Ray, no TensorFlow."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from learner.account import RETURN_WINDOW


class TrainingReturns:
    """The returns of a run's first 100 training episodes, and whether the last 100 say how the policy plays.

    The first to end after a start are the shortest there are. So the last 100 count once every environment has ended an
    episode. One that plays as many agent steps as an episode may have is truncated, and has ended one too.

    `last_count` is whether they counted when they were last looked at.
    """

    def __init__(self) -> None:
        self.last_count = False
        self._first: list[float] | None = []
        # How many environments of each actor have ended no episode; the actor heard of for longest is the first one.
        self._unfinished: dict[int, int] = {}
        self._unfinished_actors = 0

    def add(self, actor_id: int, returns: Sequence[float], unfinished_environments: int) -> None:
        """Take in an actor's report: what its episodes returned, and how many environments have ended none yet."""
        if self._first is not None:
            self._first.extend(returns[: RETURN_WINDOW - len(self._first)])
        self._forget(actor_id)
        self._unfinished[actor_id] = unfinished_environments
        self._unfinished_actors += unfinished_environments > 0

    def look(self, episodes: int, actors: int) -> None:
        """Set `last_count`, with so many episodes in the window, and so many actors that play now."""
        # Those that are gone are the ones that nobody has heard of for longest.
        while len(self._unfinished) > actors:
            self._forget(next(iter(self._unfinished)))
        everybody = 0 < actors == len(self._unfinished)
        self.last_count = episodes >= RETURN_WINDOW and everybody and not self._unfinished_actors

    @property
    def untrained(self) -> float | None:
        """The mean return of the first 100 episodes, about that of untrained play.

        None until they have ended, and where a checkpoint of an older version did not keep them.
        """
        if self._first is None or len(self._first) < RETURN_WINDOW:
            return None
        return float(np.mean(self._first))

    def state(self, *, exact: bool) -> dict[str, Any]:
        """As plain values, for a checkpoint. `exact`: its actors go on as they are."""
        return {
            "first_episodes": self._first,
            "training_window": [list(item) for item in self._unfinished.items()] if exact else None,
        }

    def restore(self, state: dict[str, Any], *, exact: bool) -> None:
        """The inverse of `state`, from a checkpoint that holds other things too."""
        self._first = state.get("first_episodes")
        if exact:
            self._unfinished = {actor_id: unfinished for actor_id, unfinished in state["training_window"]}  # noqa: C416
            self._unfinished_actors = sum(unfinished > 0 for unfinished in self._unfinished.values())

    def _forget(self, actor_id: int) -> None:
        self._unfinished_actors -= self._unfinished.pop(actor_id, 0) > 0
