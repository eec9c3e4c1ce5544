"""Learning curves from the metrics of runs, and medians over seeds."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from launch.run.folder import RunFolder, object_of, read_object
from shared.config import RunConfig, flat_settings
from shared.errors import ConfigurationError, setting_error

XAxis = Literal["frames", "agent_steps", "seconds"]
TRAINING_RETURN = "mean_return_100"
EVALUATION_RETURN = "evaluation_return"

_COLUMNS = {"frames": "frames", "agent_steps": "agent_steps", "seconds": "elapsed_seconds"}
_BAND_POINTS = 300


class RunMetrics(NamedTuple):
    """The settings and the rows of a run. `preset`: its starting point; empty if its manifest cannot be read."""

    folder: RunFolder
    config: RunConfig
    preset: str
    rows: list[dict[str, Any]]


class Curve(NamedTuple):
    """A metric of one run, float64 [N] with x increasing.

    For training returns `evaluations` float64 [3, E] has x of the weights, mean return and standard error (0: unknown).
    """

    run: RunMetrics
    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64]
    evaluations: npt.NDArray[np.float64] = np.empty((3, 0))


class Band(NamedTuple):
    """Runs that differ only in their seed, drawn as one line: a median with quartiles.

    `x` and the quartiles are float64 [M], where all runs have data. A seed that has ended is often a good one: without
    it the median of the others would fall.
    """

    label: str
    curves: tuple[Curve, ...]
    x: npt.NDArray[np.float64]
    lower_quartile: npt.NDArray[np.float64]
    median: npt.NDArray[np.float64]
    upper_quartile: npt.NDArray[np.float64]

    @property
    def environment(self) -> str:
        return self.curves[0].run.config.environment.id


def read_metrics(path: Path) -> RunMetrics:
    """The metrics of the run in a folder; a ConfigurationError without a row."""
    folder = RunFolder(path)
    config, rows = folder.read_settings("run"), read_rows(folder)
    return RunMetrics(folder, config, str(read_object(folder.manifest).get("preset", "")), rows)


def read_rows(folder: RunFolder) -> list[dict[str, Any]]:
    """The rows of a run's metrics, in the order of frames.

    A later row counts in place of those with more frames, and of one with the same frames and seconds. Half a line, of
    a killed process, is left out. A run without a row is refused.
    """
    rows: list[dict[str, Any]] = []
    for line in folder.metrics.read_bytes().splitlines() if folder.metrics.is_file() else ():
        if row := object_of(line):
            while rows and not _follows(row, rows[-1]):
                rows.pop()
            rows.append(row)
    if not rows:
        raise ConfigurationError(f"{folder.path} has no metrics yet: {folder.metrics.name} has no whole row")
    return rows


def _follows(row: dict[str, Any], last: dict[str, Any]) -> bool:
    now, before = ((each["frames"], each.get("elapsed_seconds", 0.0)) for each in (row, last))
    return now > before


def curve_of(run: RunMetrics, x: XAxis, y: str) -> Curve:
    """The curve of the metric `y`; a ConfigurationError if no row has it."""
    # The mean of returns that are not finite is null.
    finite_points = [point for point in evaluation_points(run.rows) if point["mean_return"] is not None]
    points = [(point[_COLUMNS[x]], point["mean_return"], point["standard_error"] or 0.0) for point in finite_points]
    evaluations = np.array(points, np.float64).reshape(-1, 3).T
    if y == EVALUATION_RETURN and points:
        return Curve(run, evaluations[0], evaluations[1])
    values = [(row[_COLUMNS[x]], row[y]) for row in run.rows if isinstance(row.get(y), int | float)]
    if values:
        xs, ys = np.array(values, np.float64).T
        # Seconds after a resume begin with those of the checkpoint, which may be fewer than a row's before.
        xs = np.maximum.accumulate(xs)
        return Curve(run, xs, ys, evaluations) if y == TRAINING_RETURN else Curve(run, xs, ys)
    if y == TRAINING_RETURN:
        raise ConfigurationError(f"{run.folder.path}: no training episode with a finite return has ended")
    numbers = sorted({name for row in run.rows for name, value in row.items() if isinstance(value, int | float)})
    raise setting_error("y", y, f"{run.folder.path} has no such figures; it has {', '.join(numbers)}")


def lag_counts(rows: Sequence[dict[str, Any]]) -> Counter[int]:
    counts: Counter[int] = Counter()
    for row in rows:
        counts.update({int(lag): n for lag, n in row.get("policy_lag_counts", {}).items()})
    return counts


def evaluation_points(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The evaluations of a run, in the order of their weights; see `launch.run.stopping.Evaluations.receive`."""
    points = {point["frames"]: point for row in rows for point in row.get("evaluations") or ()}
    return [points[frames] for frames in sorted(points)]


def bands(curves: Sequence[Curve]) -> list[Band]:
    groups = []
    for label, members in same_but_for_seed([curve.run for curve in curves]):
        alike = tuple(curves[i] for i in members)
        x = common_x(alike)
        values = [np.interp(x, curve.x, curve.y) for curve in alike]
        groups.append(Band(label, alike, x, *np.percentile(values, (25, 50, 75), axis=0)))
    return groups


def common_x(curves: Sequence[Curve]) -> npt.NDArray[np.float64]:
    """Points float64 [M] at equal distances where all curves have data; empty where they do not overlap."""
    first, last = max(curve.x[0] for curve in curves), min(curve.x[-1] for curve in curves)
    return np.linspace(first, last, _BAND_POINTS if last >= first else 0)


def same_but_for_seed(runs: Sequence[RunMetrics]) -> list[tuple[str, list[int]]]:
    """Positions of the runs whose settings differ only in the seed.

    The label of each group has the environment; the preset, where groups of this environment have several; and the
    settings in which groups of both differ.
    """
    groups: dict[bytes, list[int]] = {}
    for i, run in enumerate(runs):
        groups.setdefault(msgspec.json.encode(replace(run.config, seed=0)), []).append(i)
    firsts = [runs[members[0]] for members in groups.values()]
    labels = []
    for run in firsts:
        environment = run.config.environment.id
        here = [other for other in firsts if other.config.environment.id == environment]
        alike = [flat_settings(other.config) for other in here if other.preset == run.preset]
        label = [environment, *([run.preset or "no preset"] if len(alike) < len(here) else [])]
        for name, value in flat_settings(run.config).items():
            if name != "seed" and any(str(other.get(name)) != str(value) for other in alike):
                label.append(f"{name.rpartition('.')[2]} {value}")
        labels.append(", ".join(label))
    return list(zip(labels, groups.values(), strict=True))
