"""Presets for Atari."""

from dataclasses import replace

from shared.config import ActorConfig, EnvironmentConfig, MethodConfig, OptimizerConfig, RunConfig

PONG = RunConfig(
    total_frames=40_000_000,
    stop_at_return=18.0,
    environment=EnvironmentConfig(id="ALE/Pong-v5"),
    method=MethodConfig(return_lambda=0.95, standardise_advantages=True),
    optimizer=OptimizerConfig(
        learning_rate=5e-4, annealing_frames=12_000_000, epsilon=1e-7, bias_correction=True, max_gradient_norm=0.5
    ),
    actor=ActorConfig(environments=8, unroll_length=16),
)

ATARI = replace(
    PONG, total_frames=80_000_000, stop_at_return=None, optimizer=replace(PONG.optimizer, annealing_frames=None)
)

BREAKOUT = replace(
    ATARI,
    total_frames=40_000_000,
    environment=EnvironmentConfig(id="ALE/Breakout-v5", terminal_on_life_loss=True),
)
