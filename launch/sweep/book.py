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
    """One trial: its settings, and how it ended, None while it has not. `score` is its return then, if it had one.

    `exploits` is how often it went on with the weights and settings of another trial.
    """

    number: int
    settings: Settings
    ended: Ended | None = None
    frames: int = 0
    score: float | None = None
    reason: str | None = None
    exploits: int = 0

    @property
    def name(self) -> str:
        """Of its folder: trial-03."""
        return trial_name(self.number)


class Exploit(NamedTuple):
    """A trial goes on with the weights of another one, `source`, and with these settings. Frames and scores are those
    of both when they were compared."""

    trial: int
    source: int
    settings: Settings
    frames: int
    score: float
    source_frames: int
    source_score: float


def trial_name(number: int) -> str:
    """Of a trial's folder: trial-03."""
    return f"trial-{number:02}"


class TrialBook:
    """trials.jsonl in the folder of a sweep. One process writes it.

    `exploits` are those of all trials, in their order; `first_settings` what each trial began with.

    Raises:
        ConfigurationError: it has a line that is no event.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "trials.jsonl"
        self.trials: dict[int, Trial] = {}
        self.first_settings: dict[int, Settings] = {}
        self.exploits: list[Exploit] = []
        if self._file.is_file():
            self._read()

    def start(self, number: int, settings: Settings) -> None:
        """Write down a trial's settings."""
        self._started(number, settings)
        self._append({"trial": number, "settings": settings})

    def exploit(self, exploit: Exploit) -> None:
        """Write down that a trial goes on with the weights of another one."""
        self._exploited(exploit)
        self._append(exploit._asdict())

    def take_back(self, number: int, taken: int) -> None:
        """Write down that a trial had only so many of its exploits: it ended before it could take more."""
        self._taken_back(number, taken)
        self._append({"trial": number, "taken": taken})

    def end(self, trial: Trial) -> None:
        """Write down how a trial ended; one that had ended before stays as it was."""
        if self.trials[trial.number].ended is not None:
            return
        self.trials[trial.number] = trial
        event = {"trial": trial.number, "ended": trial.ended, "frames": trial.frames, "score": trial.score}
        self._append(event | ({} if trial.reason is None else {"reason": trial.reason}))

    def history(self, number: int) -> list[tuple[int, Settings]]:
        """The settings that a trial has had, with the frames that they began at."""
        changes = [(exploit.frames, exploit.settings) for exploit in self.exploits if exploit.trial == number]
        return [(0, self.first_settings[number]), *changes]

    def _started(self, number: int, settings: Settings) -> None:
        self.trials[number], self.first_settings[number] = Trial(number, settings), settings

    def _exploited(self, exploit: Exploit) -> None:
        trial = self.trials[exploit.trial]
        self.trials[exploit.trial] = trial._replace(settings=exploit.settings, exploits=trial.exploits + 1)
        self.exploits.append(exploit)

    def _taken_back(self, number: int, taken: int) -> None:
        never = [exploit for exploit in self.exploits if exploit.trial == number][taken:]
        self.exploits = [exploit for exploit in self.exploits if exploit not in never]
        _, settings = self.history(number)[-1]
        self.trials[number] = self.trials[number]._replace(settings=settings, exploits=taken)

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
                if "source" in event:
                    self._exploited(Exploit(number, **event))
                elif "taken" in event:
                    self._taken_back(number, event["taken"])
                elif "settings" in event:
                    self._started(number, event["settings"])
                else:
                    self.trials[number] = self.trials[number]._replace(**event)
            except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
                raise ConfigurationError(
                    f"{self._file} has a line that is no event of a trial: {line[:80]!r}"
                ) from error
