"""Checks of a user's settings: that they have an effect in the run, and that schedules give factors."""

import math
from collections.abc import Callable, Collection, Iterable
from functools import cache
from operator import attrgetter
from typing import Any

from actors.environments import AtariAdapter, EnvironmentSpec, adapter_of, environment_spec
from shared.config import RunConfig
from shared.config.checks import For, declared
from shared.errors import place, setting_error, typed_line
from shared.registry import EXPLORERS, METHODS, NETWORKS
from shared.schedules import scheduled


def check_effects(config: RunConfig, names: Iterable[str], searched: Collection[str] = ()) -> None:
    """Check that settings have an effect in this run, by what is declared beside them.

    For the settings that a user has given: presets and earlier runs have values for all.
    A sweep has further values for those `searched`, and for some of them a setting may have an effect.

    Raises:
        ConfigurationError: one has none, or the environment that decides on it cannot be made.
    """
    spec = cache(lambda: environment_spec(config.environment))
    own = _sections_of_own_classes(config)
    for name in names:
        section, _, field = name.rpartition(".")
        part: Any = attrgetter(section)(config) if section else config
        for needed in () if section in own else declared(part.__class__).get(field, ()):
            if isinstance(needed, For) and needed.setting not in searched and not _has(config, needed, spec):
                raise needed.refused(name, getattr(part, field), attrgetter(needed.setting)(config))


def check_schedules(config: RunConfig) -> None:
    """Check that the schedules are registered, and give factors over the whole of a run.

    Raises:
        ConfigurationError: one is not registered, raises, or gives something that is no factor.
    """
    config.optimizer.check_known()
    for setting in ("optimizer.schedule", "method.clip_schedule"):
        name = attrgetter(setting)(config)
        for percent in range(101):
            try:
                factor = scheduled(1.0, name, percent, 100)
            except Exception as error:
                problem = f"fails at a progress of {percent / 100}: {typed_line(error)}{place(error)}"
                raise setting_error(setting, name, problem) from error
            if not (math.isfinite(factor) and factor >= 0.0):
                problem = f"gives {factor} at a progress of {percent / 100}; it must be a finite factor of 0 or more"
                raise setting_error(setting, name, problem)


def _has(config: RunConfig, needed: For, spec: Callable[[], EnvironmentSpec]) -> bool:
    if needed.setting == "environment.id":
        return {
            "images": spec().images,
            "continuous actions": spec().actions.continuous,
            "Atari": isinstance(adapter_of(config.environment), AtariAdapter),
        }[str(needed.values[0])]
    if attrgetter(needed.setting)(config) in needed.values:
        return True
    if needed.setting == "optimizer.schedule":
        # The entropy cost and ε change over the same frames.
        own = config.optimizer.schedule != "constant"
        return own or config.method.final_entropy_cost is not None or config.method.clip_schedule != "constant"
    # Numbers beside images have an mlp of their own.
    parts = spec().parts if needed.setting == "network.name" else None
    return parts is not None and bool(parts.numbers)


def _sections_of_own_classes(config: RunConfig) -> set[str]:
    """The sections that a registered class of the user may read as it likes."""
    method = METHODS.get(config.method.name)
    chosen = {
        "method": method,
        "exploration": EXPLORERS.get(config.exploration.name or "") or method,
        "network": NETWORKS.get(config.network.name),
    }
    return {section for section, entry in chosen.items() if entry and not entry.module.startswith("shared.")}
