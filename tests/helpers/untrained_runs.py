"""Runs that have only their first weights; and the network of any run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from actors.environments import EnvironmentSpec, environment_spec
from actors.policy import Policy
from launch.presets import PRESETS
from launch.run.folder import RunFolder
from launch.run.weights import WeightsName, load_weights, write_weights
from launch.settings.files import with_settings
from shared.types import WeightSnapshot


def untrained(folder: Path, preset: str, **settings: Any) -> Path:
    config = with_settings(PRESETS[preset].config, settings)
    spec = environment_spec(config.environment)
    if spec.images:
        spec = replace(spec, observation_mean=np.full(spec.observation_shape, 90, np.float32))
    run = RunFolder(folder)
    with run.make():
        run.create(config, spec, {})
    policy = Policy(config, spec)
    write_weights(run.best_weights, WeightSnapshot(3, policy.initial_parameters()), policy.layout, "the first weights")
    return folder


def policy_of(run: Path, weights: WeightsName = "auto") -> tuple[Policy, EnvironmentSpec]:
    """The network of a run with its weights, and the facts about its environment."""
    folder = RunFolder(run)
    config = folder.read_settings("run")
    spec = folder.as_trained(config, environment_spec(config.environment))
    policy = Policy(config, spec, training=False)
    policy.assign(load_weights(folder, weights, policy.layout)[0].parameters)
    return policy, spec
