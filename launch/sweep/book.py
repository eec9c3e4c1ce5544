"""What has become of the trials of a sweep: trials.jsonl, one line for each event, from which a sweep goes on."""

import json
import os
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from launch.sweep.file import Settings
from shared.errors import ConfigurationError

# stopped: by the sweep, which found it worse than others, or by hand. refused: its settings cannot be together. failed:
# it could not be trained, in as many tries as it has.
Ended = Literal["done", "stopped", "refused", "failed"]


class Trial(NamedTuple):
    """One trial: its settings, and how it ended, None while it has not. `score` is its return then, if it had one."""

    number: int
    settings: Settings
    ended: Ended | None = None
    frames: int = 0
    score: float | None = None
    reason: str | None = None

    @property
    def name(self) -> str:
        """Of its folder: trial-03."""
        return trial_name(self.number)


def trial_name(number: int) -> str:
    """Of a trial's folder: trial-03."""
    return f"trial-{number:02}"


class TrialBook:
    """trials.jsonl in the folder of a sweep. One process writes it.

    Raises:
        ConfigurationError: it has a line that is no event.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "trials.jsonl"
        self.trials: dict[int, Trial] = {}
        if self._file.is_file():
            self._read()

    def start(self, number: int, settings: Settings) -> None:
        """Write down a trial's settings."""
        self.trials[number] = Trial(number, settings)
        self._append({"trial": number, "settings": settings})

    def end(self, trial: Trial) -> None:
        """Write down how a trial ended; one that had ended before stays as it was."""
        if self.trials[trial.number].ended is not None:
            return
        self.trials[trial.number] = trial
        event = {"trial": trial.number, "ended": trial.ended, "frames": trial.frames, "score": trial.score}
        self._append(event | ({} if trial.reason is None else {"reason": trial.reason}))

    def _append(self, event: dict[str, Any]) -> None:
        with self._file.open("ab") as file:
            file.write(json.dumps(event).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _read(self) -> None:
        content = self._file.read_bytes()
        lines = content.split(b"\n")
        if lines.pop():
            # The end of a line that a dying process could not finish: its event had not happened.
            os.truncate(self._file, content.rindex(b"\n") + 1 if b"\n" in content else 0)
        for line in lines:
            try:
                event = msgspec.json.decode(line, type=dict[str, Any])
                number = int(event.pop("trial"))
                if "settings" in event:
                    self.trials[number] = Trial(number, event["settings"])
                else:
                    self.trials[number] = self.trials[number]._replace(**event)
            except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
                raise ConfigurationError(
                    f"{self._file} has a line that is no event of a trial: {line[:80]!r}"
                ) from error
