"""What a setting accepts, and the choice that enables it, written beside its type; and the check of what it accepts."""

import math
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple, get_args, get_type_hints

from shared.errors import ConfigurationError, setting_error
from shared.registry import PROGRAM

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


class Registered:
    """The names that a setting accepts: those of a table, to which a module of the user may add more."""

    def __init__(self, kind: str, table: Mapping[str, Any]) -> None:
        self.kind, self.table = kind, table


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


def check_values(config: Any, *, names: bool = True) -> None:
    """Check each setting of a dataclass and of its sections by its annotations; `names`: those of registries, too.

    A tuple with a range has at least one element, and a whole number 64 bits.
    """
    for name, (_, marks) in declared(config.__class__).items():
        value = attrgetter(name)(config)
        numbers = value if isinstance(value, tuple) else (value,)
        for number in numbers:
            if isinstance(number, int) and number > _LARGEST:
                raise setting_error(name, number, f"must be at most {_LARGEST:,}")
        for mark in marks:
            if isinstance(mark, Range):
                _check_range(name, numbers, mark)
            elif isinstance(mark, Registered) and names and value is not None:
                _check_registered(name, value, mark)


def _check_range(name: str, numbers: tuple[Any, ...], bounds: Range) -> None:
    if not numbers:
        raise setting_error(name, "()", "must have at least one value")
    for number in numbers:
        if number is not None and not bounds.accepts(number):
            raise setting_error(name, number, f"must be {bounds}")


def _check_registered(name: str, value: str, registry: Registered) -> None:
    if value not in registry.table:
        remedy = f"there are {', '.join(registry.table)}" if registry.table else "the imported modules register none"
        raise setting_error(name, value, f"no such {registry.kind}; {remedy}")
    if registry.table[value].module == PROGRAM:
        problem = "is of this script or notebook, which other processes cannot import; put it into a module of its own"
        raise setting_error(name, value, f"{problem}, and name that in environment.imports")


Annotations = tuple[Range | Registered | For, ...]


@cache
def declared(settings: type) -> dict[str, tuple[Any, Annotations]]:
    """The type and the annotations of each setting of a dataclass and of its sections, by its full name."""
    declarations: dict[str, tuple[Any, Annotations]] = {}
    for name, hint in get_type_hints(settings, include_extras=True).items():
        if isinstance(hint, type) and is_dataclass(hint):
            declarations |= {f"{name}.{inner}": each for inner, each in declared(hint).items()}
        else:
            marks = getattr(hint, "__metadata__", ())
            declarations[name] = get_args(hint)[0] if marks else hint, marks
    return declarations


def _number(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"
