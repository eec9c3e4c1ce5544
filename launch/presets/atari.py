"""Presets for Atari."""

from dataclasses import replace

from shared.config import (
    ActorConfig,
    EnvironmentConfig,
    ExplorationConfig,
    MethodConfig,
    NetworkConfig,
    OptimizerConfig,
    RunConfig,
)

ATARI = RunConfig(
    # Learning rate and entropy cost fall to 0 over these frames.
    total_frames=40_000_000,
    environment=EnvironmentConfig(id="ALE/Pong-v5", terminal_on_life_loss=True),
    # With an entropy cost of 0.01 or 0.02 from the start, exploration in Space Invaders all but ends within 0.3 M agent
    # steps; with 0.03 to the end, Breakout scores half of what its greedy policy does (docs/tuning.md).
    method=MethodConfig(return_lambda=0.95, standardise_advantages=True, entropy_cost=0.03, final_entropy_cost=0.0),
    optimizer=OptimizerConfig(learning_rate=1e-3, epsilon=1e-7, bias_correction=True, max_gradient_norm=0.5),
    actor=ActorConfig(environments=32, unroll_length=32, epochs=2, minibatches=4, steps_in_flight=2_048),
)

PONG = replace(
    ATARI,
    total_frames=12_000_000,
    stop_at_return=18.0,
    environment=EnvironmentConfig(id="ALE/Pong-v5"),
)

# As in PQN (Gallici et al. 2024, arXiv 2407.04811): no target network, LayerNorm, and λ = 0.65.
PONG_Q = replace(
    PONG,
    stop_at_return=10.0,
    network=NetworkConfig(layer_norm=True),
    method=MethodConfig(name="q_learning", target_network=False, return_lambda=0.65),
    # The paper's final ε of 0.5 in three tenths of the environments would hold the mean training return below 0.
    exploration=ExplorationConfig(final_epsilons=(0.05, 0.02, 0.01), annealing_frames=1_000_000),
    optimizer=replace(PONG.optimizer, learning_rate=3e-4, max_gradient_norm=5.0),
)

BREAKOUT = replace(ATARI, environment=replace(ATARI.environment, id="ALE/Breakout-v5"))

# The training protocol of Machado et al. 2018 (arXiv 1709.06009, section 5): no knowledge of lives, sticky actions, and
# all 18 actions.
ATARI_STICKY = replace(
    ATARI,
    environment=EnvironmentConfig(
        sticky_action_probability=0.25,
        full_action_space=True,
        max_noops=0,
        fire_on_reset=False,
        max_episode_frames=18_000,
    ),
)

# Espeholt et al. 2018 (arXiv 1802.01561, Table G.1), with the Nature network. Without V-trace: acting and
# differentiating weights are the same.
IMPALA_SHALLOW = RunConfig(
    total_frames=200_000_000,
    environment=EnvironmentConfig(terminal_on_life_loss=True),
    network=NetworkConfig(name="nature_cnn", centre_observations=False),
    method=MethodConfig(reduction="sum", value_cost=0.5, entropy_cost=0.01, discount=0.99),
    optimizer=OptimizerConfig(learning_rate=6e-4, epsilon=0.01, max_gradient_norm=40.0),
    actor=ActorConfig(environments=32, unroll_length=20),
)
