"""The trackers that a run's rows go to besides metrics.jsonl: TensorBoard always, others where the settings say so."""

import importlib.util
import secrets
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from launch.run.progress import Progress
from launch.run.rows import scalars
from launch.run.tracker_runs import TrackerRuns
from shared.config import RunConfig, flat_settings
from shared.errors import setting_error
from shared.types import Video

# A histogram needs each value once per count.
_MOST_HISTOGRAM_VALUES = 10_000
# W&B uploads what is left when it is closed, and again when the process ends; what it did not send `wandb sync` does.
_MOST_UPLOAD_SECONDS = 10.0
# What a server of MLflow takes in one request.
_MOST_PARAMETERS = 100


class Tracker(Protocol):
    """Takes rows in the order of their frames, all from one thread.

    A method may raise any exception and take any time: `TrackerThread` lets neither reach the run.
    """

    def write(self, row: Progress) -> None:
        """Take one row."""

    def write_video(self, video: Video, frames: int) -> None:
        """Take the video of an evaluation, made after so many frames."""

    def close(self) -> None:
        """Flush and close."""


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
        with self._events.as_default(step=row.frames):
            for tag, value in scalars(row):
                tf.summary.scalar(tag, value)
            lags = _repeated(row.policy_lag_counts)
            if len(lags):
                tf.summary.histogram("asynchrony/policy_lag", lags)
        self._events.flush()

    def write_video(self, video: Video, frames: int) -> None:
        # TensorBoard shows a picture as its browser does, and a browser plays GIFs.
        metadata = self._tf.compat.v1.SummaryMetadata(
            plugin_data=self._tf.compat.v1.SummaryMetadata.PluginData(plugin_name="images")
        )
        picture = self._tf.constant([str(video.width).encode(), str(video.height).encode(), video.gif])
        with self._events.as_default(step=frames):
            self._tf.summary.write("evaluation/episode", picture, metadata=metadata)
        self._events.flush()

    def close(self) -> None:
        self._events.close()


class WeightsAndBiases:
    """A run of Weights & Biases, with the settings as its config. Where and whether it uploads is its own setting.

    Args:
        folder: of the run; W&B keeps its files there.
        config: of the run.
        runs: knows the run that this one goes on in, if it was resumed.
    """

    def __init__(self, folder: Path, config: RunConfig, runs: TrackerRuns) -> None:
        import wandb

        run_id = runs.get("wandb")
        if run_id is None:
            run_id = secrets.token_hex(4)
            runs.keep("wandb", run_id)
        self._run = wandb.init(
            project="tributary",
            name=folder.name,
            dir=str(folder),
            config=flat_settings(config),
            id=run_id,
            resume="allow",
            # It would put itself between the live table and the terminal.
            settings=wandb.Settings(console="off", finish_timeout=_MOST_UPLOAD_SECONDS),
        )

    def write(self, row: Progress) -> None:
        self._run.log({"frames": row.frames, **dict(scalars(row))})

    def write_video(self, video: Video, frames: int) -> None:
        """Nothing: videos are in the run folder."""

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """A run of MLflow, with the settings as its parameters, in the store that MLFLOW_TRACKING_URI names.

    MLflow's parameters never change: a setting that a resume changed is a tag, `resumed_with.` and its name.

    Args:
        folder: of the run.
        config: of the run.
        runs: knows the run that this one goes on in, if it was resumed.
    """

    def __init__(self, folder: Path, config: RunConfig, runs: TrackerRuns) -> None:
        import mlflow

        # The client and not mlflow.start_run: that would end the run when the process does, server or no server.
        self._client = mlflow.MlflowClient()
        self._metric = mlflow.entities.Metric
        run_id = runs.get("mlflow")
        if run_id is None:
            experiment = mlflow.set_experiment("tributary")
            run_id = self._client.create_run(experiment.experiment_id, run_name=folder.name).info.run_id
            runs.keep("mlflow", run_id)
        self._run_id = run_id
        self._client.update_run(run_id, status="RUNNING")
        before = self._client.get_run(run_id).data
        for name, value in flat_settings(config).items():
            if before.params.get(name, str(value)) != str(value) or f"resumed_with.{name}" in before.tags:
                self._client.set_tag(run_id, f"resumed_with.{name}", value)
        new = [
            mlflow.entities.Param(name, str(value))
            for name, value in flat_settings(config).items()
            if name not in before.params
        ]
        for start in range(0, len(new), _MOST_PARAMETERS):
            self._client.log_batch(run_id, params=new[start : start + _MOST_PARAMETERS])

    def write(self, row: Progress) -> None:
        now = int(1000 * time.time())
        self._client.log_batch(self._run_id, [self._metric(tag, value, now, row.frames) for tag, value in scalars(row)])

    def write_video(self, video: Video, frames: int) -> None:
        """Nothing: videos are in the run folder."""

    def close(self) -> None:
        self._client.set_terminated(self._run_id)


_ASKED_FOR: dict[str, Callable[[Path, RunConfig, TrackerRuns], Tracker]] = {"wandb": WeightsAndBiases, "mlflow": MLflow}


def check_trackers(config: RunConfig) -> None:
    """Refuse a tracker whose package is missing, and MLflow where it has no store to write to.

    Raises:
        ConfigurationError: names the tracker, and how it is installed or set up.
    """
    for name in config.trackers:
        if importlib.util.find_spec(name) is None:
            raise setting_error("trackers", name, f"is not installed: pip install 'tributary-rl[{name}]'")
    # On a cluster the learner writes, and the variables of its node count.
    here = config.executor == "inline" or config.address == "local"
    if here and "mlflow" in config.trackers:
        _check_store_of_mlflow()


def _check_store_of_mlflow() -> None:
    import mlflow

    # Where nothing is set it is a file of SQLite: mlflow-skinny comes without what writes it.
    if mlflow.get_tracking_uri().startswith("sqlite:") and importlib.util.find_spec("sqlalchemy") is None:
        raise setting_error(
            "trackers",
            "mlflow",
            "mlflow-skinny has no store of its own: set MLFLOW_TRACKING_URI to that of a server, or pip install mlflow",
        )


def tracker_openers(folder: Path, config: RunConfig) -> dict[str, Callable[[], Tracker]]:
    """What opens each tracker of a run, by the tracker's name. Opening TensorBoard imports TensorFlow."""
    runs = TrackerRuns(folder)
    openers: dict[str, Callable[[], Tracker]] = {"TensorBoard": partial(TensorBoard, folder, config)}
    for name in config.trackers:
        openers[name] = partial(_ASKED_FOR[name], folder, config, runs)
    return openers


def _repeated(counts: dict[int, int]) -> np.ndarray:
    """Each lag float64 as often as it was counted, thinned to about _MOST_HISTOGRAM_VALUES."""
    share = max(1.0, sum(counts.values()) / _MOST_HISTOGRAM_VALUES)
    return np.repeat(list(counts), [max(1, round(count / share)) for count in counts.values()]).astype(np.float64)
