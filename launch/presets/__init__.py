"""Tuned settings per task: a preset is an instance of `RunConfig`, and every setting of it can be changed."""

from dataclasses import replace
from typing import NamedTuple

from launch.output import nearest
from shared.config import (
    ActorConfig,
    EnvironmentConfig,
    EvaluationConfig,
    ExplorationConfig,
    LearnerConfig,
    MethodConfig,
    NetworkConfig,
    OptimizerConfig,
    RunConfig,
)
from shared.errors import ConfigurationError
from shared.registry import import_modules


class Preset(NamedTuple):
    """A named starting point. `description` is one line.

    `usual_agent_steps`: after which a run usually reaches the preset's return; None where that is not known.
    """

    description: str
    config: RunConfig
    usual_agent_steps: int | None = None


_ATARI = RunConfig(
    # Learning rate and entropy cost fall to 0 over these frames.
    total_frames=40_000_000,
    environment=EnvironmentConfig(id="ALE/Pong-v5", terminal_on_life_loss=True),
    # With an entropy cost of 0.01 or 0.02 from the start, exploration in Space Invaders all but ends within 0.3 M agent
    # steps; with 0.03 to the end, Breakout scores half of what its greedy policy does (docs/tuning.md).
    method=MethodConfig(return_lambda=0.95, standardise_advantages=True, entropy_cost=0.03, final_entropy_cost=0.0),
    optimizer=OptimizerConfig(learning_rate=1e-3, epsilon=1e-7, bias_correction=True, max_gradient_norm=0.5),
    actor=ActorConfig(total_environments=64, unroll_length=32, epochs=2, fresh_gradients=True),
    learner=LearnerConfig(agent_steps_per_update=256),
)

_PONG = replace(
    _ATARI,
    # Four epochs at this rate change the policy much (an approximate KL of 0.04); the rate falls to 0 over about three
    # times the agent steps that a run usually takes. Half the environments have half the agent steps in flight.
    total_frames=5_000_000,
    stop_at_return=18.0,
    environment=EnvironmentConfig(id="ALE/Pong-v5"),
    method=replace(_ATARI.method, entropy_cost=0.02),
    actor=replace(_ATARI.actor, total_environments=32, epochs=4),
)

# As in PQN (Gallici et al. 2024, arXiv 2407.04811): no target network, LayerNorm, and λ = 0.65.
_PONG_Q = replace(
    _PONG,
    total_frames=12_000_000,
    stop_at_return=10.0,
    network=NetworkConfig(layer_norm=True),
    method=MethodConfig(name="q_learning", target_network=False, return_lambda=0.65),
    # The paper's final ε of 0.5 in three tenths of the environments would hold the mean training return below 0.
    exploration=ExplorationConfig(final_epsilons=(0.05, 0.02, 0.01), annealing_frames=1_000_000),
    optimizer=replace(_PONG.optimizer, learning_rate=3e-4, max_gradient_norm=5.0),
    actor=_ATARI.actor,
)

_BREAKOUT = replace(_ATARI, environment=replace(_ATARI.environment, id="ALE/Breakout-v5"))

# The training protocol of Machado et al. 2018 (arXiv 1709.06009, section 5): no knowledge of lives, sticky actions, and
# all 18 actions.
_ATARI_STICKY = replace(
    _ATARI,
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
_IMPALA_SHALLOW = RunConfig(
    total_frames=200_000_000,
    environment=EnvironmentConfig(terminal_on_life_loss=True),
    network=NetworkConfig(name="nature_cnn", centre_observations=False),
    method=MethodConfig(reduction="sum", value_cost=0.5, entropy_cost=0.01, discount=0.99),
    optimizer=OptimizerConfig(learning_rate=6e-4, epsilon=0.01, max_gradient_norm=40.0),
    actor=ActorConfig(environments=32, unroll_length=20),
)

# Mnih et al. 2016 (arXiv 1602.01783, section 5.1 and section 8 of the supplement), whose numbers are the defaults of
# `RunConfig` unless they stand here. The environments of one actor are the paper's 16 threads: they share the weights
# for one rollout, and their gradients are added. The ε of 0.1, the norm of 40 and the weight of 0.5 are what its
# authors have told others. The paper draws the learning rate from [1e-4, 1e-2]. In Pong, one run each, 1.5e-3 left
# random play by 1.2 M agent steps, 7e-4 (which they told, too) had not by 2.4 M, and 3e-3 killed most units
# (docs/a3c.md).
_A3C = RunConfig(
    total_frames=320_000_000,
    environment=EnvironmentConfig(id="ALE/Pong-v5"),
    network=NetworkConfig(name="a3c_cnn", centre_observations=False),
    method=MethodConfig(reduction="sum", discount=0.99, value_cost=0.5, entropy_cost=0.01),
    optimizer=OptimizerConfig(
        name="rmsprop", learning_rate=1.5e-3, schedule="linear", decay=0.99, epsilon=0.1, max_gradient_norm=40.0
    ),
    actor=ActorConfig(environments=16, unroll_length=5),
    learner=LearnerConfig(gradients_per_update=1),
)

_A3C_LSTM = replace(_A3C, network=replace(_A3C.network, recurrent="lstm"))

_NSTEP_Q = replace(
    _A3C,
    method=MethodConfig(
        name="q_learning", reduction="sum", discount=0.99, target_network=True, target_interval_agent_steps=10_000
    ),
    exploration=ExplorationConfig(final_epsilons=(0.1, 0.01, 0.5), annealing_frames=4_000_000),
)

_ONESTEP_Q = replace(_NSTEP_Q, method=replace(_NSTEP_Q.method, n_step=1))

_ONESTEP_SARSA = replace(_NSTEP_Q, method=replace(_ONESTEP_Q.method, name="sarsa"))

# Section 9 of the supplement: 200 ReLU units for each of policy and value, and an entropy cost of 1e-4. It draws the
# learning rate from [1e-4, 1e-1], and makes one update of each episode, without a bootstrap: here of 32 agent steps. On
# Pendulum 7e-4 is slow, and 2e-2 learns nothing.
_A3C_CONTINUOUS = replace(
    _A3C,
    total_frames=2_000_000,
    log_every_seconds=5.0,
    environment=EnvironmentConfig(id="Pendulum-v1", frame_skip=1, clip_rewards=False, reward_scale=0.1),
    network=NetworkConfig(name="mlp", hidden_sizes=(200,), activation="relu"),
    method=replace(_A3C.method, entropy_cost=1e-4),
    exploration=ExplorationConfig(noise="spherical"),
    optimizer=replace(_A3C.optimizer, learning_rate=5e-3),
    actor=ActorConfig(environments=16, unroll_length=32),
)

# A2C with the Atari settings of Stable-Baselines3's zoo. One actor waits for each update before it acts again.
_A2C = RunConfig(
    actors=1,
    total_frames=40_000_000,
    environment=EnvironmentConfig(id="ALE/Pong-v5", terminal_on_life_loss=True),
    network=NetworkConfig(name="nature_cnn", centre_observations=False),
    method=MethodConfig(reduction="mean", discount=0.99, value_cost=0.25, entropy_cost=0.01),
    optimizer=OptimizerConfig(
        name="rmsprop", learning_rate=7e-4, schedule="constant", decay=0.99, epsilon=1e-5, max_gradient_norm=0.5
    ),
    actor=ActorConfig(environments=16, unroll_length=5),
    learner=LearnerConfig(gradients_per_update=1),
)

# Classic control, Box2D, MuJoCo and MiniGrid; and any other environment, by its observations.
_CARTPOLE = RunConfig(
    total_frames=2_000_000,
    stop_at_return=475.0,
    stop_measure="evaluation",
    log_every_seconds=2.0,
    environment=EnvironmentConfig(id="CartPole-v1", frame_skip=1, clip_rewards=False),
    network=NetworkConfig(name="mlp", hidden_sizes=(64, 64)),
    method=MethodConfig(return_lambda=0.95, entropy_cost=0.001),
    optimizer=OptimizerConfig(learning_rate=2e-3, epsilon=1e-5, bias_correction=True, max_gradient_norm=0.5),
    actor=ActorConfig(total_environments=32, unroll_length=32, fresh_gradients=True),
    learner=LearnerConfig(agent_steps_per_update=256),
    evaluation=EvaluationConfig(every_frames=50_000, episodes=100, environments=100, policy="greedy"),
)

_CARTPOLE_Q = replace(
    _CARTPOLE,
    # Values of about 10 instead of 100, which a new network is nearer to.
    environment=replace(_CARTPOLE.environment, reward_scale=0.1),
    method=MethodConfig(name="q_learning", return_lambda=0.9, target_interval_agent_steps=1_000),
    exploration=ExplorationConfig(annealing_frames=50_000),
    optimizer=replace(_CARTPOLE.optimizer, max_gradient_norm=10.0),
    actor=ActorConfig(total_environments=32, unroll_length=8),
    learner=LearnerConfig(agent_steps_per_update=128),
)

_SCALED_BY_BOUNDS = replace(_CARTPOLE.network, observation_scaling="bounds")

_PENDULUM = replace(
    _CARTPOLE,
    stop_at_return=-200.0,
    network=_SCALED_BY_BOUNDS,
    environment=replace(_CARTPOLE.environment, id="Pendulum-v1", reward_scale=0.1),
    method=MethodConfig(discount=0.9, return_lambda=0.9, entropy_cost=0.0, standardise_advantages=True),
    exploration=ExplorationConfig(noise="state_dependent", initial_log_std=-1.0),
    optimizer=replace(_CARTPOLE.optimizer, learning_rate=3e-3),
    actor=ActorConfig(total_environments=32, unroll_length=16),
    evaluation=replace(_CARTPOLE.evaluation, every_frames=100_000),
)

_MOUNTAINCAR_CONTINUOUS = replace(
    _CARTPOLE,
    stop_at_return=90.0,
    network=_SCALED_BY_BOUNDS,
    environment=replace(_CARTPOLE.environment, id="MountainCarContinuous-v0", reward_scale=0.1),
    method=MethodConfig(discount=0.999, return_lambda=0.95, entropy_cost=0.0),
    exploration=ExplorationConfig(noise="state_dependent", noise_persistence_agent_steps=32, initial_log_std=-1.0),
    optimizer=replace(_CARTPOLE.optimizer, learning_rate=7e-4),
    actor=ActorConfig(total_environments=16, unroll_length=32),
)

_CARTPOLE_TUTORIAL = replace(
    _CARTPOLE,
    actors=1,
    total_frames=100_000,
    stop_at_return=195.0,
    log_every_seconds=1.0,
    environment=replace(_CARTPOLE.environment, id="CartPole-v0"),
    network=NetworkConfig(name="mlp", hidden_sizes=(128,), activation="relu"),
    method=MethodConfig(value_cost=0.5, entropy_cost=1e-4),
    # Keras' RMSprop with its defaults.
    optimizer=OptimizerConfig(learning_rate=7e-4, schedule="constant", decay=0.9, epsilon=1e-7, max_gradient_norm=None),
    actor=ActorConfig(environments=1, unroll_length=32),
    learner=LearnerConfig(),
    evaluation=replace(_CARTPOLE.evaluation, every_frames=8_000),
)

# Long rollouts, each reused several times, with observations, rewards and advantages normalised, as in Schulman et al.
# 2017 (arXiv 1707.06347) and Andrychowicz et al. 2021 (arXiv 2006.05990).
_VECTORS = RunConfig(
    total_frames=2_000_000,
    log_every_seconds=5.0,
    environment=EnvironmentConfig(id="BipedalWalker-v3", frame_skip=1, clip_rewards=False, normalise_rewards=True),
    network=NetworkConfig(name="mlp", hidden_sizes=(64, 64), observation_scaling="running"),
    method=MethodConfig(return_lambda=0.95, entropy_cost=0.001, standardise_advantages=True),
    exploration=ExplorationConfig(initial_log_std=-0.5),
    optimizer=OptimizerConfig(name="adam", learning_rate=5e-4, epsilon=1e-5, max_gradient_norm=0.5),
    actor=ActorConfig(total_environments=64, unroll_length=64, epochs=8, fresh_gradients=True),
    learner=LearnerConfig(agent_steps_per_update=256),
    evaluation=EvaluationConfig(every_frames=200_000, episodes=20, environments=20, policy="greedy"),
)

_HALFCHEETAH = replace(
    _VECTORS,
    total_frames=4_000_000,
    stop_at_return=2_000.0,
    stop_measure="evaluation",
    environment=replace(_VECTORS.environment, id="HalfCheetah-v5"),
)

_HOPPER = replace(_HALFCHEETAH, stop_at_return=1_500.0, environment=replace(_VECTORS.environment, id="Hopper-v5"))

_LUNARLANDER = replace(
    _VECTORS,
    # With the 200 of the task, one seed of three had a mean of 168.5 in other games.
    stop_at_return=240.0,
    stop_measure="evaluation",
    environment=replace(_VECTORS.environment, id="LunarLander-v3"),
    method=replace(_VECTORS.method, discount=0.999, return_lambda=0.98, entropy_cost=0.01),
    optimizer=replace(_VECTORS.optimizer, learning_rate=1e-3),
    evaluation=replace(_VECTORS.evaluation, every_frames=100_000, episodes=100, environments=50),
)

_ACROBOT = replace(
    _LUNARLANDER,
    total_frames=1_000_000,
    stop_at_return=-100.0,
    environment=replace(_VECTORS.environment, id="Acrobot-v1"),
    method=replace(_VECTORS.method, entropy_cost=0.005),
    actor=replace(_VECTORS.actor, unroll_length=32, epochs=4),
    evaluation=replace(_LUNARLANDER.evaluation, every_frames=50_000),
)

_MINIGRID = replace(
    _LUNARLANDER,
    total_frames=1_000_000,
    stop_at_return=0.9,
    environment=EnvironmentConfig(
        id="MiniGrid-Empty-8x8-v0", imports=("minigrid",), frame_skip=1, clip_rewards=False, normalise_rewards=True
    ),
    method=replace(_VECTORS.method, entropy_cost=0.01),
    actor=replace(_VECTORS.actor, unroll_length=32, epochs=4),
    evaluation=replace(_LUNARLANDER.evaluation, every_frames=50_000),
)

_IMAGES = replace(
    _ATARI,
    total_frames=2_000_000,
    # Images of one's own keep their size and colours.
    environment=replace(_VECTORS.environment, id="CarRacing-v3", screen_size=None, greyscale=False),
    # Random play for the mean image takes 1,600 agent steps: minutes, where an image takes milliseconds to draw.
    network=NetworkConfig(centre_observations=False),
    exploration=_VECTORS.exploration,
    evaluation=EvaluationConfig(every_frames=200_000, episodes=10, environments=10, policy="greedy"),
)

_CAR_RACING = replace(
    _IMAGES,
    # Above the 200 of the task: after ten games with a mean of 219, thirty had a mean of 145.
    stop_at_return=250.0,
    stop_measure="evaluation",
    # Consecutive frames look alike, and five discrete actions are learned sooner than a vector.
    environment=replace(
        _IMAGES.environment,
        frame_skip=4,
        screen_size=84,
        greyscale=True,
        options={"continuous": False},
        wrappers=("actors.environments.car_racing:LastDrawn,times=4",),
    ),
    actor=ActorConfig(total_environments=16, unroll_length=64, epochs=4, fresh_gradients=True),
    learner=LearnerConfig(agent_steps_per_update=128),
    evaluation=replace(_IMAGES.evaluation, episodes=30),
)

DEFAULT_PRESET = "pong"

# The methods as they were published. No environment chooses one of these.
AS_PUBLISHED: dict[str, Preset] = {
    "a3c": Preset("A3C as in the paper (arXiv 1602.01783)", _A3C),
    "a3c-lstm": Preset("A3C with an LSTM of 256 units, as in the paper", _A3C_LSTM),
    "a3c-continuous": Preset("A3C with a Gaussian policy, for continuous actions, as in the paper", _A3C_CONTINUOUS),
    "nstep-q": Preset("asynchronous n-step Q-learning as in the paper", _NSTEP_Q),
    "onestep-q": Preset("asynchronous one-step Q-learning as in the paper", _ONESTEP_Q),
    "onestep-sarsa": Preset("asynchronous one-step Sarsa as in the paper", _ONESTEP_SARSA),
    "a2c": Preset("A2C, synchronous, by the Atari settings of Stable-Baselines3's zoo", _A2C),
    "impala-shallow": Preset("IMPALA's settings, shallow; 200 M frames", _IMPALA_SHALLOW),
}

_OF_THE_DEFAULT: dict[str, Preset] = {
    "pong": Preset("Pong to a mean return of 18; the default", _PONG, usual_agent_steps=470_000),
    "breakout": Preset("Breakout, 40 M frames; training treats a lost life as terminal", _BREAKOUT),
    "atari": Preset("any game: --environment.id ALE/…-v5; 40 M frames, a lost life is terminal", _ATARI),
    "atari-sticky": Preset("any game by Machado et al. 2018: sticky actions, all 18 actions", _ATARI_STICKY),
    "pong-q": Preset("Pong to a mean return of 10 by n-step Q-learning", _PONG_Q),
    "vectors": Preset("any environment that shows no images: --environment.id …", _VECTORS),
    "images": Preset("any environment that shows images, but for Atari: --environment.id …", _IMAGES),
}

_OF_TASKS: dict[str, Preset] = {
    "cartpole": Preset(
        "CartPole-v1 to a mean of 475 over 100 evaluation episodes", _CARTPOLE, usual_agent_steps=130_000
    ),
    "cartpole-q": Preset("the same by n-step Q-learning", _CARTPOLE_Q),
    "cartpole-tutorial": Preset(
        "CartPole-v0 to 195 as in the TensorFlow 2 actor-critic tutorial; one environment", _CARTPOLE_TUTORIAL
    ),
    "mountaincar-continuous": Preset(
        "MountainCarContinuous-v0 to a mean of 90; Gaussian policy, state-dependent noise",
        _MOUNTAINCAR_CONTINUOUS,
    ),
    "pendulum": Preset("Pendulum-v1 to a mean of -200; Gaussian policy", _PENDULUM),
    "acrobot": Preset("Acrobot-v1 to a mean of -100", _ACROBOT),
    "lunarlander": Preset("LunarLander-v3 to a mean of 240; pip install 'tributary-rl[box2d]'", _LUNARLANDER),
    "car-racing": Preset("CarRacing-v3 to a mean of 250, from images; [box2d] as well", _CAR_RACING),
    "halfcheetah": Preset("HalfCheetah-v5 to a mean of 2,000; pip install 'tributary-rl[mujoco]'", _HALFCHEETAH),
    "hopper": Preset("Hopper-v5 to a mean of 1,500; [mujoco] as well", _HOPPER),
    "minigrid": Preset("MiniGrid-Empty-8x8-v0 to a mean of 0.9; pip install 'tributary-rl[minigrid]'", _MINIGRID),
}

PRESET_GROUPS: dict[str, dict[str, Preset]] = {
    "the default and its family: asynchronous PPO": _OF_THE_DEFAULT,
    "methods as they were published; --environment.id for another game": AS_PUBLISHED,
    "tasks": _OF_TASKS,
}
PRESETS: dict[str, Preset] = {name: preset for group in PRESET_GROUPS.values() for name, preset in group.items()}

# The nearest preset of a method that another library has by this name.
_NEAREST = {
    "ppo": "pong is asynchronous PPO on Pong, atari on any game, vectors on any other task",
    "appo": "pong and atari are asynchronous PPO",
    "impala": "impala-shallow has IMPALA's settings; V-trace has nothing to correct, since actors compute gradients",
    "dqn": "nstep-q and onestep-q are Q-learning without a replay memory",
    "pqn": "pong-q is PQN with several actors",
    "sarsa": "onestep-sarsa is the paper's",
    "q": "nstep-q and onestep-q are the paper's",
    "a3c-ff": "a3c has no memory, a3c-lstm has one",
    "reinforce": "a3c with --actor.unroll-length as long as an episode comes nearest",
}


def advice_on_name(word: str) -> str:
    """The end of a message about an unknown preset."""
    return f": {_NEAREST[word.lower()]}" if word.lower() in _NEAREST else nearest(word, PRESETS)


def usual_agent_steps(preset: str, config: RunConfig) -> int | None:
    """The agent steps after which a run of a preset usually reaches its return; None if `config` has another task."""
    if preset not in PRESETS:
        return None
    known = PRESETS[preset].config
    same = config.stop_at_return == known.stop_at_return and config.environment == known.environment
    return PRESETS[preset].usual_agent_steps if same else None


def preset_for(environment_id: str) -> str | None:
    """The preset of an environment; for an environment without one, `atari`, `images` or `vectors`.

    None for an id that is not registered, which is an error when the environment is made.
    """
    # Not at the top: help and the list of presets do without Gymnasium, a tenth of a second.
    from actors.environments import environment_spec

    config = EnvironmentConfig(id=environment_id, frame_skip=1)
    import_modules(config.modules)
    presets = _OF_THE_DEFAULT | _OF_TASKS
    for name, preset in presets.items():
        if preset.config.environment.id == config.registered_id and name not in ("vectors", "images"):
            return name
    try:
        game = _game(environment_id)
    except LookupError:
        return None
    if game is not None:
        same_game = (name for name, preset in presets.items() if _game(preset.config.environment.id) == game)
        return next(same_game, "atari")
    try:
        return "images" if environment_spec(config).images else "vectors"
    except ConfigurationError:
        # The environment may need options or wrappers that the user adds.
        return "vectors"


def advice_on_preset(preset: str, environment_id: str) -> str:
    """The end of a message about settings of this preset that do not fit the environment; empty if the preset fits."""
    intended = PRESETS[preset].config.environment.id
    try:
        if (_game(intended) is None) == (_game(environment_id) is None):
            return ""
    except LookupError:
        return ""
    return f"; preset {preset} is made for {intended}: start from {preset_for(environment_id)}"


def _game(environment_id: str) -> str | None:
    """The ROM of an Atari game; None for another environment. Raises LookupError for an id that is not registered."""
    import gymnasium

    from actors.environments import atari_game

    # Environments of presets with `imports` may not be registered yet.
    own = (config.environment for _, config, _ in PRESETS.values() if config.environment.id == environment_id)
    if any(environment.imports for environment in own):
        return None
    try:
        return atari_game(environment_id)
    except gymnasium.error.Error as error:
        raise LookupError(environment_id) from error
