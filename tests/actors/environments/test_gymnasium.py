"""Other environments: facts of their spec, and their options."""

import numpy as np

from actors.environments import VectorEnvironment, adapter_of, environment_spec
from shared.config import EnvironmentConfig
from shared.types import ActionSpec

PENDULUM = EnvironmentConfig(id="Pendulum-v1", frame_skip=1, clip_rewards=False)


def test_the_spec_of_a_vector_environment() -> None:
    spec = environment_spec(PENDULUM)
    assert spec.actions == ActionSpec(1, continuous=True)
    assert (spec.observation_shape, spec.observation_dtype) == ((3,), "float32")
    assert spec.observation_bounds == ((-1.0, -1.0, -8.0), (1.0, 1.0, 8.0))
    assert not spec.images
    assert not spec.has_lives
    assert spec.frames_per_agent_step == 1


def test_options_reach_the_environment_and_its_protocols() -> None:
    config = EnvironmentConfig(id="CartPole-v1", frame_skip=1, options={"max_episode_steps": 3})
    environment = VectorEnvironment(config, 2)
    environment.reset(0)
    steps = [environment.step(np.zeros(2, np.int32)) for _ in range(3)]
    assert [step.truncated.tolist() for step in steps] == [[False, False], [False, False], [True, True]]
    assert not steps[-1].lost_life.any()
    adapter = adapter_of(config)
    assert adapter.training_protocol() == {"options": config.options}
    assert adapter.score_protocol(environment.spec()) == {"frames_per_agent_step": 1, "options": config.options}
