"""Presets for Box2D, MuJoCo and MiniGrid, and for any other environment by what it shows.

Long rollouts, each reused several times, with observations, rewards and advantages normalised, as in Schulman et al.
2017 (arXiv 1707.06347) and Andrychowicz et al. 2021 (arXiv 2006.05990).
"""

from dataclasses import replace

from launch.presets.atari import ATARI
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

VECTORS = RunConfig(
    total_frames=2_000_000,
    log_every_seconds=5.0,
    environment=EnvironmentConfig(id="BipedalWalker-v3", frame_skip=1, clip_rewards=False, normalise_rewards=True),
    network=NetworkConfig(name="mlp", hidden_sizes=(64, 64), observation_scaling="running"),
    method=MethodConfig(return_lambda=0.95, entropy_cost=0.001, standardise_advantages=True),
    exploration=ExplorationConfig(initial_log_std=-0.5),
    optimizer=OptimizerConfig(name="adam", learning_rate=5e-4, epsilon=1e-5, max_gradient_norm=0.5),
    actor=ActorConfig(environments=16, unroll_length=128, epochs=8, minibatches=8),
    evaluation=EvaluationConfig(every_frames=200_000, episodes=20, environments=20, policy="greedy"),
)

HALFCHEETAH = replace(
    VECTORS,
    total_frames=4_000_000,
    stop_at_return=2_000.0,
    stop_measure="evaluation",
    environment=replace(VECTORS.environment, id="HalfCheetah-v5"),
)

HOPPER = replace(HALFCHEETAH, stop_at_return=1_500.0, environment=replace(VECTORS.environment, id="Hopper-v5"))

LUNARLANDER = replace(
    VECTORS,
    # At 200, the mark of the task, one seed of three fell below it in other games: 168.5.
    stop_at_return=240.0,
    stop_measure="evaluation",
    environment=replace(VECTORS.environment, id="LunarLander-v3"),
    method=replace(VECTORS.method, discount=0.999, return_lambda=0.98, entropy_cost=0.01),
    optimizer=replace(VECTORS.optimizer, learning_rate=1e-3),
    evaluation=replace(VECTORS.evaluation, every_frames=100_000, episodes=100, environments=50),
)

ACROBOT = replace(
    LUNARLANDER,
    total_frames=1_000_000,
    stop_at_return=-100.0,
    environment=replace(VECTORS.environment, id="Acrobot-v1"),
    method=replace(VECTORS.method, entropy_cost=0.005),
    actor=replace(VECTORS.actor, unroll_length=64, epochs=4),
    evaluation=replace(LUNARLANDER.evaluation, every_frames=50_000),
)

MINIGRID = replace(
    LUNARLANDER,
    total_frames=1_000_000,
    stop_at_return=0.9,
    environment=EnvironmentConfig(
        id="MiniGrid-Empty-8x8-v0", imports=("minigrid",), frame_skip=1, clip_rewards=False, normalise_rewards=True
    ),
    method=replace(VECTORS.method, entropy_cost=0.01),
    actor=replace(VECTORS.actor, unroll_length=64, epochs=4),
    evaluation=replace(LUNARLANDER.evaluation, every_frames=50_000),
)

IMAGES = replace(
    ATARI,
    total_frames=2_000_000,
    environment=replace(VECTORS.environment, id="CarRacing-v3"),
    # The mean of random play takes 6,400 agent steps: minutes, where drawing an image takes milliseconds.
    network=NetworkConfig(centre_observations=False),
    exploration=VECTORS.exploration,
    evaluation=EvaluationConfig(every_frames=200_000, episodes=10, environments=10, policy="greedy"),
)

CAR_RACING = replace(
    IMAGES,
    # Above the 200 of the task: ten games with a mean of 219 were followed by thirty with one of 145.
    stop_at_return=250.0,
    stop_measure="evaluation",
    # Four frames in a row look alike, and a choice among five is learned sooner than a vector.
    environment=replace(
        IMAGES.environment,
        frame_skip=4,
        options={"continuous": False},
        wrappers=("actors.environments.car_racing:LastDrawn,times=4",),
    ),
    actor=ActorConfig(environments=8, unroll_length=64, epochs=4, minibatches=4),
    evaluation=replace(IMAGES.evaluation, episodes=30),
)
