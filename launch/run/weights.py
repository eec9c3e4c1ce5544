"""The weights that a run left: its best ones, or those of its last checkpoint."""

import zlib
from typing import Literal
from zipfile import BadZipFile

import numpy as np

from launch.run.folder import RunFolder
from shared.errors import ConfigurationError, setting_error
from shared.layout import ParameterLayout
from shared.types import WeightSnapshot

WeightsName = Literal["auto", "best", "latest"]

# What NumPy's reader was seen to raise for files that are damaged in one way or another.
_DAMAGE = (OSError, EOFError, ValueError, KeyError, TypeError, BadZipFile, zlib.error, NotImplementedError)


def load_weights(folder: RunFolder, which: WeightsName, layout: ParameterLayout) -> tuple[WeightSnapshot, str]:
    """A run's weights, and where they are from in words. Needs TensorFlow.

    Raises:
        ConfigurationError: there are none, or they are damaged or of another network.
    """
    from learner.checkpoint import read_checkpoint

    if which == "best" and not folder.best_weights.is_file():
        raise setting_error("weights", "best", f"{folder.path} has no best weights; use --weights latest")
    if which == "latest" or not folder.best_weights.is_file():
        version, parameters = read_checkpoint(folder.checkpoints, layout)
        return WeightSnapshot(version, parameters), f"the last checkpoint (update {version})"
    try:
        with np.load(folder.best_weights, allow_pickle=False) as best:
            version, parameters = int(best["version"]), best["parameters"].astype(np.float32)
            measure = str(best["measure"])
    except _DAMAGE as error:
        raise ConfigurationError(f"{folder.best_weights} cannot be read: {error}; use --weights latest") from error
    if parameters.shape != (layout.size,):
        raise ConfigurationError(f"{folder.best_weights} is of another network than the run's config.json")
    return WeightSnapshot(version, parameters), f"the weights that were best in {measure} (update {version})"


def best_score(folder: RunFolder, *, otherwise: tuple[float | None, str]) -> tuple[float | None, str]:
    """The mean return that a run's best weights were kept for, and by which measure: training or evaluation.

    `otherwise`, if there are none that can be read.
    """
    try:
        with np.load(folder.best_weights, allow_pickle=False) as best:
            return float(best["mean_return"]), str(best["measure"])
    except _DAMAGE:
        return otherwise
