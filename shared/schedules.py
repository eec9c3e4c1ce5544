"""Schedules of learning rate and exploration, each in its declared unit."""


def linear_anneal(initial: float, final: float, frames: int, annealing_frames: int) -> float:
    """Anneal linearly from `initial` at frame 0 to `final` at `annealing_frames`, and stay there.

    Mnih et al. 2016 (arXiv 1602.01783, section 5) anneal the learning rate to 0 over the whole of training, and ε over
    its first 4 M frames, counted in the frames of all actors together.
    """
    share = min(frames / annealing_frames, 1.0)
    return (1.0 - share) * initial + share * final


def crossed_multiple(before: int, after: int, interval: int) -> bool:
    """Whether a counter that went from `before` to `after` reached or passed a multiple of `interval`.

    Counters of many actors jump: `after % interval == 0` would miss most multiples.
    """
    return after // interval > before // interval
