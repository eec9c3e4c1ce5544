"""Schedules of the learning rate, in global frames."""


def linear_anneal(initial: float, frames: int, annealing_frames: int) -> float:
    """Anneal linearly from `initial` at frame 0 to 0 at `annealing_frames`, and stay there.

    Mnih et al. 2016 (arXiv 1602.01783, section 5) anneal the learning rate over the whole of training, counted in
    the frames of all actors together.
    """
    return initial * max(0.0, 1.0 - frames / annealing_frames)
