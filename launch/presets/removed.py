"""Settings that earlier versions had: accepted from an old file at their default, and refused at another value."""

from collections.abc import Mapping
from typing import Any

from shared.errors import setting_error

REMOVED_SETTINGS: dict[str, tuple[Any, str]] = {
    "learner.shards": (1, "0.2"),
    "learner.staleness": ("none", "0.2"),
    "learner.staleness_versions": (64, "0.2"),
    "learner.compensation": (2.0, "0.2"),
    "learner.compensation_decay": (0.95, "0.2"),
    "learner.target_policy_lag": (None, "0.2"),
    "learner.gradients_per_update_bounds": ([1, 1024], "0.2"),
    "learner.learning_rate_scaling": ("square_root", "0.2"),
    "learner.tuned_gradients_per_update": (1, "0.2"),
    "nodes_per_group": (None, "0.2"),
    "nodes": ([], "0.2"),
}
"""Default of each removed setting, and the version that removed it."""

_REMOVED_VALUES: dict[str, tuple[Any, str]] = {"aggregation": ("group", "0.2")}


def without_removed(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings of an old config.json without those that were removed.

    Raises:
        ConfigurationError: one of them has another value than its default was.
    """
    kept: dict[str, Any] = {}
    for key, value in settings.items():
        name = prefix + key
        if name in REMOVED_SETTINGS:
            default, version = REMOVED_SETTINGS[name]
            if (list(value) if isinstance(value, tuple) else value) != default:
                raise setting_error(name, value, f"this setting was removed in version {version}; only its default "
                    f"{default} is still read")  # fmt: skip
            continue
        removed_value, version = _REMOVED_VALUES.get(name, (None, ""))
        if removed_value is not None and value == removed_value:
            raise setting_error(name, value, f"this value was removed in version {version}; see docs/settings.md")
        kept[key] = without_removed(value, f"{name}.") if isinstance(value, Mapping) else value
    return kept
