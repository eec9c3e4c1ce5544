"""What `bench throughput` predicts for more cores, and what it says on a busy machine."""

from dataclasses import replace

import pytest

from launch.bench.throughput import agent_steps_per_gradient, predict, saturation_actors
from launch.machine import ACTOR_BYTES, LEARNER_BYTES
from launch.presets import PRESETS
from launch.settings.resolve import divided_among
from shared.config import ActorConfig, LearnerConfig, RunConfig


def config() -> RunConfig:
    """Settings with 100 agent steps per gradient (10 x 20, two epochs) for every number of actors."""
    actor = ActorConfig(environments=10, unroll_length=20, epochs=2)
    return replace(PRESETS["pong"].config, actor=actor, learner=LearnerConfig(gradients_per_update=4))


def test_actors_share_the_cores_until_the_learner_is_full() -> None:
    one = predict(config(), 1e-3, 0.05, 1)
    assert (one["actors"], one["held_back_by"]) == (1, "actors")
    assert one["gradients_per_second"] == pytest.approx(1 / (0.1 + 0.05))
    assert one["agent_steps_per_second"] == pytest.approx(100 / 0.15)
    assert one["frames_per_second"] == pytest.approx(400 / 0.15)
    assert one["minutes_to_40m_frames"] == pytest.approx(40e6 / (400 / 0.15) / 60)
    assert one["memory_gib"] == pytest.approx((ACTOR_BYTES + LEARNER_BYTES) / 2**30)
    assert one["learner_utilisation"] == pytest.approx(1 / 3)
    four = predict(config(), 1e-3, 0.05, 4)
    assert (four["actors"], four["gradients_per_second"]) == (3, pytest.approx(1 / 0.05))
    many = predict(config(), 1e-3, 0.05, 64)
    assert (many["gradients_per_second"], many["held_back_by"]) == (pytest.approx(1 / 0.05), "learner")
    assert many["learner_utilisation"] == pytest.approx(1.0)
    assert saturation_actors(config(), 1e-3, 0.0501) == 3
    assert saturation_actors(config(), 1e-3, 0.0499) == 4


def test_more_actors_send_smaller_gradients() -> None:
    """The learner of `pong` is full sooner than by the gradients of the actors of this machine."""
    pong = PRESETS["pong"].config
    steps = {cores: agent_steps_per_gradient(divided_among(pong, max(1, cores - 1))) for cores in (1, 64)}
    assert steps[64] < steps[1]
    found = predict(pong, 1e-3, 1e-6, 64)
    assert found["gradients_per_second"] * steps[64] == pytest.approx(found["agent_steps_per_second"])
    full = saturation_actors(pong, 1e-3, 2e-3)
    assert full == pytest.approx(1 + 1e-3 * agent_steps_per_gradient(divided_among(pong, full)) / 2e-3, abs=1)
