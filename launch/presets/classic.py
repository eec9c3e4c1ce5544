"""Presets for classic control."""

from dataclasses import replace

from shared.config import (
    ActorConfig,
    EnvironmentConfig,
    EvaluationConfig,
    ExplorationConfig,
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

CARTPOLE_Q = replace(
    CARTPOLE,
    # Values of about 10 in place of 100: the network starts near them.
    environment=replace(CARTPOLE.environment, reward_scale=0.1),
    method=MethodConfig(name="q_learning", return_lambda=0.9, target_interval_agent_steps=1_000),
    exploration=ExplorationConfig(annealing_frames=50_000),
    optimizer=replace(CARTPOLE.optimizer, max_gradient_norm=10.0),
    actor=ActorConfig(environments=16, unroll_length=8),
)

_SCALED_BY_BOUNDS = replace(CARTPOLE.network, observation_scaling="bounds")

PENDULUM = replace(
    CARTPOLE,
    stop_at_return=-200.0,
    network=_SCALED_BY_BOUNDS,
    environment=replace(CARTPOLE.environment, id="Pendulum-v1", reward_scale=0.1),
    method=MethodConfig(discount=0.9, return_lambda=0.9, entropy_cost=0.0, standardise_advantages=True),
    exploration=ExplorationConfig(noise="state_dependent", initial_log_std=-1.0),
    optimizer=replace(CARTPOLE.optimizer, learning_rate=3e-3),
    actor=ActorConfig(environments=16, unroll_length=16),
    evaluation=replace(CARTPOLE.evaluation, every_frames=100_000),
)

MOUNTAINCAR_CONTINUOUS = replace(
    CARTPOLE,
    stop_at_return=90.0,
    network=_SCALED_BY_BOUNDS,
    environment=replace(CARTPOLE.environment, id="MountainCarContinuous-v0", reward_scale=0.1),
    method=MethodConfig(discount=0.999, return_lambda=0.95, entropy_cost=0.0),
    exploration=ExplorationConfig(noise="state_dependent", noise_persistence_agent_steps=32, initial_log_std=-1.0),
    optimizer=replace(CARTPOLE.optimizer, learning_rate=7e-4),
)

CARTPOLE_TUTORIAL = replace(
    CARTPOLE,
    actors=1,
    total_frames=100_000,
    stop_at_return=195.0,
    log_every_seconds=1.0,
    environment=replace(CARTPOLE.environment, id="CartPole-v0"),
    network=NetworkConfig(name="mlp", hidden_sizes=(128,), activation="relu"),
    method=MethodConfig(value_cost=0.5, entropy_cost=1e-4),
    # Keras' RMSprop with its defaults.
    optimizer=OptimizerConfig(learning_rate=7e-4, schedule="constant", decay=0.9, epsilon=1e-7, max_gradient_norm=None),
    actor=ActorConfig(environments=1, unroll_length=32),
    evaluation=replace(CARTPOLE.evaluation, every_frames=8_000),
)
