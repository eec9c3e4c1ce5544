"""Trackers get the rows that metrics.jsonl gets, under names in groups."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launch.on_ray import prometheus as ray_metrics
from launch.on_ray.prometheus import RayMetrics
from launch.run.progress import Progress
from launch.run.trackers import JsonLines, MLflow, WeightsAndBiases, scalars
from shared.config import RunConfig, flat_settings

ROW = Progress(
    frames=400,
    agent_steps=100,
    updates=5,
    mean_return_100=12.5,
    policy_lag_counts={0: 3, 2: 1},
    agent_steps_dropped={"too_old": 20},
    stage_microseconds={"acting": 40.0},
    statistics={"entropy": 1.5},
)


def test_scalars_have_their_groups() -> None:
    values = dict(scalars(ROW))
    assert values["return/training_mean_100"] == 12.5
    assert values["learning/entropy"] == 1.5
    assert values["agent_steps_dropped/too_old"] == 20
    assert values["stage_microseconds/acting"] == 40.0
    # What is not known yet is no point on a curve.
    assert "return/evaluation_mean" not in values


def test_a_row_of_json(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path)
    sink.write(ROW)
    sink.close()
    row = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert row["entropy"] == 1.5
    assert row["policy_lag_counts"] == {"0": 3, "2": 1}


def test_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[dict[str, Any]] = []
    started: dict[str, Any] = {}

    def init(**options: Any) -> SimpleNamespace:
        started.update(options)
        return SimpleNamespace(log=logged.append, finish=lambda: logged.append({"finished": True}))

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    sink = WeightsAndBiases(tmp_path, RunConfig())
    sink.write(ROW)
    sink.close()
    assert started["config"]["optimizer.learning_rate"] == RunConfig().optimizer.learning_rate
    assert logged[0]["frames"] == 400
    assert logged[0]["return/training_mean_100"] == 12.5
    assert logged[1] == {"finished": True}


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, Any, Any]] = []

    def record(name: str) -> Any:
        return lambda *args, **options: calls.append((name, args, options))

    names = ("set_experiment", "start_run", "log_params", "log_metrics", "end_run")
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(**{name: record(name) for name in names}))
    sink = MLflow(tmp_path, RunConfig())
    sink.write(ROW)
    sink.close()
    assert [call[0] for call in calls] == list(names)
    assert calls[2][1] == (flat_settings(RunConfig()),)
    assert calls[3][1][0]["return/training_mean_100"] == 12.5
    assert calls[3][2] == {"step": 400}


def test_rays_counters_grow_by_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, float, dict[str, str]]] = []

    class Metric:
        def __init__(self, name: str, _text: str, tag_keys: tuple[str, ...]) -> None:
            self.name = name
            assert "run" in tag_keys

        def set_default_tags(self, tags: dict[str, str]) -> None:
            assert tags == {"run": "pong"}

        def inc(self, value: float, tags: dict[str, str]) -> None:
            seen.append((self.name, value, tags))

        def set(self, value: float) -> None:
            seen.append((self.name, value, {}))

    monkeypatch.setattr(ray_metrics, "Counter", Metric)
    monkeypatch.setattr(ray_metrics, "Gauge", Metric)
    sink = RayMetrics("pong")
    sink.write(ROW)
    assert ("tributary_frames", 400, {}) in seen
    assert ("tributary_agent_steps_dropped", 20, {"reason": "too_old"}) in seen
    assert ("tributary_mean_return_100", 12.5, {}) in seen
    seen.clear()
    # A learner that went on from an earlier checkpoint: what is done again does not count twice.
    sink.write(replace(ROW, frames=300, agent_steps_dropped={"too_old": 10}))
    sink.write(replace(ROW, frames=450, mean_return_100=None))
    assert [(name, value) for name, value, _ in seen if name == "tributary_frames"] == [("tributary_frames", 50)]
    assert not [name for name, _, tags in seen if tags]
