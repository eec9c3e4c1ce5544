"""The range of a setting, and the choice that it belongs to, written beside its type; and the one check of ranges."""

import math
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from shared.errors import ConfigurationError, setting_error


class Range(NamedTuple):
    """The finite numbers that a setting accepts: `number: Annotated[int, Range(minimum=1)] = 3`.

    Each element of a tuple must be in the range. None is a setting that is left out, and passes.
    """

    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    """An excluded lower bound."""
    below: float | None = None
    """An excluded upper bound."""

    def accepts(self, value: float) -> bool:
        return (
            math.isfinite(value)
            and (self.minimum is None or value >= self.minimum)
            and (self.maximum is None or value <= self.maximum)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        if self.minimum is not None and self.maximum is not None:
            return f"between {_number(self.minimum)} and {_number(self.maximum)}"
        bounds = {
            "at least": self.minimum,
            "greater than": self.above,
            "at most": self.maximum,
            "less than": self.below,
        }
        known = [f"{words} {_number(bound)}" for words, bound in bounds.items() if bound is not None]
        return " and ".join(known) or "a finite number"


class For:
    """The choice without which a setting has no effect: `decay: Annotated[float, For("optimizer.name", "rmsprop")]`.

    `setting` chooses, and has to be one of `values`. Of environment.id, whose values are endless, they are kinds of
    environments: Atari, images, or continuous actions. `wrapper` of Gymnasium gives other environments the effect.
    """

    def __init__(self, setting: str, *values: str | bool, wrapper: str = "") -> None:
        self.setting, self.values, self.wrapper = setting, values, wrapper

    def refused(self, name: str, value: object, chosen: object) -> ConfigurationError:
        option = "" if self.setting == "environment.id" else f"--{self.setting.replace('_', '-')} "
        remedy = f"for others --environment.wrappers {self.wrapper}" if self.wrapper else f"leave it out with {chosen}"
        wanted = " or ".join(map(str, self.values))
        return setting_error(name, value, f"is for {option}{wanted}; {remedy}")


def check_ranges(section: str, settings: Any) -> None:
    for name, marks in declared(settings.__class__).items():
        value = getattr(settings, name)
        for range_ in marks:
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(range_, Range) and number is not None and not range_.accepts(number):
                    raise setting_error(section + name, number, f"must be {range_}")


@cache
def declared(settings: type) -> dict[str, tuple[Range | For, ...]]:
    """What the fields of a dataclass declare beside their types, by field name."""
    hints = get_type_hints(settings, include_extras=True)
    return {
        field.name: get_args(hints[field.name])[1:]
        for field in fields(settings)
        if get_origin(hints[field.name]) is Annotated
    }


def _number(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"
