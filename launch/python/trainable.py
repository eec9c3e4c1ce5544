"""A run as a trainable of Ray Tune: settings in, rows of metrics.jsonl out; a checkpoint is the run's folder."""

import math
import os
import shutil
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar

from launch.machine import worker_path
from launch.python.run import Training
from launch.results.curves import EVALUATION_RETURN, TRAINING_RETURN
from launch.run.folder import RunFolder, holder_of, last_row
from launch.run.saving import apply_changes, changes_since
from launch.settings.files import named, set_of_one_run
from launch.settings.resolve import ResolvedRun, changed_by_hand, divided_among
from shared.config import RunConfig
from shared.errors import ConfigurationError, TrainingFailedError, setting_error

try:
    from ray import tune
except ImportError as error:
    raise ConfigurationError("tributary_rl.trainable needs Ray Tune: pip install 'tributary-rl[tune]'") from error

# The lock of another process can only be looked at.
_POLL_SECONDS = 0.2
# The process of an earlier try of a trial saves its run after Tune has started the next one.
_SAVING_SECONDS = 120.0
# None before the first episode, or the first evaluation, has ended; schedulers need a number.
_RETURNS = (TRAINING_RETURN, EVALUATION_RETURN)
# In a checkpoint: the id of the trial that saved it.
_SAVED_BY = "tune-trial"


class RunTrainable(tune.Trainable):
    """One run per trial. The run continues between two steps; each step returns its next row.

    A checkpoint is a copy of the run's folder. A trial that loads the checkpoint of another continues that run, account
    included, with its own settings.

    Attributes:
        base: the settings that Tune's settings change.
        preset: the preset that they started from.
        paths: folders to import modules from.
    """

    base: ClassVar[RunConfig]
    preset: ClassVar[str]
    paths: ClassVar[list[str]]

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> Any:
        """The cores of a run's actors."""
        try:
            wanted = changed_by_hand(cls.base, config)
        except ConfigurationError:
            # The trial itself raises the error.
            wanted = cls.base
        assert isinstance(wanted.actors, int)
        return tune.PlacementGroupFactory([{"CPU": 1 if wanted.executor == "inline" else wanted.actors}])

    def setup(self, config: dict[str, Any]) -> None:
        """Check the settings."""
        # Tune has changed to the trial's directory, and the user's modules are elsewhere.
        folders = [*filter(None, [os.environ.get("PYTHONPATH")]), *self.paths]
        os.environ["PYTHONPATH"] = os.pathsep.join(folders)
        self.folder = RunFolder(Path(self.logdir) / "run")
        self._training: Training | None = None
        self._loaded = False
        wanted = changed_by_hand(self.base, config)
        assert isinstance(wanted.actors, int)
        # The settings that the run's folder will have.
        self._wanted = divided_among(wanted, wanted.actors)

    def step(self) -> dict[str, Any]:
        """The next row; the last one has `done`.

        Raises:
            ConfigurationError: the run cannot be trained, or continued, with its settings.
            TrainingFailedError: it failed. Another try continues from its last checkpoint.
        """
        training = self._training or self._begin()
        while (row := self._rows.get()) is not None:
            # A scheduler would stop the trial at its last frames, before the run has ended by itself.
            if row["frames"] < self._wanted.total_frames:
                return {**numbers(row), "done": False}
        training.wait()
        row = last_row(self.folder)
        if not row:
            raise TrainingFailedError(f"the run ended before its first row ({self.folder.path})")
        return {**numbers(row), "done": True}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Copy the run's folder, whose newest checkpoint is at most --log-every-seconds older than its last row."""
        apply_changes(Path(checkpoint_dir), changes_since(self.folder.path, {}))
        Path(checkpoint_dir, _SAVED_BY).write_text(self.trial_id, encoding="utf-8")

    def load_checkpoint(self, checkpoint: str) -> None:
        """Continue from the copy of a run's folder.

        The trial's own folder is kept if the copy is an older state of it.
        """
        self.cleanup()
        saved_by = Path(checkpoint, _SAVED_BY)
        own = saved_by.is_file() and saved_by.read_text(encoding="utf-8") == self.trial_id
        if not (own and self.folder.has_checkpoint):
            self._wait_until_free()
            shutil.rmtree(self.folder.path, ignore_errors=True)
            apply_changes(self.folder.path, changes_since(Path(checkpoint), {}))
            (self.folder.path / _SAVED_BY).unlink(missing_ok=True)
        self._loaded = True

    def cleanup(self) -> None:
        """Stop and save the run."""
        if self._training is not None:
            self._training.stop()
            self._thread.join()
        self._training = None

    def _begin(self) -> Training:
        self._wait_until_free()
        resume = self.folder.has_checkpoint and (self._loaded or self._has_own_settings())
        if not resume:
            shutil.rmtree(self.folder.path, ignore_errors=True)
        run = ResolvedRun(self._wanted, self.preset, resume=self.folder.path if resume else None)
        rows = self._rows = SimpleQueue[dict[str, Any] | None]()
        training = Training(run, self.folder.path, rows.put, progress=False, entrance="tributary_rl.trainable")
        self._training = training

        def follow() -> None:
            training.follow()
            rows.put(None)

        self._thread = threading.Thread(target=follow, daemon=True)
        self._thread.start()
        return training

    def _has_own_settings(self) -> bool:
        """True if the run in the folder has the settings of this trial.

        Another run was left by a trial that is not in Tune's records, because the driver was killed too early.
        """
        with suppress(ConfigurationError):
            found = self.folder.read_settings()
            return all(attrgetter(name)(found) == attrgetter(name)(self._wanted) for name in named(self.config))
        return False

    def _wait_until_free(self) -> None:
        deadline = time.monotonic() + _SAVING_SECONDS
        while holder_of(self.folder.path) is not None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row, by their names in metrics.jsonl; NaN for a return that is not known yet."""
    found = {name: value for name, value in row.items() if isinstance(value, int | float)}
    return dict.fromkeys(_RETURNS, math.nan) | found


def run_trainable(base: RunConfig, preset: str) -> type[RunTrainable]:
    """A trainable with these settings, which Tune's change."""
    for name in set_of_one_run(base):
        raise setting_error(name, getattr(base, name), "is of one run, and a search has several")
    if not isinstance(base.actors, int):
        raise setting_error("actors", base.actors, "set a number, the cores that a trial takes")
    # The weights of a checkpoint of Tune's are then hardly older than the last row.
    checkpoint = replace(base.checkpoint, every_seconds=min(base.checkpoint.every_seconds, base.log_every_seconds))
    attributes = {
        "base": replace(base, checkpoint=checkpoint),
        "preset": preset,
        # Without the project's folder, which comes first in any case.
        "paths": worker_path()[:-1],
    }
    return type(f"tributary_{preset}", (RunTrainable,), attributes)
