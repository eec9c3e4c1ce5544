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
    # The learning rate falls to 0 over these, and so does the entropy cost: a run that is longer by --total-frames
    # learns for longer.
    total_frames=40_000_000,
    environment=EnvironmentConfig(id="ALE/Pong-v5", terminal_on_life_loss=True),
    # With 0.01 or 0.02 from the start Space Invaders all but stops exploring within 0.3 M agent steps; and with 0.03 to
    # the end Breakout plays for half of what its best actions do (docs/tuning.md).
    method=MethodConfig(return_lambda=0.95, standardise_advantages=True, entropy_cost=0.03, final_entropy_cost=0.0),
    optimizer=OptimizerConfig(learning_rate=1e-3, epsilon=1e-7, bias_correction=True, max_gradient_norm=0.5),
    actor=ActorConfig(environments=32, unroll_length=32, epochs=2, minibatches=4),
)

PONG = replace(
    ATARI,
    total_frames=12_000_000,
    stop_at_return=18.0,
    # It has no lives.
    environment=EnvironmentConfig(id="ALE/Pong-v5"),
)

# As PQN has it (Gallici et al. 2024, arXiv 2407.04811): no target network, LayerNorm, and λ = 0.65.
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

# The training protocol of Machado et al. 2018 (arXiv 1709.06009, section 5): nothing is known of lives, any action may
# be repeated, and all 18 can be taken.
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

# Espeholt et al. 2018 (arXiv 1802.01561, Table G.1), with the Nature network; V-trace would correct nothing, as the
# weights that differentiate are those that acted.
IMPALA_SHALLOW = RunConfig(
    total_frames=200_000_000,
    environment=EnvironmentConfig(terminal_on_life_loss=True),
    network=NetworkConfig(name="nature_cnn", centre_observations=False),
    method=MethodConfig(reduction="sum", value_cost=0.5, entropy_cost=0.01, discount=0.99),
    optimizer=OptimizerConfig(learning_rate=6e-4, epsilon=0.01, max_gradient_norm=40.0),
    actor=ActorConfig(environments=32, unroll_length=20),
)
