"""Environments behind one interface, whichever library plays them: one kind of spec, one autoreset rule (NEXT_STEP).

A library is an adapter (`atari`, `gymnasium`): what is particular to it is said there, and nowhere else. Methods,
networks and rollouts do not belong here.
"""

from actors.environments.adapter import Adapter, EnvironmentSpec, StepResult
from actors.environments.atari import AtariAdapter, atari_game, channels_last
from actors.environments.gymnasium import GymnasiumAdapter
from actors.environments.vector import VectorEnvironment, adapter_of, environment_spec, measure_observation_mean

__all__ = [
    "Adapter",
    "AtariAdapter",
    "EnvironmentSpec",
    "GymnasiumAdapter",
    "StepResult",
    "VectorEnvironment",
    "adapter_of",
    "atari_game",
    "channels_last",
    "environment_spec",
    "measure_observation_mean",
]
