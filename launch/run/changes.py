"""Which settings a run that goes on leaves as they were, so that its weights and slots fit."""

from operator import attrgetter

from shared.config import RunConfig
from shared.errors import setting_error

# The shapes of the weights follow from them, and what the weights have learned.
_GROUPS = ("network.", "environment.")
_FIXED = ("method.name", "method.target_network", "optimizer.name", "optimizer.centred", "learner.staleness")


def may_change(setting: str) -> bool:
    """Whether a setting, like `optimizer.learning_rate`, may be another one for weights that are there already."""
    return setting not in _FIXED and not setting.startswith(_GROUPS)


def check_unchanged(before: RunConfig, config: RunConfig, place: str) -> None:
    """Refuse to go on with another method, optimizer or staleness; whether the network is another one, its layout says.

    Args:
        before: the settings that the checkpoint was made with.
        config: those that it is to go on with.
        place: where the checkpoint is.

    Raises:
        ConfigurationError: one differs.
    """
    for setting in _FIXED:
        was, now = attrgetter(setting)(before), attrgetter(setting)(config)
        if was != now:
            raise setting_error(setting, now, f"the checkpoint in {place} was made with {was}; start a new run")
