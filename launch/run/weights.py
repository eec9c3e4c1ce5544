"""The weights of a run: to play, to start another one from, and the best ones."""

import math
import zlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from launch.files import replacement
from launch.run.folder import RunFolder, agent_steps_learned, changed_modules, read_object
from launch.tensorflow_setup import prepare_to_read_weights
from shared.config import RunConfig
from shared.errors import ConfigurationError, alternatives, one_line, setting_error
from shared.layout import ParameterLayout
from shared.types import WeightSnapshot

if TYPE_CHECKING:
    from actors.environments import EnvironmentSpec

# NumPy quotes a damaged header, of any length.
_MAX_ERROR_CHARACTERS = 300
# Exceptions of NumPy's reader for damaged files, as seen with files that were cut or altered.
_DAMAGE = (OSError, EOFError, ValueError, KeyError, TypeError, BadZipFile, zlib.error, RuntimeError)

# The number of a checkpoint's updates.
WeightsName = int | Literal["auto", "best", "latest"]
_NAMES: tuple[str, ...] = get_args(get_args(WeightsName)[1])
TRAINING = "training"
"""The measure of weights that were best by the mean return of training; others are by evaluations."""


def load_weights(folder: RunFolder, which: WeightsName, layout: ParameterLayout) -> tuple[WeightSnapshot, str]:
    """A run's weights, and a description of their source. Imports TensorFlow.

    The description names the modules of the user, imported before, that have changed since the run began.

    Raises:
        ConfigurationError: the run has none, or they are damaged or of another network, or have no such name.
    """
    snapshot, source = _named_weights(folder, which, layout)
    changed = changed_modules(folder, folder.read_settings().environment)
    return snapshot, "; ".join((source, *changed))


def _named_weights(folder: RunFolder, which: WeightsName, layout: ParameterLayout) -> tuple[WeightSnapshot, str]:
    from learner.checkpoint import checkpoint_updates, read_checkpoint

    if isinstance(which, str) and which not in _NAMES:
        raise setting_error("weights", which, f"must be {alternatives((*_NAMES, 'a number of updates'))}")
    if which in ("auto", "best") and folder.best_weights.is_file():
        return read_weights(folder.best_weights, layout, "" if folder.ships else "; use --weights latest")
    if which == "best":
        raise setting_error("weights", "best", f"{folder.path} has no best weights; use --weights latest")
    if isinstance(which, str):
        version, parameters = read_checkpoint(folder.checkpoints, layout)
        return WeightSnapshot(version, parameters), f"the last checkpoint (update {version})"
    updates = checkpoint_updates(folder.checkpoints)
    if updates and which not in updates:
        nearest = " and ".join(map(str, sorted(sorted(updates, key=lambda update: abs(update - which))[:2])))
        raise setting_error("weights", which, f"no checkpoint is of this update; the nearest are of {nearest}")
    version, parameters = read_checkpoint(folder.checkpoints, layout, which)
    return WeightSnapshot(version, parameters), f"the checkpoint of update {version}"


def write_weights(
    path: Path, snapshot: WeightSnapshot, layout: ParameterLayout, source: str, dtype: npt.DTypeLike = np.float32
) -> None:
    """Write weights as an .npz file. `source` describes their source; `dtype` may be float16."""
    version, parameters = snapshot.version, snapshot.parameters.astype(dtype)
    np.savez_compressed(path, version=version, parameters=parameters, layout=layout.fingerprint, source=source)


def read_weights(path: Path, layout: ParameterLayout, advice: str = "") -> tuple[WeightSnapshot, str]:
    """Weights float32 [P] from an .npz file, and a description of their source.

    A damaged file (`advice` ends the message), or weights of another network, are a ConfigurationError.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            version, parameters = int(file["version"]), file["parameters"].astype(np.float32)
            if "source" in file:
                source, fingerprint = str(file["source"]), str(file["layout"])
            else:
                source = f"the weights that were best in {file['measure']} (update {version})"
                fingerprint = layout.fingerprint
    except _DAMAGE as error:
        raise ConfigurationError(f"{path} cannot be read: {one_line(error, _MAX_ERROR_CHARACTERS)}{advice}") from error
    if parameters.shape != (layout.size,) or fingerprint != layout.fingerprint:
        raise ConfigurationError(
            f"{path} is of another network, or of other observations or actions: it has {parameters.size:,} parameters "
            f"(layout {fingerprint}), and {layout.size:,} (layout {layout.fingerprint}) are needed"
        )
    return WeightSnapshot(version, parameters), source


class FirstWeights(NamedTuple):
    """The weights that a new run starts from: those of another run, whose mean observation is in `spec`.

    `origin`: `started_from` in the manifest.
    """

    origin: dict[str, Any]
    snapshot: WeightSnapshot
    layout: ParameterLayout
    spec: "EnvironmentSpec"


def weights_to_start_from(config: RunConfig, spec: "EnvironmentSpec", other: RunFolder) -> FirstWeights:
    """The best weights of another run, for a new run with these settings.

    Raises:
        ConfigurationError: it has none or another network.
    """
    before = other.read_settings("start_from")
    new_network = asdict(config.network)
    for name, was in asdict(before.network).items():
        if was != new_network[name]:
            problem = f"{other.name} was trained with {was}; leave it so"
            raise setting_error(f"network.{name}", new_network[name], problem)
    spec = other.as_trained(config, spec)
    prepare_to_read_weights(config)
    from actors.policy import Policy

    layout = Policy(config, spec).layout
    snapshot, source = load_weights(other, "auto", layout)
    origin = {"run": other.name, "weights": source, "agent_steps": agent_steps_learned(other)}
    if before.environment.id == config.environment.id:
        # This run's first returns are those of trained play.
        origin["untrained_mean_return"] = read_object(other.summary).get("untrained_mean_return")
    return FirstWeights(origin, snapshot, layout, spec)


class BestWeights:
    """best.npz: the weights with the highest mean return, and its measure.

    An evaluation replaces weights that were measured by training, or by an evaluation of another policy; a mean return
    of training has to be higher. A resumed run goes on with the weights in the file, which may be newer than its
    checkpoint.
    """

    def __init__(self, folder: RunFolder, log: Callable[[str], None]) -> None:
        self._file, self._log = folder.best_weights, log
        # The measure and the mean return. A file that is missing or damaged has none.
        self._best: tuple[str, float] | None = None
        if not self._file.exists():
            return
        try:
            with np.load(self._file, allow_pickle=False) as best:
                self._best = str(best["measure"]), float(best["mean_return"])
        except _DAMAGE as error:
            problem = one_line(error, _MAX_ERROR_CHARACTERS)
            log(f"warning: {self._file.name} cannot be read ({problem}); the next best weights replace it")

    @property
    def by_evaluation(self) -> bool:
        """True if an evaluation measured them."""
        return self._best is not None and self._best[0] != TRAINING

    def keep_if_best(self, snapshot: WeightSnapshot, mean: float | None, measure: str, *, always: bool = False) -> None:
        """Write the weights if they are better than all before, or in any case if `always`.

        Weights without a finite mean return are never the best.
        """
        if mean is None or not math.isfinite(mean):
            return
        if self._best is not None and not always:
            measured_by, best = self._best
            if mean <= best and measure in (measured_by, TRAINING):
                return
        try:
            with replacement(self._file) as part:
                np.savez(
                    part, version=snapshot.version, parameters=snapshot.parameters, mean_return=mean, measure=measure
                )
            # After the file: weights that could not be written are not the best ones.
            self._best = measure, mean
        except OSError as error:
            self._log(f"warning: the best weights could not be written: {error.strerror}; training goes on")
