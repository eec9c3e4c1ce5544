"""What a number of one setting may be. Each check raises a `ConfigurationError` that names the setting."""

import math

from shared.errors import setting_error


def at_least(setting: str, value: float | None, minimum: float) -> None:
    """Refuse a number below `minimum`, and one that is not finite. None is a setting left out, and passes.

    Raises:
        ConfigurationError: it is such a number.
    """
    if value is not None and not (math.isfinite(value) and value >= minimum):
        raise setting_error(setting, value, f"must be at least {minimum:g}")


def positive(setting: str, value: float | None) -> None:
    """Refuse 0, a negative number, and one that is not finite. None is a setting left out, and passes.

    Raises:
        ConfigurationError: it is such a number.
    """
    if value is not None and not (math.isfinite(value) and value > 0):
        raise setting_error(setting, value, "must be greater than 0")


def between(setting: str, value: float, low: float, high: float) -> None:
    """Refuse a number below `low` or above `high`, and one that is not a number.

    Raises:
        ConfigurationError: it is such a number.
    """
    if not low <= value <= high:
        raise setting_error(setting, value, f"must be between {low:g} and {high:g}")
