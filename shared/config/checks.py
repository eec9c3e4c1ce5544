"""The range of a setting, and the choice that enables it, written beside its type; and the one check of ranges."""

import math
from collections.abc import Iterable
from dataclasses import is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple, get_args, get_type_hints

from shared.errors import ConfigurationError, setting_error

# Messages between processes, and files that are read again, have whole numbers of 64 bits.
_LARGEST = 2**63 - 1


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
        limits = [f"{words} {_number(bound)}" for words, bound in bounds.items() if bound is not None]
        return " and ".join(limits) or "a finite number"


class For:
    """The choice without which a setting has no effect: `decay: Annotated[float, For("optimizer.name", "rmsprop")]`.

    `setting` must have one of `values`. For environment.id they are kinds of environments: Atari, images, or continuous
    actions. `wrapper` of Gymnasium gives other environments the effect.
    """

    def __init__(self, setting: str, *values: str | bool, wrapper: str = "") -> None:
        self.setting, self.values, self.wrapper = setting, values, wrapper

    def refused(self, name: str, value: object, choice: object) -> ConfigurationError:
        option = "" if self.setting == "environment.id" else f"--{self.setting.replace('_', '-')} "
        remedy = f"for others --environment.wrappers {self.wrapper}" if self.wrapper else f"leave it out with {choice}"
        wanted = " or ".join(map(str, self.values))
        return setting_error(name, value, f"is for {option}{wanted}; {remedy}")


Rule = tuple[str, bool, str]
"""A setting, whether the rule refuses its value, and the remedy."""


def first_refusal(config: Any, rules: Iterable[Rule]) -> ConfigurationError | None:
    """The error of the first rule that refuses a setting of `config`."""
    for setting, refuses, problem in rules:
        if refuses:
            return setting_error(setting, attrgetter(setting)(config), problem)
    return None


def check_ranges(config: Any) -> None:
    """Check the settings of a dataclass and of its sections. A tuple with a range has at least one element, and a whole
    number 64 bits."""
    for name, (_, marks) in declared(config.__class__).items():
        value = attrgetter(name)(config)
        numbers = value if isinstance(value, tuple) else (value,)
        for number in numbers:
            if isinstance(number, int) and number > _LARGEST:
                raise setting_error(name, number, f"must be at most {_LARGEST:,}")
        for range_ in (mark for mark in marks if isinstance(mark, Range)):
            if value == ():
                raise setting_error(name, "()", "must have at least one value")
            for number in numbers:
                if number is not None and not range_.accepts(number):
                    raise setting_error(name, number, f"must be {range_}")


@cache
def declared(settings: type) -> dict[str, tuple[Any, tuple[Range | For, ...]]]:
    """The type and the annotations of each setting of a dataclass and of its sections, by its full name."""
    declarations: dict[str, tuple[Any, tuple[Range | For, ...]]] = {}
    for name, hint in get_type_hints(settings, include_extras=True).items():
        if isinstance(hint, type) and is_dataclass(hint):
            declarations |= {f"{name}.{inner}": each for inner, each in declared(hint).items()}
        else:
            marks = getattr(hint, "__metadata__", ())
            declarations[name] = get_args(hint)[0] if marks else hint, marks
    return declarations


def _number(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"
