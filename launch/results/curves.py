"""Learning curves from the metrics of runs, and medians over seeds."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from launch.run.folder import RunFolder, read_object
from shared.config import RunConfig, flat_settings
from shared.errors import ConfigurationError, setting_error

XAxis = Literal["frames", "agent_steps", "seconds"]
TRAINING_RETURN = "mean_return_100"
EVALUATION_RETURN = "evaluation_return"

_COLUMNS = {"frames": "frames", "agent_steps": "agent_steps", "seconds": "elapsed_seconds"}
_BAND_POINTS = 300
# Columns of every whole row.
_ALWAYS = {
    *_COLUMNS.values(),
    "agent_steps_per_second",
    TRAINING_RETURN,
    "stage_microseconds",
    "agent_steps_dropped",
    "actor_restarts",
}


class Points(NamedTuple):
    """Evaluations of a run, float64 [N]: x of their weights, mean return y and its standard error (0: unknown)."""

    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64]
    error: npt.NDArray[np.float64]


class Curve(NamedTuple):
    """The curve of one run, float64 [N] with x increasing. A curve of training returns includes the evaluations."""

    folder: Path
    config: RunConfig
    preset: str
    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64]
    evaluations: Points | None = None


class Band(NamedTuple):
    """Runs that differ only in their seed, drawn as one line: a median with quartiles.

    `x`, `low`, `centre` and `high` are float64 [M]. `seeds` int64 [M] is the number of runs with data there: runs start
    and end at different x.
    """

    label: str
    curves: tuple[Curve, ...]
    x: npt.NDArray[np.float64]
    seeds: npt.NDArray[np.int64]
    low: npt.NDArray[np.float64]
    centre: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]


def read_rows(folder: RunFolder) -> list[dict[str, Any]]:
    """The rows of a run's metrics, with increasing frames.

    A resumed run repeats the rows after its checkpoint, and the later ones count. Incomplete rows are left out. A run
    without a row is refused.
    """
    rows: list[dict[str, Any]] = []
    if folder.metrics.is_file():
        for line in folder.metrics.read_text(encoding="utf-8", errors="replace").splitlines():
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
    """The curve of the metric `y` of the run in a folder."""
    folder = RunFolder(path)
    return curve_of(path, folder.read_settings("run"), read_rows(folder), x, y)


def curve_of(path: Path, config: RunConfig, rows: Sequence[dict[str, Any]], x: XAxis, y: str) -> Curve:
    """The curve of the metric `y` from the rows of a run; a ConfigurationError if no row has it."""
    evaluations, preset = _evaluations(rows, x), preset_of(RunFolder(path))
    if y == EVALUATION_RETURN and evaluations is not None:
        return Curve(path, config, preset, evaluations.x, evaluations.y)
    values = [(row[_COLUMNS[x]], row[y]) for row in rows if isinstance(row.get(y), int | float)]
    if not values and y in (TRAINING_RETURN, EVALUATION_RETURN):
        episodes = rows[-1].get("episodes", 0)
        why = f"none of its {episodes:,} episodes has a finite return" if episodes else "no training episode has ended"
        if y == EVALUATION_RETURN:
            why = "no evaluation of this run has a return"
        raise ConfigurationError(f"{path}: {why}, so that there is no curve yet")
    if not values:
        numbers = sorted({name for row in rows for name, value in row.items() if isinstance(value, int | float)})
        raise setting_error("y", y, f"{path} has no such figures; it has {', '.join(numbers)}")
    xs, ys = np.array(values, np.float64).T
    return Curve(path, config, preset, xs, ys, evaluations if y == TRAINING_RETURN else None)


def lag_counts(rows: Sequence[dict[str, Any]]) -> Counter[int]:
    """Number of gradients by policy lag."""
    counts: Counter[int] = Counter()
    for row in rows:
        counts.update({int(lag): count for lag, count in row.get("policy_lag_counts", {}).items()})
    return counts


def evaluation_points(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The evaluations of a run, in the order of their weights; see `launch.run.stopping.Evaluations.receive`."""
    found = {point["frames"]: point for row in rows for point in row.get("evaluations") or ()}
    return [found[frames] for frames in sorted(found)]


def _evaluations(rows: Sequence[dict[str, Any]], x: XAxis) -> Points | None:
    # The mean of returns that are not finite is null.
    known = [point for point in evaluation_points(rows) if point["mean_return"] is not None]
    points = [(p[_COLUMNS[x]], p["mean_return"], p["standard_error"] or 0.0) for p in known]
    return Points(*np.array(points, np.float64).T) if points else None


def bands(curves: Sequence[Curve]) -> list[Band]:
    """Medians and quartiles of runs that differ only in their seed, wherever at least two of several have data."""
    groups = same_but_for_seed([(curve.config, curve.preset) for curve in curves])
    return [_band(label, [curves[i] for i in members]) for label, members in groups]


def preset_of(folder: RunFolder) -> str:
    """The preset that a run started from; empty if its manifest cannot be read."""
    return str(read_object(folder.manifest).get("preset", ""))


def same_but_for_seed(runs: Sequence[tuple[RunConfig, str]]) -> list[tuple[str, list[int]]]:
    """Positions of the runs, each with its preset, whose settings differ only in the seed.

    The label of each group has the environment; the preset, where groups of this environment have several; and the
    settings in which groups of both differ.
    """
    groups: dict[bytes, list[int]] = {}
    for i, (config, _) in enumerate(runs):
        groups.setdefault(msgspec.json.encode(replace(config, seed=0)), []).append(i)
    firsts = [(replace(runs[members[0]][0], seed=0), runs[members[0]][1]) for members in groups.values()]
    labels = []
    for config, preset in firsts:
        here = [other for other in firsts if other[0].environment.id == config.environment.id]
        alike = [other for other, its_preset in here if its_preset == preset]
        presets = [preset or "no preset"] if len(alike) < len(here) else []
        labels.append(", ".join([config.environment.id, *presets, *_differences(alike)[alike.index(config)]]))
    return list(zip(labels, groups.values(), strict=True))


def _differences(configs: Sequence[RunConfig]) -> list[list[str]]:
    """The settings in which configurations differ, besides the environment: `learning_rate 0.1`, for each of them."""
    flat = [flat_settings(config) for config in configs]
    names = [name for name in flat[0] if len({str(values.get(name)) for values in flat}) > 1]
    return [
        [f"{name.rpartition('.')[2]} {values.get(name)}" for name in names if name != "environment.id"]
        for values in flat
    ]


def _band(label: str, curves: Sequence[Curve]) -> Band:
    least = min(2, len(curves))
    first = sorted(curve.x[0] for curve in curves)[least - 1]
    last = sorted(curve.x[-1] for curve in curves)[-least]
    x = np.linspace(first, last, _BAND_POINTS) if last > first else np.array([first])
    # The rows of seeds are not at the same frames.
    close = (last - first) / 100
    # [runs, M], NaN where a run has no data: its last value does not predict later ones.
    values = np.array(
        [
            np.where((curve.x[0] - close <= x) & (x <= curve.x[-1] + close), np.interp(x, curve.x, curve.y), np.nan)
            for curve in curves
        ]
    )
    seeds = np.isfinite(values).sum(axis=0)
    x, seeds, values = x[seeds >= least], seeds[seeds >= least], values[:, seeds >= least]
    low, median, high = np.nanpercentile(values, (25, 50, 75), axis=0).reshape(3, len(x))
    return Band(label, tuple(curves), x, seeds, low, median, high)
