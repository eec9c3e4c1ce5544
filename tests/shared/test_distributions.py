"""The policies against their closed forms, and noise that persists against the density in the loss."""

import numpy as np
import pytest
import tensorflow as tf

from shared.config import ExplorationConfig
from shared.distributions import (
    categorical_entropy,
    categorical_log_prob,
    categorical_mode,
    categorical_sample,
    gaussian_entropy,
    gaussian_log_prob,
    spherical,
    state_dependent_log_std,
)
from shared.exploration import EpsilonGreedy, GaussianNoise, StateDependentNoise, final_epsilons
from shared.networks import NetworkOutput


def test_the_gaussian_equals_its_closed_form() -> None:
    random = np.random.default_rng(0)
    mean, log_std, action = random.normal(size=(3, 4, 2))
    mean_t, log_std_t = (tf.constant(x, tf.float32) for x in (mean, log_std))
    with tf.GradientTape() as tape:
        tape.watch([mean_t, log_std_t])
        log_prob = gaussian_log_prob(mean_t, log_std_t, tf.constant(action, tf.float32))
    variance = np.exp(2 * log_std)
    expected = -0.5 * (action - mean) ** 2 / variance - log_std - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(log_prob, expected.sum(axis=1), rtol=1e-5)
    grad_mean, grad_log_std = tape.gradient(log_prob, [mean_t, log_std_t])
    np.testing.assert_allclose(grad_mean, (action - mean) / variance, rtol=1e-4)
    np.testing.assert_allclose(grad_log_std, (action - mean) ** 2 / variance - 1.0, rtol=1e-4, atol=1e-5)
    # Half log 2πe for each dimension of deviation 1.
    assert float(gaussian_entropy(tf.zeros(3))) == pytest.approx(1.5 * np.log(2 * np.pi * np.e))


def output(features: np.ndarray, mean: np.ndarray, log_std: np.ndarray) -> NetworkOutput:
    return NetworkOutput(
        {"policy": tf.constant(mean, tf.float32)},
        tf.constant(features, tf.float32),
        {"log_std": tf.constant(log_std, tf.float32)},
    )


@pytest.mark.parametrize("noise", ["independent", "state_dependent"])
def test_actions_are_sampled_from_the_density_in_the_loss(noise: str) -> None:
    """Mean and deviation of 40,000 samples, actions beyond the bounds included."""
    count, random = 40_000, np.random.default_rng(1)
    features = np.tile(random.normal(size=(1, 3)), (count, 1))
    mean = np.tile([[0.3, -2.0]], (count, 1))
    if noise == "independent":
        log_std = np.array([-0.5, 0.7])
        deviation = np.exp(log_std)
        explorer = GaussianNoise(1, lambda output: (output.heads["policy"], output.parameters["log_std"]))
    else:
        log_std = random.normal(size=(3, 2))
        explorer = StateDependentNoise(count, 2, 1, persistence=4)
        deviation = np.exp(state_dependent_log_std(features[0], tf.constant(log_std, tf.float32)).numpy())
    actions = explorer.sample(output(features, mean, log_std)).numpy()
    np.testing.assert_allclose(actions.mean(axis=0), mean[0], atol=5 * deviation.max() / count**0.5)
    np.testing.assert_allclose(actions.std(axis=0), deviation, rtol=0.02)
    assert np.abs(actions).max() > 1.0


def test_spherical_actions_are_sampled_from_the_density_in_the_loss() -> None:
    """σ² = log(1 + exp x) of the last output, for all dimensions: its closed forms, and the moments of samples."""
    outputs = np.tile([[0.3, -2.0, 1.5]], (40_000, 1)).astype(np.float32)
    mean, log_std = spherical(tf.constant(outputs[:1]))
    variance = np.log1p(np.exp(1.5))
    action = np.array([[1.0, -1.0]], np.float32)
    expected = -0.5 * ((0.7**2 + 1.0) / variance) - np.log(2 * np.pi * variance)
    assert float(gaussian_log_prob(mean, log_std, tf.constant(action))[0]) == pytest.approx(expected, rel=1e-5)
    entropy = gaussian_entropy(tf.broadcast_to(log_std, mean.shape))
    assert float(entropy[0]) == pytest.approx(np.log(2 * np.pi * np.e * variance), rel=1e-5)
    explorer = GaussianNoise(1, lambda output: spherical(output.heads["policy"]))
    actions = explorer.sample(NetworkOutput({"policy": tf.constant(outputs)}, tf.zeros((1, 1)), {})).numpy()
    np.testing.assert_allclose(actions.mean(axis=0), [0.3, -2.0], atol=5 * variance**0.5 / 200)
    np.testing.assert_allclose(np.cov(actions.T), variance * np.eye(2), atol=0.05)
    assert float(spherical(tf.constant([0.0, -200.0]))[1][0]) == pytest.approx(0.5 * np.log(1e-6))


def test_state_dependent_noise_persists_and_is_renewed_at_its_rate() -> None:
    explorer = StateDependentNoise(2_000, 2, 1, persistence=10)
    fixed = output(np.ones((2_000, 3)), np.zeros((2_000, 2)), np.zeros((3, 2)))
    actions = np.stack([explorer.sample(fixed).numpy() for _ in range(20)])
    kept = (actions[1:] == actions[:-1]).all(axis=-1)
    assert kept.mean() == pytest.approx(0.9, abs=0.01)
    # Each environment by itself, and not all of them at a time.
    np.testing.assert_allclose(kept.mean(axis=1), 0.9, atol=0.04)


def test_state_dependent_deviation_gives_features_no_gradient() -> None:
    features, log_std = tf.ones((1, 3)), tf.zeros((3, 1))
    with tf.GradientTape() as tape:
        tape.watch([features, log_std])
        deviation = state_dependent_log_std(features, log_std)
    grad_features, grad_log_std = tape.gradient(deviation, [features, log_std])
    assert grad_features is None
    np.testing.assert_allclose(grad_log_std, np.full((3, 1), 1 / 3), rtol=1e-5)
    assert float(deviation[0, 0]) == pytest.approx(0.5 * np.log(3.0), rel=1e-5)
    assert float(state_dependent_log_std(tf.zeros((1, 3)), log_std)[0, 0]) == pytest.approx(0.5 * np.log(1e-6))


def test_final_epsilons_have_the_papers_shares() -> None:
    config = ExplorationConfig()
    values, counts = np.unique(final_epsilons(config, 10, seed=3), return_counts=True)
    assert dict(zip(values, counts, strict=True)) == {0.1: 4, 0.01: 3, 0.5: 3}
    drawn = np.concatenate([final_epsilons(config, 1, seed) for seed in range(4_000)])
    for value, probability in zip(config.final_epsilons, (0.4, 0.3, 0.3), strict=True):
        assert (drawn == value).mean() == pytest.approx(probability, abs=0.03)


def test_epsilon_is_annealed_by_frames_for_each_environment() -> None:
    config = ExplorationConfig(annealing_frames=1_000)
    explorer = EpsilonGreedy(config, 10, 4, seed=1, training=True, masked=False)
    for frames, share in ((0, 0.0), (500, 0.5), (1_000, 1.0), (9_000, 1.0)):
        explorer.begin(frames)
        np.testing.assert_allclose(explorer.epsilon, 1.0 + share * (explorer.final - 1.0), rtol=1e-6)
    # Actors of one environment each have different ones.
    final = {EpsilonGreedy(config, 1, 4, seed, training=True, masked=False).final.item() for seed in range(20)}
    assert final == set(config.final_epsilons)
    evaluating = EpsilonGreedy(config, 3, 4, seed=1, training=False, masked=False)
    evaluating.begin(0)
    np.testing.assert_allclose(evaluating.epsilon, [0.01] * 3, rtol=1e-6)


def test_epsilon_greedy_takes_the_best_action_but_for_its_share() -> None:
    config = ExplorationConfig(final_epsilons=(0.4,), annealing_frames=1)
    explorer = EpsilonGreedy(config, 30_000, 4, seed=1, training=True, masked=False)
    explorer.begin(10)
    values = tf.constant(np.tile([0.0, 3.0, 1.0, 2.0], (30_000, 1)), tf.float32)
    actions = explorer.sample(NetworkOutput({"action_values": values}, values, {})).numpy()
    shares = np.bincount(actions, minlength=4) / 30_000
    np.testing.assert_allclose(shares, [0.1, 0.7, 0.1, 0.1], atol=0.012)


CHOICES = (3, 2)
# Probabilities of two choices, one among 3 actions and one among 2.
FIRST, SECOND = np.array([0.5, 0.3, 0.2]), np.array([0.9, 0.1])


def two_choices(batch: int) -> tf.Tensor:
    # What is added to all logits of one choice changes nothing.
    return tf.constant(np.tile(np.concatenate([np.log(FIRST) + 4.0, np.log(SECOND) - 1.0]), (batch, 1)), tf.float32)


def test_choices_made_at_once_are_independent_of_each_other() -> None:
    logits, actions = two_choices(2), tf.constant([[0, 1], [2, 0]])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        log_prob = categorical_log_prob(logits, actions, CHOICES)
    np.testing.assert_allclose(log_prob, [np.log(0.5) + np.log(0.1), np.log(0.2) + np.log(0.9)], rtol=1e-5)
    # By the logits of each choice: one-hot - π.
    expected = [[0.5, -0.3, -0.2, -0.9, 0.9], [-0.5, -0.3, 0.8, 0.1, -0.1]]
    np.testing.assert_allclose(tape.gradient(log_prob, logits), expected, atol=1e-6)
    entropy = -(FIRST * np.log(FIRST)).sum() - (SECOND * np.log(SECOND)).sum()
    np.testing.assert_allclose(categorical_entropy(logits, CHOICES), [entropy] * 2, rtol=1e-5)
    np.testing.assert_array_equal(categorical_mode(logits, CHOICES), [[0, 0]] * 2)


def test_sampled_choices_are_independent() -> None:
    count = 20_000
    actions = categorical_sample(two_choices(count), tf.random.Generator.from_seed(1), CHOICES).numpy()
    assert (actions.shape, actions.dtype) == ((count, 2), np.int32)
    pairs = np.bincount(actions[:, 0] * 2 + actions[:, 1], minlength=6).reshape(3, 2) / count
    np.testing.assert_allclose(pairs, np.outer(FIRST, SECOND), atol=0.01)
