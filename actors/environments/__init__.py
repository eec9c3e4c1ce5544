"""Vector environments of different libraries behind one interface, with one autoreset rule (NEXT_STEP).

Each library has an adapter (`atari`, `gymnasium`), the only place that knows its particulars.
"""

from actors.environments.adapter import EnvironmentSpec, NonFinite, StepResult
from actors.environments.atari import AtariAdapter, AtariEnvironment, atari_game
from actors.environments.gymnasium import GymnasiumAdapter
from actors.environments.vector import VectorEnvironment, adapter_of, environment_spec, measure_observation_mean

__all__ = [
    "AtariAdapter",
    "AtariEnvironment",
    "EnvironmentSpec",
    "GymnasiumAdapter",
    "NonFinite",
    "StepResult",
    "VectorEnvironment",
    "adapter_of",
    "atari_game",
    "environment_spec",
    "measure_observation_mean",
]
