"""Where a run's numbers go: metrics.jsonl and TensorBoard always, other trackers where they are asked for."""

import errno
import importlib.util
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from launch.run.progress import Progress
from shared.config import RunConfig, flat_settings
from shared.errors import setting_error

# A histogram needs each value once per count.
_MOST_HISTOGRAM_VALUES = 10_000


class Sink(Protocol):
    """Takes rows in the order of their frames."""

    def write(self, row: Progress) -> None:
        """Take one row.

        Raises:
            OSError: it could not be written, on a full disk for example.
        """
        ...

    def write_video(self, gif: bytes, width: int, height: int, frames: int) -> None:
        """Take the video of an evaluation, made after so many frames."""

    def close(self) -> None:
        """Flush and close, as far as that is possible."""


class JsonLines:
    """metrics.jsonl: one JSON object per row. Rows are appended, so that a resumed run continues its file."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / "metrics.jsonl").open("ab", buffering=0)

    def write(self, row: Progress) -> None:
        line = msgspec.json.encode(row_values(row)) + b"\n"
        end = self._file.seek(0, os.SEEK_END)
        if self._file.write(line) != len(line):
            # No half of a row is left.
            self._file.truncate(end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write_video(self, gif: bytes, width: int, height: int, frames: int) -> None:
        """Not kept here."""

    def close(self) -> None:
        self._file.close()


class TensorBoard:
    """Scalars by frames, in groups; the histogram of policy lag; hyperparameters; videos of evaluations."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        import tensorflow as tf
        from tensorboard.plugins.hparams import api as hparams

        self._tf = tf
        self._events = tf.summary.create_file_writer(str(folder))
        with self._events.as_default(step=0):
            hparams.hparams(flat_settings(config), trial_id=folder.name)

    def write(self, row: Progress) -> None:
        tf = self._tf
        try:
            with self._events.as_default(step=row.frames):
                for tag, value in scalars(row):
                    tf.summary.scalar(tag, value)
                lags = _repeated(row.policy_lag_counts)
                if len(lags):
                    tf.summary.histogram("asynchrony/policy_lag", lags)
            self._events.flush()
        except tf.errors.OpError as error:
            raise OSError(errno.EIO, f"TensorBoard's events: {error.message}") from error

    def write_video(self, gif: bytes, width: int, height: int, frames: int) -> None:
        # TensorBoard shows a picture as its browser does, and a browser plays GIFs.
        metadata = self._tf.compat.v1.SummaryMetadata(
            plugin_data=self._tf.compat.v1.SummaryMetadata.PluginData(plugin_name="images")
        )
        picture = self._tf.constant([str(width).encode(), str(height).encode(), gif])
        with self._events.as_default(step=frames):
            self._tf.summary.write("evaluation/episode", picture, metadata=metadata)
        self._events.flush()

    def close(self) -> None:
        with suppress(self._tf.errors.OpError):
            self._events.close()


class WeightsAndBiases:
    """A run of Weights & Biases, with the settings as its config. Where and whether it uploads is its own setting."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        import wandb

        self._run = wandb.init(
            project="tributary", name=folder.name, dir=str(folder), config=flat_settings(config), resume="allow"
        )

    def write(self, row: Progress) -> None:
        self._run.log({"frames": row.frames, **dict(scalars(row))})

    def write_video(self, gif: bytes, width: int, height: int, frames: int) -> None:
        """Its own recorder does that."""

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """A run of MLflow, with the settings as its parameters, in the store that MLFLOW_TRACKING_URI names."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        import mlflow

        self._mlflow = mlflow
        mlflow.set_experiment("tributary")
        mlflow.start_run(run_name=folder.name)
        mlflow.log_params(flat_settings(config))

    def write(self, row: Progress) -> None:
        self._mlflow.log_metrics(dict(scalars(row)), step=row.frames)

    def write_video(self, gif: bytes, width: int, height: int, frames: int) -> None:
        """It takes files, which the run folder has."""

    def close(self) -> None:
        self._mlflow.end_run()


_TRACKERS: dict[str, Callable[[Path, RunConfig], Sink]] = {"wandb": WeightsAndBiases, "mlflow": MLflow}


def check_trackers(config: RunConfig) -> None:
    """Refuse a tracker whose package is missing.

    Raises:
        ConfigurationError: it is.
    """
    for name in config.trackers:
        if importlib.util.find_spec(name) is None:
            raise setting_error("trackers", name, f"is not installed: pip install 'tributary-rl[{name}]'")


def make_sinks(folder: Path, config: RunConfig) -> list[Sink]:
    """All that a run writes to. Needs TensorFlow."""
    trackers = [_TRACKERS[name](folder, config) for name in config.trackers]
    return [JsonLines(folder), TensorBoard(folder, config), *trackers]


# Groups are in the order in which a reader asks: does it learn, is it fast, is it sound.
_GROUPS = {
    "mean_return_100": "return/training_mean_100",
    "evaluation_return": "return/evaluation_mean",
    "episodes": "return/episodes",
    "frames_per_second": "speed/frames_per_second",
    "agent_steps_per_second": "speed/agent_steps_per_second",
    "updates_per_second": "speed/updates_per_second",
    "learner_milliseconds": "speed/learner_milliseconds_per_gradient",
    "policy_lag_mean": "asynchrony/policy_lag_mean",
    "policy_lag_max": "asynchrony/policy_lag_max",
    "actors_alive": "asynchrony/actors_alive",
    "actor_restarts": "asynchrony/actor_restarts",
    "learning_rate": "learning/learning_rate",
    "gradient_norm": "learning/gradient_norm",
}


def row_values(row: Progress) -> dict[str, Any]:
    """A row as it is written: the method's statistics stand beside the other numbers, by their names."""
    values = asdict(row)
    return values | values.pop("statistics")


def scalars(row: Progress) -> list[tuple[str, float]]:
    """The numbers of a row by group and name."""
    values = asdict(row)
    found = [(tag, values[name]) for name, tag in _GROUPS.items() if values[name] is not None]
    found += [(f"learning/{name}", value) for name, value in row.statistics.items()]
    found += [(f"stage_microseconds/{name}", value) for name, value in values["stage_microseconds"].items()]
    found += [(f"agent_steps_dropped/{name}", value) for name, value in values["agent_steps_dropped"].items()]
    return found


def _repeated(counts: dict[int, int]) -> np.ndarray:
    share = max(1.0, sum(counts.values()) / _MOST_HISTOGRAM_VALUES)
    return np.repeat(list(counts), [max(1, round(count / share)) for count in counts.values()]).astype(np.float64)
