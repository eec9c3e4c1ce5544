"""The settings of a run: one tree of frozen dataclasses, validated when built.

Each docstring below a field is its help text on the command line. Presets (`launch/presets`) are instances of
`RunConfig`; a run folder holds the resolved instance as `config.json`. A new setting belongs to the part that it is
about: the task, learning, or the processes; a check of two parts together to `run.py`.
"""

from shared.config.learning import ExplorationConfig, LearnerConfig, MethodConfig, OptimizerConfig
from shared.config.processes import ActorConfig, CheckpointConfig, SupervisionConfig, TrackingConfig
from shared.config.run import RunConfig, flat_settings
from shared.config.task import EnvironmentConfig, EvaluationConfig, NetworkConfig, OptionValue

__all__ = [
    "ActorConfig",
    "CheckpointConfig",
    "EnvironmentConfig",
    "EvaluationConfig",
    "ExplorationConfig",
    "LearnerConfig",
    "MethodConfig",
    "NetworkConfig",
    "OptimizerConfig",
    "OptionValue",
    "RunConfig",
    "SupervisionConfig",
    "TrackingConfig",
    "flat_settings",
]
