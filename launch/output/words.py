"""Numbers and names in words, as every command shows them."""

import difflib
from collections.abc import Iterable

_MANY_NAMES = 40


def duration(seconds: float | None) -> str:
    """Seconds as h:mm:ss."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def number(value: float | None, form: str) -> str:
    """A number in the given format; a dash for one that is not known."""
    return "-" if value is None else format(value, form)


def nearest(name: str, names: Iterable[str]) -> str:
    """What to say after an unknown name: the nearest one that there is, or all of them if they are few."""
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f", did you mean {near[0]}?"
    known = list(names)
    return f", there are {', '.join(known)}" if len(known) < _MANY_NAMES else ""


def short(value: object) -> str:
    """A setting's value for a table or a line."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
