"""Scores against arithmetic, and protocols against what they claim."""

import numpy as np
import pytest

from launch.results.protocols import by_protocol, describe_protocol, protocol_line
from launch.results.scores import bootstrap_interval, human_normalised, paper_score, score_summary
from shared.config import EnvironmentConfig
from shared.errors import ConfigurationError


def test_human_normalised_scores_put_random_play_at_0_and_the_human_player_at_100() -> None:
    assert human_normalised("ALE/Breakout-v5", 1.7) == pytest.approx(0.0)
    assert human_normalised("ALE/Breakout-v5", 30.5) == pytest.approx(100.0)
    assert human_normalised("ALE/Pong-v5", -20.7) == pytest.approx(0.0)
    assert human_normalised("CartPole-v1", 500.0) is None
    assert paper_score("ALE/Pong-v5") == 5.6


def test_the_bootstrap_interval_covers_the_mean_of_a_normal_sample_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    inside = 0
    for _ in range(200):
        low, high = bootstrap_interval(generator.normal(3.0, 1.0, 60))
        inside += low <= 3.0 <= high
    assert 180 <= inside <= 198


def test_a_summary_of_known_returns() -> None:
    summary = score_summary(np.array([1.0, 2.0, 6.0]), np.array([10, 20, 60]), "CartPole-v1")
    assert summary["mean_return"] == 3.0
    assert summary["median_return"] == 2.0
    assert summary["standard_error"] == pytest.approx(np.sqrt(7.0 / 3.0))
    assert summary["mean_length_agent_steps"] == 30.0
    assert score_summary(np.array([1.0]), np.array([10]), "CartPole-v1")["interval_95"] is None


def test_protocols_change_what_they_name_and_leave_what_the_network_was_trained_with() -> None:
    trained = EnvironmentConfig(frame_skip=3, frame_stack=2, sticky_action_probability=0.1, full_action_space=True)
    assert by_protocol(trained, "training", is_atari=True) == trained
    noop = by_protocol(trained, "noop", is_atari=True)
    assert (noop.sticky_action_probability, noop.max_episode_frames, noop.frame_skip) == (0.0, 108_000, 3)
    machado = by_protocol(trained, "machado", is_atari=True)
    assert (machado.sticky_action_probability, machado.max_noops, machado.max_episode_frames) == (0.25, 0, 18_000)
    assert (machado.frame_stack, machado.full_action_space, machado.fire_on_reset) == (2, True, False)
    line = protocol_line(describe_protocol(noop, "noop", is_atari=True))
    assert "up to 30 no-ops" in line
    assert "full action set" in line


def test_protocols_for_atari_are_refused_elsewhere() -> None:
    with pytest.raises(ConfigurationError, match="is for Atari"):
        by_protocol(EnvironmentConfig(id="CartPole-v1", frame_skip=1), "machado", is_atari=False)
