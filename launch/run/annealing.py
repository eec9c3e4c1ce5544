"""A learning rate that reaches 0 before its run ends: from there on the run plays, and learns nothing."""

from launch.run.progress import Progress
from shared.config import RunConfig


def _ends_early(config: RunConfig) -> bool:
    return config.optimizer.schedule == "linear" and config.annealing_frames < config.total_frames


def annealing_warning(config: RunConfig) -> str | None:
    """What to say before a run whose rate ends before it does, None of any other."""
    if not _ends_early(config):
        return None
    idle = config.total_frames - config.annealing_frames
    return (
        f"--optimizer.annealing-frames {config.annealing_frames:,} is before --total-frames {config.total_frames:,}: "
        f"the learning rate is 0 in the last {idle:,} frames, and nothing is learnt in them"
    )


class AnnealingWatch:
    """Says once when the learning rate has reached 0 in a run that goes on."""

    def __init__(self, config: RunConfig) -> None:
        self._frames = config.annealing_frames if _ends_early(config) else None

    def message(self, row: Progress) -> str | None:
        """What to say of the state `row`, mostly nothing."""
        if self._frames is None or row.frames < self._frames:
            return None
        reached, self._frames = self._frames, None
        return (
            f"the learning rate has reached 0 (--optimizer.annealing-frames {reached:,}): what is played from here on "
            f"changes no weights"
        )
