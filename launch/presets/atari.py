"""Presets for Atari."""

from dataclasses import replace

from shared.config import (
    ActorConfig,
    EnvironmentConfig,
    EvaluationConfig,
    ExplorationConfig,
    MethodConfig,
    OptimizerConfig,
    RunConfig,
)

PONG = RunConfig(
    # The learning rate falls to 0 over these: a run that is longer by --total-frames learns for longer.
    total_frames=12_000_000,
    stop_at_return=18.0,
    environment=EnvironmentConfig(id="ALE/Pong-v5"),
    method=MethodConfig(return_lambda=0.95, standardise_advantages=True),
    optimizer=OptimizerConfig(learning_rate=5e-4, epsilon=1e-7, bias_correction=True, max_gradient_norm=0.5),
    actor=ActorConfig(environments=8, unroll_length=16),
)

PONG_Q = replace(
    PONG,
    stop_at_return=10.0,
    method=MethodConfig(name="q_learning", return_lambda=0.9),
    # The paper's final ε of 0.5 in three tenths of the environments would hold the mean training return below 0.
    exploration=ExplorationConfig(final_epsilons=(0.05, 0.02, 0.01), annealing_frames=1_000_000),
    optimizer=replace(PONG.optimizer, learning_rate=3e-4, max_gradient_norm=5.0),
    evaluation=EvaluationConfig(policy="greedy"),
)

ATARI = replace(PONG, total_frames=80_000_000, stop_at_return=None)

BREAKOUT = replace(
    ATARI,
    total_frames=40_000_000,
    environment=EnvironmentConfig(id="ALE/Breakout-v5", terminal_on_life_loss=True),
)
