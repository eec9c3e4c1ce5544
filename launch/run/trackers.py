"""Trackers of a run: TensorBoard always, Weights & Biases and MLflow where the settings name them.

A tracker must neither end a run nor slow it: each is used in a thread of its own, and given up at its first error.
"""

import importlib.util
import io
import math
import queue
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from launch.output import write_json
from launch.run.events import Progress
from launch.run.folder import read_object
from launch.run.metrics import INFO
from shared.config import RunConfig, flat_settings
from shared.errors import setting_error
from shared.types import Video

# All trackers of a run together. Checkpoint and summary are written before.
_CLOSE_SECONDS = 15.0
# Nearly three hours of rows at the usual interval.
_MOST_CALLS_WAITING = 1000
# A histogram needs each value once per count.
_MOST_HISTOGRAM_VALUES = 10_000
# W&B uploads the rest when it is closed, and again when the process ends. `wandb sync` uploads what is left then.
_MOST_UPLOAD_SECONDS = 10.0
# Limit of MLflow's server for one request.
_MOST_PARAMETERS = 100


# The groups follow a reader's questions: does it learn, is it fast, is it sound.
_GROUPS = {
    "mean_return_100": "return/training_mean_100",
    "interval_mean_return": "return/training_interval",
    "episodes": "return/episodes",
    "frames_per_second": "speed/frames_per_second",
    "agent_steps_per_second": "speed/agent_steps_per_second",
    "updates_per_second": "speed/updates_per_second",
    "gradients_per_second": "speed/gradients_per_second",
    "learner_milliseconds": "speed/learner_milliseconds_per_gradient",
    "policy_lag_mean": "asynchrony/policy_lag_mean",
    "policy_lag_max": "asynchrony/policy_lag_max",
    "agent_steps_in_flight": "asynchrony/agent_steps_in_flight",
    "gradients_per_update": "asynchrony/gradients_per_update",
    "actors_alive": "asynchrony/actors_alive",
    "actor_restarts": "asynchrony/actor_restarts",
    "learning_rate": "learning/learning_rate",
    "gradient_norm": "learning/gradient_norm",
    "passes": "learning/passes",
}
_EVALUATION_GROUPS = {
    "mean_return": "return/evaluation_mean",
    "median_return": "return/evaluation_median",
    "standard_error": "return/evaluation_standard_error",
    "collapsed_episodes": "return/evaluation_collapsed_episodes",
}


class Tracker(Protocol):
    """Receives rows in the order of their frames, all from one thread. A method may raise any exception, or hang."""

    def write(self, row: Progress) -> None:
        """Log a row."""

    def write_video(self, video: Video, frames: int) -> None:
        """Log the video of an evaluation of the weights after `frames` frames."""

    def close(self) -> None:
        """Flush and close."""


OpenTracker = Callable[[], Tracker]
_Call = Callable[[Tracker], None]


class Trackers:
    """All trackers of a run. No method raises, and none but `close` waits. `log` is called from several threads."""

    def __init__(self, openers: Mapping[str, OpenTracker], log: Callable[[str], None]) -> None:
        self._log = log
        self._threads = [_TrackerThread(name, open_tracker, log) for name, open_tracker in openers.items()]
        for thread in self._threads:
            thread.start()

    def write(self, row: Progress) -> None:
        self._send(lambda tracker: tracker.write(row))

    def write_video(self, video: Video, frames: int) -> None:
        self._send(lambda tracker: tracker.write_video(video, frames))

    def close(self) -> None:
        """Close all trackers after their last row, and wait _CLOSE_SECONDS for them at most."""
        self._send(None)
        deadline = time.monotonic() + _CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self._give_up(thread, "it does not close")

    def _send(self, call: _Call | None) -> None:
        for thread in [thread for thread in self._threads if thread.is_alive()]:
            try:
                thread.calls.put_nowait(call)
            except queue.Full:
                self._threads.remove(thread)
                self._give_up(thread, "it does not take its rows")

    def _give_up(self, thread: "_TrackerThread", reason: str) -> None:
        thread.given_up.set()
        self._log(_warning(thread.name, reason))


class _TrackerThread(threading.Thread):
    """Opens one tracker, makes the calls in `calls`, and closes it at None. It ends at the first exception.

    MLflow's own asynchronous logging was tried in place of this thread: with its server gone it kept the process alive
    for 247 s after the end, until its last retry. A daemon thread ends with the process.
    """

    def __init__(self, name: str, open_tracker: OpenTracker, log: Callable[[str], None]) -> None:
        super().__init__(name=name, daemon=True)
        self.calls: queue.Queue[_Call | None] = queue.Queue(_MOST_CALLS_WAITING)
        self.given_up = threading.Event()
        self._open, self._log = open_tracker, log

    def run(self) -> None:
        try:
            tracker = self._open()
            while not self.given_up.is_set() and (call := self.calls.get()) is not None:
                call(tracker)
            tracker.close()
        # Each library has its own exceptions, besides those of HTTP and of TensorFlow.
        except Exception as error:
            if not self.given_up.is_set():
                self._log(_warning(self.name, (str(error).strip() or type(error).__name__).splitlines()[0]))


def _warning(name: str, reason: str) -> str:
    return f"warning: {name}: {reason}; this session writes nothing more to it, and metrics.jsonl has every row"


def scalars(row: Progress) -> list[tuple[str, float]]:
    """The known and finite numbers of a row for a tracker, as pairs of `group/name` and value."""
    values = asdict(row)
    found = [(tag, values[name]) for name, tag in _GROUPS.items()]
    found += [(f"learning/{name}", value) for name, value in row.statistics.items()]
    found += [(INFO + name, value) for name, value in row.info.items()]
    found += [(f"stage_microseconds/{name}", value) for name, value in values["stage_microseconds"].items()]
    found += [(f"agent_steps_dropped/{name}", value) for name, value in values["agent_steps_dropped"].items()]
    return _known(found)


def evaluation_scalars(point: dict[str, Any]) -> list[tuple[str, float]]:
    """The same for an evaluation."""
    return _known([(tag, point[name]) for name, tag in _EVALUATION_GROUPS.items()])


def _known(found: Sequence[tuple[str, float | None]]) -> list[tuple[str, float]]:
    return [(tag, value) for tag, value in found if value is not None and math.isfinite(value)]


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
        # The image plugin passes the bytes to the browser, which plays GIFs.
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
    """A run of Weights & Biases, with the settings as its config."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        import wandb

        name, group = name_and_group(folder)
        run_id = _kept_id(folder, "wandb") or secrets.token_hex(4)
        _keep_id(folder, "wandb", run_id)
        self._run = wandb.init(
            project=config.tracking.project,
            group=group,
            name=name,
            dir=str(folder),
            config=flat_settings(config),
            id=run_id,
            resume="allow",
            # Its console capture would come between the live table and the terminal.
            settings=wandb.Settings(console="off", finish_timeout=_MOST_UPLOAD_SECONDS),
        )
        self._video = wandb.Video
        # The x axis: an evaluation ends later than the row of the frames of its weights.
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
    """

    def __init__(self, folder: Path, config: RunConfig) -> None:
        import mlflow

        # Not mlflow.start_run, whose handler at exit would wait for the server.
        self._client = mlflow.MlflowClient()
        self._metric = mlflow.entities.Metric
        run_id = _kept_id(folder, "mlflow")
        if run_id is None:
            experiment = mlflow.set_experiment(config.tracking.project)
            name, group = name_and_group(folder)
            tags = {} if group is None else {"group": group}
            run_id = self._client.create_run(experiment.experiment_id, run_name=name, tags=tags).info.run_id
            _keep_id(folder, "mlflow", run_id)
        self._run_id = run_id
        self._client.update_run(run_id, status="RUNNING")
        before = self._client.get_run(run_id).data
        settings = {name: str(value) for name, value in flat_settings(config).items()}
        for name, value in settings.items():
            if before.params.get(name, value) != value or f"resumed_with.{name}" in before.tags:
                self._client.set_tag(run_id, f"resumed_with.{name}", value)
        new = [mlflow.entities.Param(name, value) for name, value in settings.items() if name not in before.params]
        for start in range(0, len(new), _MOST_PARAMETERS):
            self._client.log_batch(run_id, params=new[start : start + _MOST_PARAMETERS])

    def write(self, row: Progress) -> None:
        now = int(1000 * time.time())
        metrics = [self._metric(tag, value, now, row.frames) for tag, value in scalars(row)]
        for point in row.evaluations:
            metrics += [self._metric(tag, value, now, point["frames"]) for tag, value in evaluation_scalars(point)]
        self._client.log_batch(self._run_id, metrics)

    def write_video(self, video: Video, frames: int) -> None:
        with tempfile.TemporaryDirectory(prefix="tributary-video-") as folder:
            # Names sort in the order of frames.
            file = Path(folder) / f"frames-{frames:012}.gif"
            file.write_bytes(video.gif)
            self._client.log_artifact(self._run_id, str(file), "evaluation")

    def close(self) -> None:
        self._client.set_terminated(self._run_id)


def tracker_openers(folder: Path, config: RunConfig) -> dict[str, OpenTracker]:
    """The functions that open a run's trackers, by the trackers' names. Opening TensorBoard imports TensorFlow."""
    known: dict[str, Callable[[Path, RunConfig], Tracker]] = {"wandb": WeightsAndBiases, "mlflow": MLflow}
    openers: dict[str, OpenTracker] = {"TensorBoard": partial(TensorBoard, folder, config)}
    for name in config.trackers:
        openers[name] = partial(known[name], folder, config)
    return openers


def check_trackers(config: RunConfig) -> None:
    """Refuse a tracker whose package is missing, and MLflow without a store."""
    for name in config.trackers:
        if importlib.util.find_spec(name) is None:
            raise setting_error("trackers", name, f"is not installed: pip install 'tributary-rl[{name}]'")
    # On a cluster the learner writes, and its node has its own environment variables.
    here = config.executor == "inline" or config.address == "local"
    if here and "mlflow" in config.trackers:
        import mlflow

        # By default the store is a file of SQLite, which mlflow-skinny cannot write.
        if mlflow.get_tracking_uri().startswith("sqlite:") and importlib.util.find_spec("sqlalchemy") is None:
            advice = "set MLFLOW_TRACKING_URI to that of a server, or pip install mlflow"
            raise setting_error("trackers", "mlflow", f"mlflow-skinny has no store of its own: {advice}")


def name_and_group(folder: Path) -> tuple[str, str | None]:
    """The run's name and group in W&B and MLflow: the runs of a `--seeds` are one group."""
    several = folder.parent.name if folder.name.startswith(("seed-", "trial-")) else None
    return folder.name if several is None else f"{several}/{folder.name}", several


# W&B and MLflow write their ids from threads of their own.
_ids_lock = threading.Lock()


def _kept_id(folder: Path, tracker: str) -> str | None:
    """The id in trackers.json, under which a resumed run goes on."""
    return read_object(folder / "trackers.json").get(tracker)


def _keep_id(folder: Path, tracker: str, run_id: str) -> None:
    file = folder / "trackers.json"
    with _ids_lock:
        write_json(file, read_object(file) | {tracker: run_id})


def _repeated(counts: dict[int, int]) -> np.ndarray:
    """Each lag float64 repeated by its count, thinned to about _MOST_HISTOGRAM_VALUES."""
    share = max(1.0, sum(counts.values()) / _MOST_HISTOGRAM_VALUES)
    return np.repeat(list(counts), [max(1, round(count / share)) for count in counts.values()]).astype(np.float64)
