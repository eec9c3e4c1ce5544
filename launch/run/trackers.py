"""The trackers that a run's rows go to besides metrics.jsonl: TensorBoard always, others where the settings say so."""

import importlib.util
import io
import secrets
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from launch.run.progress import Progress
from launch.run.rows import evaluation_scalars, scalars
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
        """Take the video of an evaluation of the weights after so many frames."""

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
        for point in row.evaluations:
            with self._events.as_default(step=point["frames"]):
                for tag, value in evaluation_scalars(point):
                    tf.summary.scalar(tag, value)
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
            project=config.tracking.project,
            group=tracked_group(folder, config),
            name=tracked_name(folder, config),
            dir=str(folder),
            config=flat_settings(config),
            id=run_id,
            resume="allow",
            # It would put itself between the live table and the terminal.
            settings=wandb.Settings(console="off", finish_timeout=_MOST_UPLOAD_SECONDS),
        )
        self._video = wandb.Video
        # The x axis: an evaluation ends later than the row of the frames that it is of.
        self._run.define_metric("*", step_metric="frames")

    def write(self, row: Progress) -> None:
        self._run.log({"frames": row.frames, **dict(scalars(row))})
        for point in row.evaluations:
            self._run.log({"frames": point["frames"], **dict(evaluation_scalars(point))})

    def write_video(self, video: Video, frames: int) -> None:
        self._run.log({"frames": frames, "evaluation/episode": self._video(io.BytesIO(video.gif), format="gif")})

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
        from requests.exceptions import ChunkedEncodingError

        self._error, self._broken_off = mlflow.MlflowException, ChunkedEncodingError
        # The client and not mlflow.start_run: that would end the run when the process does, server or no server.
        self._client = mlflow.MlflowClient()
        self._metric = mlflow.entities.Metric
        run_id = runs.get("mlflow")
        if run_id is None:
            experiment = mlflow.set_experiment(config.tracking.project)
            group = tracked_group(folder, config)
            tags = {} if group is None else {"group": group}
            name = tracked_name(folder, config)
            run_id = self._client.create_run(experiment.experiment_id, run_name=name, tags=tags).info.run_id
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
        metrics = [self._metric(tag, value, now, row.frames) for tag, value in scalars(row)]
        for point in row.evaluations:
            metrics += [self._metric(tag, value, now, point["frames"]) for tag, value in evaluation_scalars(point)]
        self._until_whole(lambda: self._client.log_batch(self._run_id, metrics))

    def write_video(self, video: Video, frames: int) -> None:
        with tempfile.TemporaryDirectory(prefix="tributary-video-") as folder:
            # By name in the order of frames.
            file = Path(folder) / f"frames-{frames:012}.gif"
            file.write_bytes(video.gif)
            self._until_whole(lambda: self._client.log_artifact(self._run_id, str(file), "evaluation"))

    def close(self) -> None:
        self._until_whole(lambda: self._client.set_terminated(self._run_id))

    def _until_whole(self, ask: Callable[[], object]) -> None:
        """Ask the server for what may be asked twice, and again if its answer breaks off.

        MLflow asks again where no answer begins, and gives up where one does not end: so it is when a server is killed.
        """
        try:
            ask()
        except self._error as error:
            if not isinstance(error.__context__, self._broken_off):
                raise
            ask()


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


def tracked_name(folder: Path, config: RunConfig) -> str:
    """What a run is called in W&B and MLflow: seed-1 alone would say nothing."""
    group = _folder_of_several(folder)
    return config.tracking.name or (folder.name if group is None else f"{group}/{folder.name}")


def tracked_group(folder: Path, config: RunConfig) -> str | None:
    """What it is put together with there: by default, the runs of one `--seeds` or of one sweep."""
    return config.tracking.group or _folder_of_several(folder)


def _folder_of_several(folder: Path) -> str | None:
    return folder.parent.name if folder.name.startswith(("seed-", "trial-")) else None


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
