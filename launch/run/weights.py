"""The weights that a run left: its best ones, or those of its last checkpoint."""

import zlib
from pathlib import Path
from typing import Literal
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

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
    if which == "latest" and folder.ships:
        raise setting_error("weights", "latest", f"{folder.name} has its best weights only; leave --weights out")
    if which == "latest" or not folder.best_weights.is_file():
        version, parameters = read_checkpoint(folder.checkpoints, layout)
        return WeightSnapshot(version, parameters), f"the last checkpoint (update {version})"
    return read_weights(folder.best_weights, layout, "" if folder.ships else "; use --weights latest")


def write_weights(
    path: Path, snapshot: WeightSnapshot, layout: ParameterLayout, source: str, dtype: npt.DTypeLike = np.float32
) -> None:
    """Write weights as an .npz file. `source` says in words where they are from; `dtype` may be float16."""
    np.savez_compressed(
        path,
        version=snapshot.version,
        parameters=snapshot.parameters.astype(dtype),
        layout=layout.fingerprint,
        source=source,
    )


def read_weights(path: Path, layout: ParameterLayout, advice: str = "") -> tuple[WeightSnapshot, str]:
    """Weights float32 [P] from an .npz file, and where they are from. `advice` ends the error of a damaged one.

    Raises:
        ConfigurationError: they are damaged, or of another network.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            version, parameters = int(file["version"]), file["parameters"].astype(np.float32)
            source = (
                str(file["source"])
                if "source" in file
                else f"the weights that were best in {file['measure']} (update {version})"
            )
            fingerprint = str(file["layout"]) if "layout" in file else layout.fingerprint
    except _DAMAGE as error:
        raise ConfigurationError(f"{path} cannot be read: {error}{advice}") from error
    if parameters.shape != (layout.size,) or fingerprint != layout.fingerprint:
        raise ConfigurationError(
            f"{path} is of another network: it has {parameters.size:,} parameters (layout {fingerprint}), the settings "
            f"make one of {layout.size:,} (layout {layout.fingerprint})"
        )
    return WeightSnapshot(version, parameters), source


def best_score(folder: RunFolder, *, otherwise: tuple[float | None, str]) -> tuple[float | None, str]:
    """The mean return that a run's best weights were kept for, and by which measure: training or evaluation.

    `otherwise`, if there are none that can be read.
    """
    try:
        with np.load(folder.best_weights, allow_pickle=False) as best:
            return float(best["mean_return"]), str(best["measure"])
    except _DAMAGE:
        return otherwise
