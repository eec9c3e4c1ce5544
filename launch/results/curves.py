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


TRAINING_RETURN = "mean_return_100"
EVALUATION_RETURN = "evaluation_return"


class Points(NamedTuple):
    """The evaluations of a run: x of their weights, mean return y and its standard error (0: unknown), float64 [N]."""

    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64]
    error: npt.NDArray[np.float64]


class Curve(NamedTuple):
    """One run: x and y float64 [N], x increasing; beside training returns, the evaluations."""

    folder: Path
    config: RunConfig
    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64]
    evaluations: Points | None = None


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
    config = folder.read_settings("run")
    rows = read_rows(folder)
    evaluations = _evaluations(rows, x)
    if y == EVALUATION_RETURN and evaluations is not None:
        return Curve(path, config, evaluations.x, evaluations.y)
    values = [(row[_COLUMNS[x]], row[y]) for row in rows if isinstance(row.get(y), int | float)]
    if not values and y == TRAINING_RETURN:
        raise ConfigurationError(f"{path}: no training episode has ended in this run, so that there is no curve yet")
    if not values:
        numbers = sorted({name for row in rows for name, value in row.items() if isinstance(value, int | float)})
        raise setting_error("y", y, f"{path} has no such figures; it has {', '.join(numbers)}")
    xs, ys = np.array(values, np.float64).T
    return Curve(path, config, xs, ys, evaluations if y == TRAINING_RETURN else None)


def evaluation_points(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The evaluations of a run, in the order of the weights that they are of; see `launch.run.evaluations.Taken`.

    Rows of older versions have no more than the mean of the last one: it was new in the first row that shows it.
    """
    found: dict[int, dict[str, Any]] = {}
    before = None
    for row in rows:
        points = row.get("evaluations")
        if points is None and row.get(EVALUATION_RETURN) not in (None, before):
            when = {name: row[name] for name in _COLUMNS.values()}
            points = [{**when, "mean_return": row[EVALUATION_RETURN], "standard_error": None}]
        before = row.get(EVALUATION_RETURN)
        found.update({point["frames"]: point for point in points or ()})
    return [found[frames] for frames in sorted(found)]


def _evaluations(rows: Sequence[dict[str, Any]], x: XAxis) -> Points | None:
    points = [(p[_COLUMNS[x]], p["mean_return"], p["standard_error"] or 0.0) for p in evaluation_points(rows)]
    return Points(*np.array(points, np.float64).T) if points else None


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
    """The environment, and the settings in which groups of the same environment differ."""
    words: dict[int, list[str]] = {}
    for environment in {config.environment.id for config in configs}:
        same = [i for i, config in enumerate(configs) if config.environment.id == environment]
        words.update(zip(same, differences([_without_seed(configs[i]) for i in same]), strict=True))
    return [", ".join([config.environment.id, *words[i]]) for i, config in enumerate(configs)]


def differences(configs: Sequence[RunConfig]) -> list[list[str]]:
    """For each, the settings besides the environment in which any of them differ, in words like `learning_rate 0.1`."""
    flat = [flat_settings(config) for config in configs]
    names = [name for name in flat[0] if len({str(values.get(name)) for values in flat}) > 1]
    return [
        [f"{name.rpartition('.')[2]} {values.get(name)}" for name in names if name != "environment.id"]
        for values in flat
    ]
