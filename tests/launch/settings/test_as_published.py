"""The presets of published methods, number by number beside what was published."""

from operator import attrgetter
from typing import Any

import pytest

from launch.presets import AS_PUBLISHED, PRESETS, preset_for
from launch.settings.resolve import divided_among
from shared.config import RunConfig, flat_settings

# Mnih et al. 2016 (arXiv 1602.01783), section 5.1, section 8 of the supplement, and Algorithms 1, S2 and S3. All other
# settings have the defaults of `RunConfig`, whose values in FIXED are the paper's, too.
PAPER = {
    # 16 threads, t_max = 5: "updates were performed after every 5 actions".
    "actor.environments": 16,
    "actor.unroll_length": 5,
    "method.reduction": "sum",
    # Drawn from [1e-4, 1e-2] in the paper; chosen by experiment.
    "optimizer.learning_rate": 1.5e-3,
    "total_frames": 320_000_000,
    # The network of Mnih et al. 2013, whose input is not centred.
    "network.centre_observations": False,
}
# How a return is measured: with the smallest of the three final ε.
EVALUATED = {"stop_measure": "evaluation", "evaluation.every_frames": 8_000_000, "evaluation.episodes": 40}
FIXED = {
    # Gradients are applied on arrival, and none is refused.
    "learner.gradients_per_update": 1,
    "learner.agent_steps_per_update": None,
    "learner.max_policy_lag": None,
    "actor.epochs": 1,
    "actor.fresh_gradients": False,
    # "shared RMSProp … RMSProp decay factor of α = 0.99", annealed to 0.
    "optimizer.name": "rmsprop",
    "optimizer.decay": 0.99,
    "optimizer.bias_correction": False,
    "optimizer.schedule": "linear",
    "optimizer.annealing_frames": None,
    "method.discount": 0.99,
    "method.return_lambda": 1.0,
    "method.entropy_cost": 0.01,
    "method.final_entropy_cost": None,
    "method.standardise_advantages": False,
    # Not in the paper: its authors told others (github.com/muupan/async-rl/wiki).
    "optimizer.epsilon": 0.1,
    "method.value_cost": 0.5,
    # That of IMPALA (arXiv 1802.01561, Table G.1).
    "optimizer.max_gradient_norm": 40.0,
    # "an action repeat of 4".
    "environment.id": "ALE/Pong-v5",
    "environment.frame_skip": 4,
    "environment.sticky_action_probability": 0.0,
    "environment.terminal_on_life_loss": False,
    "environment.clip_rewards": True,
    "network.name": "a3c_cnn",
    "network.recurrent": "none",
    # "updated every 40000 frames".
    "method.target_network": True,
    "method.target_interval_agent_steps": 10_000,
    # "three values ε1, ε2, ε3 with probabilities 0.4, 0.3, 0.3", annealed from 1 over "the first four million frames".
    "exploration.final_epsilons": (0.1, 0.01, 0.5),
    "exploration.annealing_frames": 4_000_000,
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "a3c": PAPER,
    # "an additional 256 LSTM cells after the final hidden layer". Centred, as by default, or its gates saturate.
    "a3c-lstm": {name: value for name, value in PAPER.items() if name != "network.centre_observations"}
    | {"network.recurrent": "lstm"},
    "nstep-q": PAPER | EVALUATED | {"method.name": "q_learning"},
    "onestep-q": PAPER | EVALUATED | {"method.name": "q_learning", "method.n_step": 1},
    "onestep-sarsa": PAPER | EVALUATED | {"method.name": "sarsa", "method.n_step": 1},
    # Section 9 of the supplement: "a single hidden layer with 200 ReLU units", an entropy cost of 1e-4, and one σ² of
    # all dimensions. The rate is one of its range [1e-4, 1e-1]. Rewards are not clipped; their scale is for Pendulum.
    "a3c-continuous": {
        "actor.environments": 16,
        "actor.unroll_length": 32,
        "method.reduction": "sum",
        "optimizer.learning_rate": 5e-3,
        "method.entropy_cost": 1e-4,
        "exploration.noise": "spherical",
        "network.name": "mlp",
        "network.hidden_sizes": (200,),
        "network.activation": "relu",
        "environment.id": "Pendulum-v1",
        "environment.frame_skip": 1,
        "environment.clip_rewards": False,
        "environment.reward_scale": 0.1,
        "total_frames": 2_000_000,
        "log_every_seconds": 5.0,
    },
    # Stable-Baselines3's A2C, with the Atari settings of rl-zoo3.
    "a2c": {
        "actors": 1,
        "actor.environments": 16,
        "actor.unroll_length": 5,
        "optimizer.schedule": "constant",
        "optimizer.epsilon": 1e-5,
        "optimizer.max_gradient_norm": 0.5,
        "method.value_cost": 0.25,
        "network.name": "nature_cnn",
        "network.centre_observations": False,
        "environment.terminal_on_life_loss": True,
    },
    # IMPALA, arXiv 1802.01561, Table G.1: a loss scaling of 0.5, of half a squared error; ε 0.01, 50 M agent steps.
    "impala-shallow": {
        "method.reduction": "sum",
        "method.value_cost": 0.25,
        "optimizer.learning_rate": 6e-4,
        "optimizer.epsilon": 0.01,
        "network.name": "nature_cnn",
        "network.centre_observations": False,
        "environment.terminal_on_life_loss": True,
        "total_frames": 200_000_000,
    },
}


def test_the_defaults_are_the_papers() -> None:
    assert {name: attrgetter(name)(RunConfig()) for name in FIXED} == FIXED


@pytest.mark.parametrize("preset", PUBLISHED)
def test_the_numbers_of_a_preset_are_those_that_were_published(preset: str) -> None:
    config, defaults = PRESETS[preset].config, flat_settings(RunConfig())
    changed = [name for name, value in flat_settings(config).items() if value != defaults[name]]
    assert {name: attrgetter(name)(config) for name in changed} == PUBLISHED[preset]
    # No number of actors changes them.
    assert [divided_among(config, actors) for actors in (1, 2, 16, 64)] == [config] * 4


def test_no_environment_chooses_a_published_method() -> None:
    assert {preset_for(preset.config.environment.id) for preset in AS_PUBLISHED.values()} == {"pong", "pendulum"}
