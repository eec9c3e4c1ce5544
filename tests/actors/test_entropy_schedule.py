"""The weight of the entropy follows the global frames that come with the weights."""

from dataclasses import replace

import numpy as np
import pytest

from actors.actor import Actor
from actors.environments import environment_spec
from actors.policy import Policy
from shared.config import ActorConfig, MethodConfig, RunConfig
from shared.types import WeightSnapshot


@pytest.mark.parametrize("epochs", [1, 2])
def test_the_weight_of_the_entropy_falls_in_a_straight_line_with_the_frames(cartpole: RunConfig, epochs: int) -> None:
    config = replace(
        cartpole,
        actor=ActorConfig(environments=2, unroll_length=8, epochs=epochs),
        method=MethodConfig(entropy_cost=0.8, final_entropy_cost=0.2),
        optimizer=replace(cartpole.optimizer, annealing_frames=3_000),
    )
    spec = environment_spec(config.environment)
    # The policy is uniform at the start, where the entropy has no gradient.
    parameters = (
        np.random.default_rng(0).normal(0.0, 0.5, Policy(config, spec).initial_parameters().size).astype(np.float32)
    )

    def gradients(method: MethodConfig) -> list[np.ndarray]:
        actor = Actor(replace(config, method=method), spec, 0)
        # The last is of a run that went on for longer than its schedule.
        times = sorted([0, 1_000, 2_000, 4_000] * epochs)
        return [actor.run(WeightSnapshot(n, parameters, frames)).gradient for n, frames in enumerate(times)]

    falling = gradients(config.method)
    for place, cost in enumerate((0.8, 0.6, 0.4, 0.2)):
        constant = gradients(MethodConfig(entropy_cost=cost))
        for n in range(len(falling)):
            same = np.allclose(falling[n], constant[n], rtol=1e-4, atol=1e-6)
            assert same == (n // epochs == place), (n, cost)
