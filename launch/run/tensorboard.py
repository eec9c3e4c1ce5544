"""TensorBoard points of a run. Weights & Biases, if the settings name it, copies them."""

import importlib.util
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from launch.run.events import COLUMNS, Progress
from shared.config import RunConfig, flat_settings
from shared.errors import setting_error

# W&B uploads remaining points when it is closed. `wandb sync` uploads the rest then.
_MAX_UPLOAD_SECONDS = 10.0
_OF_EVALUATION = ("mean_return", "median_return", "standard_error", "collapsed_episodes")


def scalars(row: Progress) -> dict[str, float]:
    """The known and finite numbers of a row, by `group/name`."""
    tags: dict[str, float | None] = {}
    for name, column in COLUMNS.items():
        value = getattr(row, name)
        numbers = value if isinstance(value, dict) else {name: value}
        tags |= {f"{column.group}/{key}": number for key, number in numbers.items() if column.group}
    return _known(tags)


def evaluation_scalars(point: dict[str, Any]) -> dict[str, float]:
    """The same for an evaluation."""
    return _known({f"return/evaluation_{name}": point[name] for name in _OF_EVALUATION})


def _known(tags: dict[str, float | None]) -> dict[str, float]:
    return {tag: value for tag, value in tags.items() if value is not None and math.isfinite(value)}


class TensorBoard:
    """Scalars by frames, in groups; hyperparameters.

    No method raises: a full disk or a W&B without its server must not end a run. After an error, which `log` gets in
    one line, nothing more is written to the failed one.
    """

    def __init__(self, folder: Path, config: RunConfig, log: Callable[[str], None]) -> None:
        import tensorflow as tf
        from tensorboard.plugins.hparams import api as hparams

        self._tf, self._log = tf, log
        self._wandb: Any = None
        self._events: Any = None
        if "wandb" in config.trackers:
            # Before the file is created, of which W&B learns by that.
            with self._one_warning("wandb"):
                self._wandb = _wandb_run(folder, config)
        with self._one_warning("TensorBoard"):
            self._events = tf.summary.create_file_writer(str(folder))
            with self._events.as_default(step=0):
                # Runs of one name would be one row of its table: seeds of two studies have equal ones.
                hparams.hparams(flat_settings(config), trial_id=str(folder))

    def write(self, row: Progress) -> None:
        """Write the points of a row."""
        if self._events is None:
            return
        with self._one_warning("TensorBoard"), self._events.as_default():
            self._write(row.frames, scalars(row))
            for point in row.evaluations:
                self._write(point["frames"], evaluation_scalars(point))
            self._events.flush()

    def _write(self, frames: int, numbers: dict[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb

        # One operation for all: 40 calls of `tf.summary.scalar` would hold the learner up for 30 ms.
        points = Summary()
        for tag, value in numbers.items():
            points.MergeFrom(scalar_pb(tag, value))
        self._tf.summary.experimental.write_raw_pb(points.SerializeToString(), step=frames)

    def close(self) -> None:
        """Close the file, and give W&B a while to upload the rest."""
        if self._events is not None:
            with self._one_warning("TensorBoard"):
                self._events.close()
        if self._wandb is not None:
            with self._one_warning("wandb"):
                self._wandb.finish()

    @contextmanager
    def _one_warning(self, name: str) -> Iterator[None]:
        try:
            yield
        # W&B has its own exceptions, besides those of HTTP and of TensorFlow.
        except Exception as error:
            if name == "TensorBoard":
                self._events = None
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            self._log(f"warning: {name}: {reason}; nothing more is written to it, and metrics.jsonl has every row")


def _wandb_run(folder: Path, config: RunConfig) -> Any:
    """The run of Weights & Biases, with the settings as its config."""
    import wandb

    return wandb.init(
        project=os.environ.get("WANDB_PROJECT", "tributary"),
        name=f"{folder.parent.name}/{folder.name}",
        # Not within the folder: W&B copies files of TensorBoard into its own folder, and would find the copies again.
        dir=str(folder.parent),
        config=flat_settings(config),
        # A resumed run continues it: the manifest is written once.
        id=sha256((folder / "manifest.json").read_bytes()).hexdigest()[:12],
        resume="allow",
        sync_tensorboard=True,
        # Its console capture would come between the live table and the terminal.
        settings=wandb.Settings(console="off", finish_timeout=_MAX_UPLOAD_SECONDS),
    )


def check_trackers(config: RunConfig) -> None:
    """Refuse a tracker whose package is missing."""
    for name in config.trackers:
        if importlib.util.find_spec(name) is None:
            raise setting_error("trackers", name, f"is not installed: pip install 'tributary-rl[{name}]'")
