"""The mean observation of random play."""

import numpy as np
import pytest

from actors.environments import measure_observation_mean
from shared.config import EnvironmentConfig


@pytest.mark.usefixtures("short_random_play")
def test_the_mean_observation_is_reproducible_and_in_range() -> None:
    first, second = (measure_observation_mean(EnvironmentConfig(), 3) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert first.shape == (84, 84, 4)
    assert first.dtype == np.float32
    assert 0 <= first.min() < first.max() <= 255
