"""The id that a run has in each tracker, kept in its folder: a resumed run goes on under the same id."""

import threading
from pathlib import Path

import msgspec

from launch.output import write_json
from shared.errors import ConfigurationError


class TrackerRuns:
    """trackers.json in a run's folder: the id of its run in each tracker. Trackers use it from threads of their own."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "trackers.json"
        self._lock = threading.Lock()

    def get(self, tracker: str) -> str | None:
        """The id in this tracker, None if the run has none there yet.

        Raises:
            ConfigurationError: the file is damaged.
        """
        with self._lock:
            return self._read().get(tracker)

    def keep(self, tracker: str, run_id: str) -> None:
        """Write down the id in this tracker.

        Raises:
            ConfigurationError: the file is damaged.
            OSError: it cannot be written.
        """
        with self._lock:
            write_json(self._file, {**self._read(), tracker: run_id})

    def _read(self) -> dict[str, str]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, str])
        except FileNotFoundError:
            return {}
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"{self._file} cannot be read: {error}; without it new runs are begun") from error
