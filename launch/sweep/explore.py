"""Explore, the step of population-based training (arXiv 1711.09846): other settings near those of a better trial."""

import math

import numpy as np

from launch.sweep.file import Range, Settings, Sweep, Value
from launch.sweep.search import draw
from shared.errors import ConfigurationError

# As in the paper, section 4.1.1: times one of the factors, or now and then a new draw.
_FACTORS = (0.8, 1.2)
_DRAWN_ANEW = 0.25
_TRIES = 20


def explored(sweep: Sweep, own: Settings, better: Settings, generator: np.random.Generator) -> Settings:
    """Settings for a trial that goes on with the weights of a better one: that one's, with the mutable ones perturbed,
    and its own where they are not mutable.

    A number is multiplied by 0.8 or 1.2 and kept in its range, a choice is moved to one beside it, and one setting in
    four is drawn anew. Where no perturbation gives settings that can be together, the better trial's are taken.
    """
    taken = {**own, **{name: better[name] for name in sweep.mutable}}
    for _ in range(_TRIES):
        new = {name: _perturbed(sweep.space[name], better[name], generator) for name in sweep.mutable}
        try:
            sweep.config(taken | new)
        except ConfigurationError:
            continue
        return taken | new
    return taken


def _perturbed(part: list[Value] | Range, value: Value, generator: np.random.Generator) -> Value:
    if generator.random() < _DRAWN_ANEW:
        return draw(part, generator)
    if isinstance(part, list):
        return part[min(max(part.index(value) + int(generator.choice((-1, 1))), 0), len(part) - 1)]
    factor = float(generator.choice(_FACTORS))
    moved = float(value) * factor
    if part.whole:
        # At least by one: 2 times 1.2 would be 2 again.
        up = factor > 1.0
        moved = max(math.ceil(moved), int(value) + 1) if up else min(math.floor(moved), int(value) - 1)
    kept = min(max(moved, part.low), part.high)
    return int(kept) if part.whole else float(kept)
