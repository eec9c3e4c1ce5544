"""Checkpoints by TensorFlow's own library: tensors and JSON, atomic, nothing that can execute."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from shared.errors import ConfigurationError
from shared.layout import ParameterLayout
from shared.types import Float32Array

_STATE_KEY = "state/.ATTRIBUTES/py_state"
_PARAMETERS_KEY = "variables/parameters/.ATTRIBUTES/VARIABLE_VALUE"


class _JsonState(tf.train.experimental.PythonState):
    """Plain values that ride in a checkpoint as one JSON string."""

    def __init__(self, save: Callable[[], dict[str, Any]], restore: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self._save = save
        self._restore = restore

    def serialize(self) -> str:
        return json.dumps(self._save())

    def deserialize(self, string_value: str) -> None:
        self._restore(json.loads(string_value))


class Checkpoints:
    """The newest checkpoints of a run, in one folder. One is visible to `restore` only after it is written whole.

    Args:
        folder: made if it is missing.
        keep: how many stay.
        variables: the tensors, by name.
        save_state, restore_state: give and take everything else, as plain values that JSON can hold. They contain
            what `read_checkpoint` looks for: `layout_fingerprint`, and `updates` in `ledger`.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        variables: dict[str, tf.Variable],
        save_state: Callable[[], dict[str, Any]],
        restore_state: Callable[[dict[str, Any]], None],
    ) -> None:
        self._checkpoint = tf.train.Checkpoint(variables=variables, state=_JsonState(save_state, restore_state))
        self._manager = tf.train.CheckpointManager(
            self._checkpoint, str(folder), max_to_keep=keep, checkpoint_name="update"
        )

    def save(self, version: int) -> str:
        """Write a checkpoint, numbered by the version of its weights. Returns its path."""
        return self._manager.save(checkpoint_number=version)

    def restore(self) -> None:
        """Restore the newest checkpoint.

        Raises:
            ConfigurationError: there is none.
        """
        newest = self._manager.latest_checkpoint
        if newest is None:
            raise ConfigurationError(f"no checkpoint in {self._manager.directory}")
        self._checkpoint.restore(newest).assert_consumed()


def read_checkpoint(folder: Path, layout: ParameterLayout) -> tuple[int, Float32Array]:
    """The version and parameters float32 [P] of the newest checkpoint in `folder`.

    Raises:
        ConfigurationError: there is none, it cannot be read, or it holds the weights of another network.
    """
    newest = tf.train.latest_checkpoint(str(folder))
    if newest is None:
        raise ConfigurationError(f"no checkpoint in {folder}: the run was stopped before its first one")
    try:
        reader = tf.train.load_checkpoint(newest)
        state = json.loads(reader.get_tensor(_STATE_KEY))
        parameters = np.asarray(reader.get_tensor(_PARAMETERS_KEY))
        fingerprint, version = state["layout_fingerprint"], int(state["ledger"]["updates"])
    except (tf.errors.OpError, ValueError, KeyError) as error:
        raise ConfigurationError(f"checkpoint {newest} cannot be read: {error}") from error
    if fingerprint != layout.fingerprint or parameters.shape != (layout.size,):
        raise ConfigurationError(
            f"checkpoint {newest} is of another network: it has {parameters.size:,} parameters (layout {fingerprint}), "
            f"the settings make one of {layout.size:,} (layout {layout.fingerprint}); leave --network as it was"
        )
    return version, parameters
