"""Run folders and curves that are written by a test: settings and rows of metrics, and no weights."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from launch.results.curves import Curve, RunMetrics
from launch.run.events import Progress
from launch.run.folder import RunFolder
from shared.config import EnvironmentConfig, OptimizerConfig, RunConfig


def write_rows(folder: Path, *rows: dict[str, Any]) -> None:
    """Replace the rows of a run. Each has the values of an empty `Progress` and its own."""
    empty = msgspec.to_builtins(Progress())
    (folder / "metrics.jsonl").write_text("".join(json.dumps(empty | row) + "\n" for row in rows))


def written_run(folder: Path, rows: Iterable[dict[str, Any]], config: RunConfig | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    RunFolder(folder).write_config(config or RunConfig())
    (folder / "manifest.json").write_text("{}")
    write_rows(folder, *rows)
    return folder


def curve(
    game: str, seed: int, y: Sequence[float], *, frames: float = 100, rate: float = 1e-3, preset: str = "pong"
) -> Curve:
    """Values `y` of a run at equal distances from 0 to `frames`."""
    config = RunConfig(seed=seed, environment=EnvironmentConfig(id=game), optimizer=OptimizerConfig(learning_rate=rate))
    run = RunMetrics(RunFolder(Path(f"{game}-{seed}")), config, preset, [])
    return Curve(run, np.linspace(0, frames, len(y)), np.array(y))
