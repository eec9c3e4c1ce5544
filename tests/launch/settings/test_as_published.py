"""The presets of published methods, number by number beside what was published."""

from operator import attrgetter
from typing import Any

import pytest

from launch.presets import AS_PUBLISHED, PRESETS, preset_for
from launch.settings.resolve import resolved
from shared.config import flat_settings

# Mnih et al. 2016 (arXiv 1602.01783), section 5.1, section 8 of the supplement, and Algorithms 1, S2 and S3.
PAPER = {
    # 16 threads, t_max = 5: "updates were performed after every 5 actions".
    "actor.environments": 16,
    "actor.unroll_length": 5,
    "actor.epochs": 1,
    "actor.minibatches": 1,
    "actor.fresh_gradients": False,
    # Gradients are applied on arrival, and none is refused.
    "learner.gradients_per_update": 1,
    "learner.agent_steps_per_update": None,
    "learner.max_policy_lag": None,
    # "shared RMSProp … RMSProp decay factor of α = 0.99", annealed to 0.
    "optimizer.name": "rmsprop",
    "optimizer.decay": 0.99,
    "optimizer.bias_correction": False,
    "optimizer.schedule": "linear",
    "optimizer.annealing_frames": None,
    "method.discount": 0.99,
    "method.return_lambda": 1.0,
    "method.reduction": "sum",
    # Drawn from [1e-4, 1e-2] in the paper; chosen by experiment.
    "optimizer.learning_rate": 1.5e-3,
    # Not in the paper: its authors told others (github.com/muupan/async-rl/wiki).
    "optimizer.epsilon": 0.1,
    "optimizer.max_gradient_norm": 40.0,
    "total_frames": 320_000_000,
    # "an action repeat of 4"; the network of Mnih et al. 2013, whose input is not centred.
    "environment.id": "ALE/Pong-v5",
    "environment.frame_skip": 4,
    "environment.frame_stack": 4,
    "environment.sticky_action_probability": 0.0,
    "environment.terminal_on_life_loss": False,
    "environment.clip_rewards": True,
    "network.name": "a3c_cnn",
    "network.layer_norm": False,
    "network.recurrent": "none",
    "network.centre_observations": False,
}
ACTOR_CRITIC = {
    "method.name": "actor_critic",
    "method.n_step": None,
    "method.entropy_cost": 0.01,
    "method.final_entropy_cost": None,
    "method.value_cost": 0.5,
    "method.standardise_advantages": False,
}
VALUES = {
    "method.name": "q_learning",
    "method.target_network": True,
    # "updated every 40000 frames".
    "method.target_interval_agent_steps": 10_000,
    # "three values ε1, ε2, ε3 with probabilities 0.4, 0.3, 0.3", annealed from 1 over "the first four million frames".
    "exploration.final_epsilons": (0.1, 0.01, 0.5),
    "exploration.annealing_frames": 4_000_000,
}
# Stable-Baselines3's A2C, with the Atari settings of rl-zoo3.
A2C = {
    "actors": 1,
    "optimizer.learning_rate": 7e-4,
    "actor.environments": 16,
    "actor.unroll_length": 5,
    "optimizer.schedule": "constant",
    "optimizer.epsilon": 1e-5,
    "optimizer.max_gradient_norm": 0.5,
    "method.reduction": "mean",
    "method.value_cost": 0.25,
    "network.name": "nature_cnn",
    "environment.terminal_on_life_loss": True,
    "total_frames": 40_000_000,
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "a3c": PAPER | ACTOR_CRITIC,
    # "an additional 256 LSTM cells after the final hidden layer".
    "a3c-lstm": PAPER | ACTOR_CRITIC | {"network.recurrent": "lstm"},
    "nstep-q": PAPER | VALUES | {"method.n_step": None},
    "onestep-q": PAPER | VALUES | {"method.n_step": 1},
    "onestep-sarsa": PAPER | VALUES | {"method.n_step": 1, "method.name": "sarsa"},
    "a2c": PAPER | ACTOR_CRITIC | A2C,
    # Section 9 of the supplement: "a single hidden layer with 200 ReLU units", an entropy cost of 1e-4, and one σ² of
    # all dimensions. The rate is one of its range [1e-4, 1e-1]. Rewards are not clipped; their scale is for Pendulum.
    "a3c-continuous": PAPER
    | ACTOR_CRITIC
    | {
        "optimizer.learning_rate": 5e-3,
        "method.entropy_cost": 1e-4,
        "exploration.noise": "spherical",
        "network.name": "mlp",
        "network.hidden_sizes": (200,),
        "network.activation": "relu",
        "network.observation_scaling": "none",
        "network.centre_observations": True,
        "environment.id": "Pendulum-v1",
        "environment.frame_skip": 1,
        "environment.clip_rewards": False,
        "environment.reward_scale": 0.1,
        "actor.unroll_length": 32,
        "total_frames": 2_000_000,
    },
}


@pytest.mark.parametrize("preset", PUBLISHED)
def test_the_numbers_of_a_preset_are_those_that_were_published(preset: str) -> None:
    config, published = PRESETS[preset].config, PUBLISHED[preset]
    settings = flat_settings(config)
    assert {name: attrgetter(name)(config) for name in published} == published
    # Every other setting has its default, except for logging and the target.
    defaults = flat_settings(type(config)())
    changed = {name for name, value in settings.items() if value != defaults[name]}
    assert {name for name in changed - published.keys() if not name.startswith(("log_every", "stop_"))} == set()


@pytest.mark.parametrize("preset", PUBLISHED)
@pytest.mark.parametrize("actors", [1, 2, 16, 64])
def test_no_number_of_actors_changes_what_was_published(preset: str, actors: int) -> None:
    config = PRESETS[preset].config
    assert resolved(config, actors) == config


def test_no_environment_chooses_a_published_method() -> None:
    assert {preset_for(preset.config.environment.id) for preset in AS_PUBLISHED.values()} == {"pong", "pendulum"}
