"""What a run keeps for later: checkpoints, the best weights, videos, and a copy of it all in remote storage.

Where something cannot be written, on a full disk for example, that is a warning, and training goes on.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from launch.loop.worker_pool import TrainingStoppedError
from launch.run.folder import RunFolder
from launch.run.storage import RemoteCopy
from launch.run.weights import best_score
from learner.checkpoint import CheckpointError, Checkpoints
from learner.learner import Learner
from shared.config import RunConfig
from shared.schedules import crossed_multiple
from shared.types import Float32Array, Video

Say = Callable[[str], None]


class BestWeights:
    """best.npz: the weights with the highest mean return. What an evaluation saw says more than what training saw.

    Args:
        folder: of the run.
        say: takes a message.
    """

    def __init__(self, folder: RunFolder, say: Say) -> None:
        self._folder = folder
        self._say = say
        self._mean_return: float | None = None
        self._measure = "training"

    def keep_if_best(
        self, version: int, parameters: Float32Array, mean: float, measure: str, *, surely: bool = False
    ) -> None:
        """Write the weights float32 [P] if no earlier ones were as good, or in any case if `surely`.

        `measure` says where their mean return was seen: in `training`, or in an `evaluation`.
        """
        if self._mean_return is not None and not surely:
            best = self._measure == "evaluation", self._mean_return
            if (measure == "evaluation", mean) <= best:
                return
        part = self._folder.best_weights.with_suffix(".part.npz")
        try:
            np.savez(part, version=version, parameters=parameters, mean_return=mean, measure=measure)
            part.replace(self._folder.best_weights)
            # Only now: what could not be written is not what later weights have to beat.
            self._mean_return, self._measure = mean, measure
        except OSError as error:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            self._say(f"warning: the best weights could not be written: {error.strerror}; training goes on")

    def read_score(self) -> None:
        """Take the score from the file, if it can be read.

        A learner that died may have written better weights after its last checkpoint.
        """
        kept = self._mean_return, self._measure
        self._mean_return, self._measure = best_score(self._folder, otherwise=kept)

    def state(self) -> dict[str, Any]:
        """As plain values, for a checkpoint."""
        return {"best_return": self._mean_return, "best_measure": self._measure}

    def restore(self, state: dict[str, Any], *, evaluates: bool) -> None:
        """Take the score from a checkpoint. `evaluates`: the run evaluates regularly.

        A checkpoint of an older version does not have the measure: runs that evaluated kept weights by nothing else.
        """
        self._mean_return = state.get("best_return")
        self._measure = state.get("best_measure", "evaluation" if evaluates else "training")


class Saving:
    """Saves a run: now, when a checkpoint is due, and at its end.

    Args:
        config: of the run.
        folder: of the run.
        learner: whose weights are saved.
        save_state, restore_state: see `Checkpoints`.
        say: takes a message.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        learner: Learner,
        save_state: Callable[[], dict[str, Any]],
        restore_state: Callable[[dict[str, Any]], None],
        say: Say,
    ) -> None:
        self._config = config
        self._folder = folder
        self._learner = learner
        self._say = say
        self.best = BestWeights(folder, say)
        self._checkpoints = Checkpoints(
            folder.checkpoints, config.checkpoint.keep, learner.variables(), save_state, restore_state
        )
        self._copy = RemoteCopy(folder.path, config.storage) if config.storage is not None else None
        self._saved_seconds = 0.0
        self._saved_version, self._saved_frames = learner.version, learner.account.frames

    def restore(self) -> None:
        """Go on from the newest checkpoint that can be read; say which ones cannot.

        Raises:
            ConfigurationError: there is none.
        """
        for message in self._checkpoints.restore():
            self._say(message)
        self._learner.scatter()

    def count_from(self, seconds: float) -> None:
        """Count the time, the updates and the frames to the next checkpoint from now on, `seconds` of training."""
        self._saved_seconds = seconds
        self._saved_version, self._saved_frames = self._learner.version, self._learner.account.frames

    def is_due(self, seconds: float) -> bool:
        """Whether a checkpoint is due after so many seconds of training."""
        checkpoint = self._config.checkpoint
        new_updates = self._learner.version - self._saved_version
        frames = self._learner.account.frames
        return (
            seconds - self._saved_seconds >= checkpoint.every_seconds
            or (checkpoint.every_updates is not None and new_updates >= checkpoint.every_updates)
            or (
                checkpoint.every_frames is not None
                and crossed_multiple(self._saved_frames, frames, checkpoint.every_frames)
            )
        )

    def save(self, *, window_counts: bool) -> None:
        """Write a checkpoint, and bring the remote copy up to date.

        `window_counts`: the mean return of the last training episodes says how the policy plays.

        Raises:
            TrainingStoppedError: the parameters are not finite any more. Nothing was written.
        """
        learner = self._learner
        if not learner.is_finite():
            raise TrainingStoppedError(
                f"the parameters are not finite any more at update {learner.version}; the last checkpoint is from "
                f"before that: resume it with a lower --optimizer.learning-rate"
            )
        learner.gather()
        try:
            self._checkpoints.save(learner.version)
        except CheckpointError as error:
            self._say(f"warning: {error}; training goes on")
        if not self._config.evaluation.every_frames and window_counts:
            # Nobody evaluates before the mark: the best weights are those that training saw do best, and they are
            # looked at whenever a checkpoint is due.
            mean = learner.account.mean_return
            assert mean is not None
            self.best.keep_if_best(learner.version, learner.parameters(), mean, "training")
        if self._copy is not None:
            self._say_if_not_copied(self._copy.start())

    def keep_video(self, version: int, video: Video) -> None:
        """Write the video of an evaluation of these weights."""
        file = self._folder.videos / f"update-{version}.gif"
        try:
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(video.gif)
        except OSError as error:
            self._say(f"warning: the video of an evaluation could not be written: {error.strerror}")

    def finish_copy(self) -> None:
        """Wait until the remote copy has everything."""
        if self._copy is not None:
            self._say_if_not_copied(self._copy.finish())

    def _say_if_not_copied(self, failure: str | None) -> None:
        if failure is not None:
            self._say(f"warning: the copy at {self._config.storage} could not be brought up to date: {failure}")
