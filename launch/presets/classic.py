"""Presets for classic control."""

from shared.config import (
    ActorConfig,
    EnvironmentConfig,
    EvaluationConfig,
    MethodConfig,
    NetworkConfig,
    OptimizerConfig,
    RunConfig,
)

CARTPOLE = RunConfig(
    total_frames=2_000_000,
    stop_at_return=475.0,
    stop_measure="evaluation",
    log_every_seconds=2.0,
    environment=EnvironmentConfig(id="CartPole-v1", frame_skip=1, clip_rewards=False),
    network=NetworkConfig(name="mlp", hidden_sizes=(64, 64)),
    method=MethodConfig(return_lambda=0.95, entropy_cost=0.001),
    optimizer=OptimizerConfig(learning_rate=2e-3, epsilon=1e-5, bias_correction=True, max_gradient_norm=0.5),
    actor=ActorConfig(environments=8, unroll_length=32),
    evaluation=EvaluationConfig(every_frames=50_000, episodes=100, environments=100, policy="greedy"),
)
