"""One trial, played: its run is trained in a process of its own, and its rows are read as they come."""

import shutil
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from launch.driver import train_in_process
from launch.machine.interrupts import StopRequest
from launch.results.curves import EVALUATION_RETURN, TRAINING_RETURN, read_rows
from launch.run.events import Event, Row
from launch.run.exploit import offered_number, withdraw
from launch.run.folder import RunFolder, holder_of, last_row, read_summary
from launch.run.status import reached_limit
from launch.train import Result, TrainingFailedError
from shared.config import RunConfig
from shared.errors import ConfigurationError
from shared.schedules import crossed_multiple

_POLL_SECONDS = 0.5
# How long the process of an earlier try may take to save what it has.
_SAVING_SECONDS = 120.0
_SCORES = {"training": TRAINING_RETURN, "evaluation": EVALUATION_RETURN}
# Rows that are passed on, at most: enough for a sweep to decide by.
_MOST_READINGS = 200


class TrialRun(NamedTuple):
    """What a trial trains. `goal` is `training` or `evaluation`, whose return is its score; `known`: it has ended
    before, and is only read. `interval_frames`: it is read when its frames reach a multiple of them."""

    folder: Path
    config: RunConfig
    preset: str
    goal: str
    known: bool
    interval_frames: int | None = None


class Reading(NamedTuple):
    """How far a trial has come. `score` is None before the first return; `ended`: the run has ended."""

    frames: int
    score: float | None
    ended: bool


class TrialError(Exception):
    """The process of a trial ended before its run did. The run goes on from its checkpoint in another try."""


class HopelessTrialError(Exception):
    """The run cannot be trained with such settings; another try could not, either."""


class StoppedTrialError(Exception):
    """Somebody stopped the run of a trial: it is left where it is."""


def play_trial(run: TrialRun) -> Iterator[Reading]:
    """Train a trial's run, from its beginning or from where it stopped. Yields readings, the last one `ended`.

    Raises:
        TrialError: its process ended before.
        StoppedTrialError: it was stopped by hand.
        HopelessTrialError: its settings were refused, or it failed to learn anything finite.
    """
    folder, interval = RunFolder(run.folder), run.interval_frames
    _wait_until_free(run.folder)
    # What was reached before is compared with nobody's any more, but in a sweep with rungs.
    last = -1 if interval is None else last_row(folder).get("frames", 0)
    for reading in _readings(run, folder):
        # Rows that are played again after a resume say nothing new.
        if interval is None:
            new = reading.score is not None and reading.frames - last >= run.config.total_frames / _MOST_READINGS
        else:
            new = crossed_multiple(last, reading.frames, interval)
        if reading.ended or (new and reading.frames < run.config.total_frames):
            last = reading.frames
            yield reading


def exploits_taken(folder: RunFolder) -> int | None:
    """How often a run that has ended went on with the weights of another one; None if an older version trained it.

    Weights that were offered when it had just reached its frames are taken back, or a resume by hand would take them.
    """
    taken: int | None = read_summary(folder).get("exploits")
    if taken is not None and offered_number(folder) > taken:
        withdraw(folder)
    return taken


def _readings(run: TrialRun, folder: RunFolder) -> Iterator[Reading]:
    yield from _so_far(folder, run.goal)
    if not (run.known or _has_ended(folder, run.config)):
        yield from _train(run, folder)
    yield _reading(last_row(folder), run.goal, ended=True)


def _train(run: TrialRun, folder: RunFolder) -> Iterator[Reading]:
    resume = folder.has_checkpoint
    if not resume:
        # It was killed before there was anything to go on from.
        shutil.rmtree(folder.path, ignore_errors=True)
    folder.path.parent.mkdir(parents=True, exist_ok=True)
    log = folder.path.with_name(f"{folder.path.name}.log")
    rows: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
    stop = StopRequest()

    def train() -> Result:
        try:
            with log.open("a") as output:
                return train_in_process(
                    run.config, run.folder, take, preset=run.preset, resume=resume, stop=stop, output=output
                )
        finally:
            rows.put(None)

    def take(event: Event) -> None:
        if isinstance(event, Row):
            rows.put(event.values)

    with ThreadPoolExecutor(1) as thread:
        trained = thread.submit(train)
        try:
            while (row := rows.get()) is not None:
                yield _reading(row, run.goal)
        finally:
            # Where nobody takes the readings any more.
            stop.asked = True
        try:
            result = trained.result()
        except (ConfigurationError, TrainingFailedError) as error:
            if isinstance(error, ConfigurationError) or read_summary(folder).get("status") == "failed":
                raise HopelessTrialError(str(error)) from error
            raise TrialError(f"{error}; see {log}") from error
        except KeyboardInterrupt:
            raise TrialError(f"its process was interrupted; see {log}") from None
    if result.status == "interrupted":
        raise StoppedTrialError("its run was stopped by hand")
    if result.status == "failed":
        raise HopelessTrialError(f"training failed; see {log}")
    if not _has_ended(folder, run.config):
        raise TrialError(f"its run ended before its limit; see {log}")


def _so_far(folder: RunFolder, goal: str) -> Iterator[Reading]:
    # A run that has just begun has no rows.
    with suppress(ConfigurationError):
        yield from (_reading(row, goal) for row in read_rows(folder))


def _reading(row: Mapping[str, Any], goal: str, *, ended: bool = False) -> Reading:
    return Reading(row.get("frames", 0), row.get(_SCORES[goal]), ended)


def _has_ended(folder: RunFolder, config: RunConfig) -> bool:
    return reached_limit(config, read_summary(folder)) is not None


def _wait_until_free(folder: Path) -> None:
    """The process of an earlier try may still be saving: it was asked to when nobody wanted its rows any more."""
    deadline = time.monotonic() + _SAVING_SECONDS
    while holder_of(folder) is not None:
        if time.monotonic() > deadline:
            raise TrialError(f"{folder} is still in use by the process of an earlier try")
        time.sleep(_POLL_SECONDS)
