"""A run as a trainable of Ray Tune, for those who have a Tuner of their own: settings in, rows out, our checkpoints."""

import math
import os
import shutil
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar

from ray import tune

from launch.driver import train_in_process
from launch.machine.import_path import worker_path
from launch.machine.interrupts import StopRequest
from launch.presets.written import set_of_one_run, with_settings
from launch.results.curves import EVALUATION_RETURN, TRAINING_RETURN
from launch.run.events import Event, Row
from launch.run.folder import RunFolder, last_row
from launch.run.saving import apply_changes, changes_since
from launch.sweep.file import cores_of
from launch.train import TrainingFailedError
from shared.config import RunConfig
from shared.errors import ConfigurationError, setting_error

# None before the first episode, or the first evaluation, has ended; schedulers want a number.
_RETURNS = (TRAINING_RETURN, EVALUATION_RETURN)


class RunTrainable(tune.Trainable):
    """One run in the folder of its trial. It goes on between two steps, each of which returns the next row of numbers.

    A checkpoint is a copy of the run's folder. Where Tune restores one, its own or another trial's, the run goes on
    from there, with the trial's settings.

    Attributes:
        base: the settings that those of Tune change.
        preset: what they started from.
        paths: folders that modules are looked for in.
    """

    base: ClassVar[RunConfig]
    preset: ClassVar[str]
    paths: ClassVar[list[str]]

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> Any:
        """The cores of a run's actors."""
        try:
            wanted = with_settings(cls.base, config)
        except ConfigurationError:
            # It is told by the trial.
            wanted = cls.base
        return tune.PlacementGroupFactory([{"CPU": cores_of(wanted)}])

    def setup(self, config: dict[str, Any]) -> None:
        """Check the settings.

        Raises:
            ConfigurationError: they cannot be.
        """
        self._wanted = with_settings(self.base, config)
        # Tune has gone to the folder of the trial, where the modules of the user's own are not.
        folders = [*filter(None, [os.environ.get("PYTHONPATH")]), *self.paths]
        os.environ["PYTHONPATH"] = os.pathsep.join(folders)
        self._folder = RunFolder(Path(self.logdir) / "run")
        self._log = self._folder.path.with_name("run.log")
        self._thread: threading.Thread | None = None

    def step(self) -> dict[str, Any]:
        """The next row; with `done` when the run has ended.

        Raises:
            ConfigurationError: the run cannot be trained, or cannot go on, with its settings.
            TrainingFailedError: it failed. Another try goes on from its last checkpoint.
        """
        if self._thread is None:
            self._begin()
        taken = self._rows.get()
        if isinstance(taken, Exception):
            raise taken
        if taken is not None:
            return {**numbers(taken), "done": False}
        row = last_row(self._folder)
        if not row:
            raise TrainingFailedError(f"the run ended without a row of numbers ({self._log})")
        return {**numbers(row), "done": True}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Copy the run's folder, in which the last checkpoint is at most one row older than the last row."""
        apply_changes(Path(checkpoint_dir), changes_since(self._folder.path, {}))

    def load_checkpoint(self, checkpoint: str) -> None:
        """Go on from the copy of a run's folder."""
        self._stop()
        shutil.rmtree(self._folder.path, ignore_errors=True)
        apply_changes(self._folder.path, changes_since(Path(checkpoint), {}))

    def cleanup(self) -> None:
        """Have the run saved and ended."""
        self._stop()

    def _begin(self) -> None:
        resume = self._folder.has_checkpoint
        if not resume:
            # It ended before there was anything to go on from.
            shutil.rmtree(self._folder.path, ignore_errors=True)
        self._rows: SimpleQueue[dict[str, Any] | Exception | None] = SimpleQueue()
        self._request = StopRequest()
        self._thread = threading.Thread(target=self._train, args=(self._rows, self._request, resume), daemon=True)
        self._thread.start()

    def _train(self, rows: SimpleQueue[dict[str, Any] | Exception | None], request: StopRequest, resume: bool) -> None:
        """Train the run in a process, and queue its rows; then None, or the error that ended it."""

        def take(event: Event) -> None:
            if isinstance(event, Row):
                rows.put(event.values)

        try:
            with self._log.open("a") as output:
                result = train_in_process(
                    self._wanted,
                    self._folder.path,
                    take,
                    preset=self.preset,
                    resume=resume,
                    stop=request,
                    command=["tributary_rl.trainable", self.preset],
                    output=output,
                )
            failed = result.status == "failed"
            rows.put(TrainingFailedError(f"the run failed ({self._log})") if failed else None)
        except Exception as error:
            rows.put(error)
        except KeyboardInterrupt:
            rows.put(TrainingFailedError(f"the process of the run was interrupted ({self._log})"))

    def _stop(self) -> None:
        if self._thread is not None:
            self._request.asked = True
            self._thread.join()
        self._thread = None


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row, by their names in metrics.jsonl; a return that is not known yet is not a number (NaN)."""
    found = {name: value for name, value in row.items() if isinstance(value, int | float)}
    return dict.fromkeys(_RETURNS, math.nan) | found


def run_trainable(base: RunConfig, preset: str) -> type[RunTrainable]:
    """A trainable with these settings, which Tune's change.

    Raises:
        ConfigurationError: they are of one run, or leave open how many cores a trial takes.
    """
    for name in set_of_one_run(base):
        raise setting_error(name, getattr(base, name), "is of one run, and a Tuner has several")
    if not isinstance(base.actors, int):
        raise setting_error("actors", base.actors, "set a number, which is how many cores a trial takes")
    if base.address != "local":
        raise setting_error("address", base.address, "leave it out: Tune places trials, each on one node")
    # So that Tune is given no weights that are older than the last row.
    checkpoint = replace(base.checkpoint, every_seconds=min(base.checkpoint.every_seconds, base.log_every_seconds))

    class Trainable(RunTrainable):
        pass

    Trainable.base, Trainable.preset = replace(base, checkpoint=checkpoint), preset
    # All but the project's, which comes first in any case.
    Trainable.paths = worker_path()[:-1]
    Trainable.__name__ = f"tributary_{preset}"
    return Trainable
