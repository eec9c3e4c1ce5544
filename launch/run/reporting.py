"""When a run's numbers are shown, and when they are written: to metrics.jsonl, and to its trackers."""

from collections.abc import Callable, Mapping

from launch.run.annealing import AnnealingWatch
from launch.run.folder import RunFolder
from launch.run.metrics import Metrics
from launch.run.progress import Progress
from launch.run.rows import JsonLines
from launch.run.trackers import OpenTracker, Trackers, tracker_openers
from shared.config import RunConfig

_MOST_SECONDS_BETWEEN_VIEWS = 1.0


class Reporting:
    """Shows a run's progress, and writes one row of numbers for each logging interval.

    `latest` is the progress that was made last; another thread may read it. `trackers` are those that the rows go to.

    Args:
        config: of the run.
        folder: of the run.
        metrics: sums up the interval.
        progress: makes the progress at this moment.
        trackers: how further ones are opened that the rows go to, by their names.
        say: takes a message.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        metrics: Metrics,
        progress: Callable[[], Progress],
        trackers: Mapping[str, OpenTracker],
        say: Callable[[str], None],
    ) -> None:
        self._every_seconds = config.log_every_seconds
        self._metrics = metrics
        self._progress = progress
        self._say = say
        self._annealing = AnnealingWatch(config)
        self._rows = JsonLines(folder.path)
        self._rows_fail = False
        self.trackers = Trackers(tracker_openers(folder.path, config) | dict(trackers), say)
        self._shown_seconds = self._logged_seconds = 0.0
        self.latest = Progress()

    def count_from(self, seconds: float) -> None:
        """Count the time to the next view and row, and that of their rates, from now on: `seconds` of training."""
        self._metrics.begin(seconds)
        self._shown_seconds = self._logged_seconds = seconds

    def report_if_due(self, seconds: float) -> None:
        """Show the progress, or write a row, if it is time for it after so many seconds of training."""
        if seconds - self._shown_seconds >= min(_MOST_SECONDS_BETWEEN_VIEWS, self._every_seconds):
            self.latest, self._shown_seconds = self._progress(), seconds
        if seconds - self._logged_seconds >= self._every_seconds:
            self.log()
            # The row is a view too. One right after it would tell the rates of a moment, not of a second.
            self._logged_seconds = self._shown_seconds = seconds

    def log(self) -> None:
        """Write a row now, and begin a new interval."""
        row = self.latest = self._progress()
        try:
            self._rows.write(row)
            self._rows_fail = False
        except OSError as error:
            # Once for each time that the disk fills, not for each row.
            if not self._rows_fail:
                self._say(f"warning: metrics could not be written: {error.strerror}; training goes on")
            self._rows_fail = True
        self.trackers.write(row)
        for warning in (self._metrics.next_interval(row), self._annealing.message(row)):
            if warning is not None:
                self._say(f"warning: {warning}")

    def log_last(self) -> None:
        """Write the last row, and close metrics.jsonl. What has its row already gets no second one, without rates."""
        if not self._metrics.empty:
            self.log()
        self._rows.close()
