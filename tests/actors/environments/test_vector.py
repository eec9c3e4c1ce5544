"""Vector environments: one autoreset rule, and the mean observation of random play."""

import numpy as np
import pytest

from actors.environments import VectorEnvironment, environment_spec, measure_observation_mean
from shared.config import EnvironmentConfig
from shared.errors import ConfigurationError

PENDULUM = EnvironmentConfig(id="Pendulum-v1", frame_skip=1, clip_rewards=False)


def test_observations_are_written_where_they_are_asked_for() -> None:
    for config in (EnvironmentConfig(), EnvironmentConfig(id="CartPole-v1", frame_skip=1)):
        environment = VectorEnvironment(config, 2)
        first = environment.reset(0)
        to = np.empty_like(first)
        result = environment.step(np.zeros(2, np.int32), to)
        assert result.observations is to
        other = VectorEnvironment(config, 2)
        other.reset(0)
        np.testing.assert_array_equal(other.step(np.zeros(2, np.int32)).observations, to)


def test_cartpole_and_pong_reset_in_the_step_after_the_end() -> None:
    cartpole = VectorEnvironment(EnvironmentConfig(id="CartPole-v1", frame_skip=1), 1)
    cartpole.reset(0)
    while not (result := cartpole.step(np.zeros(1, np.int32))).terminated[0]:
        pass
    assert abs(result.observations[0, 2]) > 0.2
    after = cartpole.step(np.ones(1, np.int32))
    assert np.abs(after.observations).max() <= 0.05
    assert after.rewards[0] == 0.0
    pong = VectorEnvironment(EnvironmentConfig(max_episode_frames=80, max_noops=0), 1)
    pong.reset(0)
    while not (result := pong.step(np.zeros(1, np.int32))).truncated[0]:
        assert not result.terminated[0]
    after = pong.step(np.zeros(1, np.int32))
    assert not after.truncated[0]
    assert not np.array_equal(after.observations, result.observations)


def test_continuous_actions_are_in_units_of_half_the_range_and_clipped_to_it() -> None:
    taken = []
    environment = VectorEnvironment(PENDULUM, 5)
    environment.reset(0)
    inner = environment.unwrapped
    step = inner.step
    inner.step = lambda actions: taken.append(actions) or step(actions)
    environment.step(np.array([[-7.0], [-1.0], [0.0], [0.5], [3.0]], np.float32))
    np.testing.assert_allclose(taken[0][:, 0], [-2.0, -2.0, 0.0, 1.0, 2.0])


def test_double_frame_skip_in_options_is_refused() -> None:
    config = EnvironmentConfig(id="CartPole-v1", options={"frameskip": 4})
    with pytest.raises(ConfigurationError, match="skip frames twice"):
        environment_spec(config)


@pytest.mark.usefixtures("short_random_play")
def test_the_mean_observation_is_reproducible_and_in_range() -> None:
    first, second = (measure_observation_mean(EnvironmentConfig(), 3) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert first.shape == (84, 84, 4)
    assert first.dtype == np.float32
    assert 0 <= first.min() < first.max() <= 255
