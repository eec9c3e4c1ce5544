"""Learning curves from runs' metrics, and the band that several seeds of one setting make."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from launch.run.folder import RunFolder
from shared.config import RunConfig, flat_settings
from shared.errors import ConfigurationError, setting_error

XAxis = Literal["frames", "agent_steps", "seconds"]
_COLUMNS = {"frames": "frames", "agent_steps": "agent_steps", "seconds": "elapsed_seconds"}
_BAND_POINTS = 300
# A row that lacks one of these is damaged.
_ALWAYS = {
    "frames",
    "agent_steps",
    "elapsed_seconds",
    "agent_steps_per_second",
    "mean_return_100",
    "stage_microseconds",
    "agent_steps_dropped",
    "actor_restarts",
}


class Curve(NamedTuple):
    """One run: x and y float64 [N], x increasing."""

    folder: Path
    config: RunConfig
    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64]


class Band(NamedTuple):
    """Runs that differ in their seed only. `x`, quartiles and `median` are float64 [M], where all of them have data."""

    label: str
    curves: tuple[Curve, ...]
    x: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]
    median: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]


def read_rows(folder: RunFolder) -> list[dict[str, Any]]:
    """A run's rows of metrics, in the order of its frames.

    After a resume the rows past the checkpoint are played again: the later ones count. Rows that were cut off
    and damaged ones are left out.

    Raises:
        ConfigurationError: there are none.
    """
    rows: list[dict[str, Any]] = []
    if folder.metrics.is_file():
        for line in folder.metrics.read_text(errors="replace").splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if not isinstance(row, dict) or not row.keys() >= _ALWAYS or not isinstance(row["frames"], int):
                continue
            while rows and rows[-1]["frames"] >= row["frames"]:
                rows.pop()
            rows.append(row)
    if not rows:
        raise ConfigurationError(f"{folder.path} has no metrics yet: {folder.metrics.name} is empty or missing")
    return rows


def read_curve(path: Path, x: XAxis, y: str) -> Curve:
    """One run's curve of the metric `y`.

    Raises:
        ConfigurationError: the folder is not a run's, or has nothing of that name.
    """
    folder = RunFolder(path)
    config = folder.read_config("run")
    rows = read_rows(folder)
    values = [(row[_COLUMNS[x]], row[y]) for row in rows if isinstance(row.get(y), int | float)]
    if not values:
        numbers = sorted({name for row in rows for name, value in row.items() if isinstance(value, int | float)})
        raise setting_error("y", y, f"{path} has no such figures; it has {', '.join(numbers)}")
    xs, ys = np.array(values, np.float64).T
    return Curve(path, config, xs, ys)


def bands(curves: Sequence[Curve]) -> list[Band]:
    """Put the runs together that differ in their seed only, and name each group by what sets it apart."""
    groups: dict[bytes, list[Curve]] = {}
    for curve in curves:
        groups.setdefault(msgspec.json.encode(_without_seed(curve.config)), []).append(curve)
    members = list(groups.values())
    labels = _labels([group[0].config for group in members])
    return [make_band(label, group) for label, group in zip(labels, members, strict=True)]


def make_band(label: str, curves: Sequence[Curve]) -> Band:
    """Median and quartiles of one curve or more, under a name."""
    first = max(curve.x[0] for curve in curves)
    last = min(curve.x[-1] for curve in curves)
    x = np.linspace(first, max(first, last), _BAND_POINTS)
    low, median, high = np.percentile([np.interp(x, curve.x, curve.y) for curve in curves], (25, 50, 75), axis=0)
    return Band(label, tuple(curves), x, low, median, high)


def _without_seed(config: RunConfig) -> RunConfig:
    return replace(config, seed=0)


def _labels(configs: Sequence[RunConfig]) -> list[str]:
    """The environment, and the settings in which the groups differ."""
    flat = [flat_settings(_without_seed(config)) for config in configs]
    differing = [name for name in flat[0] if len({str(values.get(name)) for values in flat}) > 1]
    labels = []
    for config, values in zip(configs, flat, strict=True):
        shown = [f"{name.rpartition('.')[2]} {values.get(name)}" for name in differing if name != "environment.id"]
        labels.append(", ".join([config.environment.id, *shown]))
    return labels
