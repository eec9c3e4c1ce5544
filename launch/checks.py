"""The check that the settings which a user gives have an effect in the run."""

from collections.abc import Callable, Collection, Iterable
from functools import cache
from operator import attrgetter
from typing import Any

from actors.environments import AtariAdapter, EnvironmentSpec, adapter_of, environment_spec
from shared.config import RunConfig
from shared.config.checks import For, declared
from shared.registry import EXPLORERS, METHODS, NETWORKS


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
        # The entropy cost falls over the same frames.
        return config.method.final_entropy_cost is not None
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
