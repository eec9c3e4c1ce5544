"""Schedules of the learning rate, of the entropy cost, and of exploration, each in its declared unit."""

import math

from shared.registry import SCHEDULES, class_of


def linear(progress: float) -> float:
    """The factor of a linear fall to 0, at a progress from 0 to 1."""
    return 1.0 - progress


def cosine(progress: float) -> float:
    """The factor of half a cosine from 1 to 0 (Loshchilov and Hutter 2017, arXiv 1608.03983, eq. 5, one period)."""
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def constant(progress: float) -> float:  # noqa: ARG001
    """The factor 1."""
    return 1.0


def scheduled_value(initial: float, schedule: str, frames: int, annealing_frames: int) -> float:
    """`initial` times the factor of a schedule by its name, at a progress of `frames` of `annealing_frames`."""
    return initial * float(class_of(SCHEDULES[schedule])(min(frames / annealing_frames, 1.0)))


def linear_anneal(initial: float, final: float, frames: int, annealing_frames: int) -> float:
    """Anneal linearly from `initial` at frame 0 to `final` at `annealing_frames`, and stay there.

    Mnih et al. 2016 (arXiv 1602.01783, section 5) anneal the learning rate to 0 over the whole of training, and ε over
    its first 4 M frames, counted in the frames of all actors together.
    """
    share = min(frames / annealing_frames, 1.0)
    return (1.0 - share) * initial + share * final


def crossed_multiple(before: int, after: int, interval: int) -> bool:
    """True if a counter that went from `before` to `after` reached or passed a multiple of `interval`.

    Counters of many actors jump: `after % interval == 0` would miss most multiples.
    """
    return after // interval > before // interval
