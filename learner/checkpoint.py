"""Checkpoints by `tf.train.CheckpointManager`: tensors and one JSON string, atomic, without executable content."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from shared.errors import ConfigurationError, one_line, typed_line
from shared.layout import ParameterLayout
from shared.types import Float32Array

# Every exception that TensorFlow's reader raised for the randomly damaged files of tests/learner/test_checkpoint.py.
_DAMAGE = (tf.errors.OpError, ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
_STATE_KEY = "state/.ATTRIBUTES/py_state"
_PARAMETERS_KEY = "variables/parameters/.ATTRIBUTES/VARIABLE_VALUE"


class CheckpointError(Exception):
    """A checkpoint could not be written."""


class _JsonState(tf.train.experimental.PythonState):
    """The plain values of a checkpoint. TensorFlow chooses when it reads and sets them beside the tensors."""

    values: dict[str, Any]

    def serialize(self) -> str:
        return json.dumps(self.values)

    def deserialize(self, string_value: str) -> None:
        self.values = json.loads(string_value)


class Checkpoints:
    """The newest `keep` checkpoints of a run, in one folder. A checkpoint is visible to `restore` once it is complete.

    `save_state` returns all but the tensors, as values that JSON can represent, before the tensors are read.
    `restore_state` gets them after the tensors are restored.
    `read_checkpoint` needs `layout_fingerprint`, and `updates` in `ledger`.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        variables: dict[str, tf.Variable],
        save_state: Callable[[], dict[str, Any]],
        restore_state: Callable[[dict[str, Any]], None],
    ) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        # Left by a process that was killed within a save.
        for unfinished in folder.glob("update-*_temp"):
            shutil.rmtree(unfinished, ignore_errors=True)
        # Open as long as this object lives.
        self._opened = ExitStack()
        folder = self._opened.enter_context(_for_tensorflow(folder))
        try:
            tf.train.get_checkpoint_state(str(folder))
        except _DAMAGE:
            # TensorFlow's list of checkpoints serves only to delete old ones.
            (folder / "checkpoint").unlink()
        self._state, self._save_state, self._restore_state = _JsonState(), save_state, restore_state
        self._checkpoint = tf.train.Checkpoint(variables=variables, state=self._state)
        self._manager = tf.train.CheckpointManager(
            self._checkpoint, str(folder), max_to_keep=keep, checkpoint_name="update"
        )

    def save(self, version: int) -> None:
        """Write a checkpoint, numbered by the version of its weights.

        If the write fails it raises a `CheckpointError`, and earlier checkpoints are unchanged.
        """
        before: set[Path] | None = None
        self._state.values = self._save_state()
        try:
            before = self._files()
            self._manager.save(checkpoint_number=version)
        except (tf.errors.OpError, OSError) as error:
            # Frees a full disk. Files of an earlier checkpoint of the same version stay.
            parts = set[Path]()
            with suppress(OSError):
                parts = parts if before is None else self._files() - before
            for part in parts:
                with suppress(OSError):
                    shutil.rmtree(part) if part.is_dir() else part.unlink()
            raise CheckpointError(f"checkpoint of update {version} could not be written: {_in_short(error)}") from error

    def restore(self) -> list[str]:
        """Restore the newest intact checkpoint. Returns one message for each damaged one that is newer.

        Raises:
            ConfigurationError: no checkpoint is intact, or the newest one has other tensors or a state of another form.
        """
        damaged = []
        for path in checkpoint_paths(Path(self._manager.directory)):
            try:
                _verify(path)
            except _DAMAGE as error:
                damaged.append(f"checkpoint {path.name} is damaged and was passed over: {_in_short(error)}")
                continue
            try:
                self._checkpoint.restore(str(path)).assert_consumed()
                self._restore_state(self._state.values)
            except (AssertionError, LookupError, TypeError) as error:
                reason = "other tensors" if isinstance(error, AssertionError) else typed_line(error)
                raise ConfigurationError(
                    f"checkpoint {path.name} in {self._folder} is of another version of Tributary ({reason}); "
                    f"train --start-from RUN begins a new run with its weights"
                ) from error
            return damaged
        raise ConfigurationError("; ".join(damaged) or _no_checkpoint(self._folder))

    def _files(self) -> set[Path]:
        return set(Path(self._manager.directory).glob("update-*"))


# TensorFlow takes the path of a checkpoint for a pattern of files, in which these are special.
_PATTERN = re.compile(r"[][*?\\]")
_OPEN_FOLDERS = Path("/proc/self/fd")


@contextmanager
def _for_tensorflow(folder: Path) -> Iterator[Path]:
    """A path of an existing folder that is no pattern."""
    if not _PATTERN.search(str(folder)):
        yield folder
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield _OPEN_FOLDERS / str(descriptor)
    finally:
        os.close(descriptor)


def checkpoint_paths(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first."""
    return [folder / f"update-{version}" for version in checkpoint_updates(folder)]


def checkpoint_updates(folder: Path) -> list[int]:
    """The updates of the checkpoints, newest first, by the numbers in their names: TensorFlow's list may be damaged."""
    names = [file.stem.removeprefix("update-") for file in folder.glob("update-*.index")]
    return sorted((int(name) for name in names if name.isdigit()), reverse=True)


def _verify(path: Path) -> None:
    """Read all of a checkpoint: TensorFlow verifies the checksum of a tensor only when it reads the tensor."""
    reader = tf.train.load_checkpoint(str(path))
    for name in reader.get_variable_to_shape_map():
        value = reader.get_tensor(name)
        if name == _STATE_KEY:
            json.loads(value)


def read_checkpoint(folder: Path, layout: ParameterLayout, update: int | None = None) -> tuple[int, Float32Array]:
    """The version and parameters float32 [P] of the newest readable checkpoint in `folder`, or of that of `update`.

    Raises:
        ConfigurationError: no checkpoint is readable, or it is of another network, or there is none of `update`.
    """
    errors, versions = [], checkpoint_updates(folder)
    for path in (folder / f"update-{version}" for version in versions if update in (None, version)):
        try:
            with _for_tensorflow(folder) as opened:
                reader = tf.train.load_checkpoint(str(opened / path.name))
                state, parameters = (
                    json.loads(reader.get_tensor(_STATE_KEY)),
                    np.asarray(reader.get_tensor(_PARAMETERS_KEY)),
                )
            fingerprint, version, size = state["layout_fingerprint"], int(state["ledger"]["updates"]), parameters.size
        except _DAMAGE as error:
            errors.append(f"checkpoint {path} cannot be read: {_in_short(error)}")
            continue
        if fingerprint != layout.fingerprint or size != layout.size:
            raise ConfigurationError(
                f"checkpoint {path} is of another network: it has {size:,} parameters (layout {fingerprint}), the "
                f"settings make one of {layout.size:,} (layout {layout.fingerprint}); leave --network as it was"
            )
        return version, parameters
    raise ConfigurationError("; ".join(errors) or _no_checkpoint(folder))


def _no_checkpoint(folder: Path) -> str:
    return f"no checkpoint in {folder}: the run was stopped before its first one"


def _in_short(error: Exception) -> str:
    # TensorFlow's messages can name a file for each of many tensors.
    return one_line(error, 300)
