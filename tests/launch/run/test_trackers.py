"""Trackers get the rows of metrics.jsonl; a run ends and is saved in spite of their errors and delays."""

import json
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
from sessions import messages_of, session
from tensorboard.backend.event_processing.event_accumulator import TENSORS, EventAccumulator

from launch.on_ray import prometheus as ray_metrics
from launch.on_ray.prometheus import RayMetrics
from launch.run.events import Progress
from launch.run.session import TrainingSession
from launch.run.trackers import (
    TensorBoard,
    Trackers,
    WeightsAndBiases,
    check_trackers,
    evaluation_scalars,
    name_and_group,
    scalars,
)
from shared.config import RunConfig, TrackingConfig
from shared.errors import ConfigurationError
from shared.types import Video

ROW = Progress(
    frames=400,
    agent_steps=100,
    updates=5,
    mean_return_100=12.5,
    policy_lag_counts={0: 3, 2: 1},
    agent_steps_dropped={"too_old": 20},
    stage_microseconds={"acting": 40.0},
    statistics={"entropy": 1.5},
    info={"success": 0.25},
)
POINT = {
    "frames": 320,
    "agent_steps": 80,
    "elapsed_seconds": 2.0,
    "mean_return": 11.0,
    "median_return": 10.0,
    "standard_error": 0.5,
    "collapsed_episodes": None,
}
EVALUATED = replace(ROW, evaluations=[POINT])
VIDEO = Video(b"GIF89a", width=160, height=210)


def test_scalars_have_their_groups() -> None:
    values = dict(scalars(ROW))
    assert values["return/training_mean_100"] == 12.5
    assert values["learning/entropy"] == 1.5
    assert values["info/success"] == 0.25
    assert values["agent_steps_dropped/too_old"] == 20
    assert values["stage_microseconds/acting"] == 40.0
    # What is not known yet is no point on a curve.
    assert "learning/gradient_norm" not in values
    assert dict(evaluation_scalars(POINT)) == {
        "return/evaluation_mean": 11.0,
        "return/evaluation_median": 10.0,
        "return/evaluation_standard_error": 0.5,
    }


def test_a_number_that_is_not_finite_is_no_point_on_a_curve() -> None:
    nan, inf = float("nan"), float("inf")
    row = replace(ROW, mean_return_100=None, gradient_norm=inf, statistics={"entropy": nan}, info={"success": -inf})
    values = dict(scalars(row))
    gone = {"return/training_mean_100", "learning/gradient_norm", "learning/entropy", "info/success"}
    assert not gone & values.keys()
    assert values["asynchrony/policy_lag_mean"] == 0.0
    point = POINT | {"mean_return": None, "median_return": nan, "standard_error": None}
    assert evaluation_scalars(point) == []


def test_tensorboard_has_an_evaluation_at_the_frames_of_its_weights_and_a_video_of_its_size(tmp_path: Path) -> None:
    tracker = TensorBoard(tmp_path, RunConfig())
    tracker.write(EVALUATED)
    tracker.write_video(VIDEO, frames=400)
    tracker.close()
    events = EventAccumulator(str(tmp_path), size_guidance={TENSORS: 0}).Reload()
    (training,), (evaluation,) = (events.Tensors(f"return/{n}") for n in ("training_mean_100", "evaluation_mean"))
    assert (training.step, evaluation.step) == (400, 320)
    assert float(tf.make_ndarray(evaluation.tensor_proto)) == 11.0
    (shown,) = events.Tensors("evaluation/episode")
    assert (shown.step, list(shown.tensor_proto.string_val)) == (400, [b"160", b"210", b"GIF89a"])


def test_weights_and_biases(tmp_path: Path, wandb: "FakeWandb") -> None:
    config, folder = RunConfig(tracking=TrackingConfig(project="games")), tmp_path / "ours" / "seed-1"
    folder.mkdir(parents=True)
    tracker = WeightsAndBiases(folder, config)
    tracker.write(EVALUATED)
    tracker.write_video(VIDEO, 320)
    tracker.close()
    (started,) = wandb.started
    assert (started["project"], started["group"], started["name"]) == ("games", "ours", "ours/seed-1")
    assert started["*"] == "frames"
    assert started["config"]["optimizer.learning_rate"] == RunConfig().optimizer.learning_rate
    assert wandb.logged[0]["frames"] == 400
    assert wandb.logged[0]["return/training_mean_100"] == 12.5
    assert wandb.logged[1] == {"frames": 320, **dict(evaluation_scalars(POINT))}
    assert wandb.logged[2] == {"frames": 320, "evaluation/episode": (b"GIF89a", "gif")}
    assert wandb.logged[3] == {"finished": True}


@pytest.mark.parametrize(
    ("folder", "name", "group"),
    [
        ("runs/pong-1", "pong-1", None),
        ("runs/pong-1/seed-3", "pong-1/seed-3", "pong-1"),
    ],
)
def test_runs_of_several_seeds_are_told_apart_in_trackers(folder: str, name: str, group: str | None) -> None:
    assert name_and_group(Path(folder)) == (name, group)


@pytest.mark.parametrize(
    ("installed", "store", "refused"),
    [
        ({"mlflow"}, "sqlite:////runs/mlflow.db", "set MLFLOW_TRACKING_URI"),
        ({"mlflow", "sqlalchemy"}, "sqlite:////runs/mlflow.db", None),
        ({"mlflow"}, "http://127.0.0.1:5000", None),
        (set(), "http://127.0.0.1:5000", "is not installed"),
    ],
)
def test_mlflow_needs_its_package_and_a_store_that_it_can_write(
    installed: set[str], store: str, refused: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(get_tracking_uri=lambda: store))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name if name in installed else None)
    config = RunConfig(trackers=("mlflow",))
    if installed:
        # The learner of a cluster may have variables of its own.
        check_trackers(replace(config, address="auto"))
    refusal = pytest.raises(ConfigurationError, match=f"--trackers mlflow: .*{refused}")
    with refusal if refused else nullcontext():
        check_trackers(config)


@pytest.mark.parametrize("kept", ["", "{", '{"mlflow": "b2"}'])
def test_a_resumed_run_goes_on_under_its_id(kept: str, tmp_path: Path, wandb: "FakeWandb") -> None:
    if kept:
        (tmp_path / "trackers.json").write_text(kept)
    for _ in range(2):
        WeightsAndBiases(tmp_path, RunConfig()).close()
    first, second = wandb.started
    assert first["id"] == second["id"]
    assert {first["resume"], second["resume"]} == {"allow"}
    ids = json.loads((tmp_path / "trackers.json").read_text())
    assert ids == ({"mlflow": "b2"} if "b2" in kept else {}) | {"wandb": first["id"]}


class FakeWandb:
    """Stands for the package `wandb`."""

    def __init__(self) -> None:
        self.started: list[dict[str, Any]] = []
        self.logged: list[dict[str, Any]] = []
        self.open: Callable[[], None] = lambda: None
        self.log: Callable[[dict[str, Any]], None] = self.logged.append
        self.finish: Callable[[], None] = lambda: self.logged.append({"finished": True})
        self.Settings = dict
        self.Video = lambda data, format: (data.read(), format)

    def init(self, **options: Any) -> SimpleNamespace:
        self.started.append(options)
        self.open()
        return SimpleNamespace(
            log=lambda row: self.log(row),
            finish=lambda: self.finish(),
            define_metric=lambda name, step_metric: options.update({name: step_metric}),
        )


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def tracked(config: RunConfig, folder: Path) -> TrainingSession:
    return session(replace(config, total_frames=300, log_every_seconds=1e-6, trackers=("wandb",)), folder)


@pytest.mark.parametrize("place", ["open", "log", "finish"])
def test_a_raising_tracker_is_one_warning(place: str, cartpole: RunConfig, tmp_path: Path, wandb: FakeWandb) -> None:
    calls: list[Any] = []

    def fail(*row: Any) -> None:
        calls.append(row)
        raise KeyError("the server is away\nand why")

    setattr(wandb, place, fail)
    run = tracked(cartpole, tmp_path)
    summary = run.run()
    assert summary["status"] == "frames_reached"
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert (tmp_path / "checkpoints" / f"update-{summary['updates']}.index").is_file()
    (warning,) = [message for message in messages_of(run) if "wandb" in message]
    assert warning.startswith("warning: wandb: 'the server is away")
    assert len(calls) == 1, "after its first error it is used no more"


def test_a_tracker_that_hangs_at_its_end_is_one_warning_and_the_run_is_saved_before(
    cartpole: RunConfig, tmp_path: Path, wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.run.trackers._CLOSE_SECONDS", 0.1)
    let = threading.Event()
    wandb.finish = let.wait
    run = tracked(cartpole, tmp_path)
    try:
        summary = run.run()
    finally:
        let.set()
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert [message for message in messages_of(run) if "wandb" in message] == [
        "warning: wandb: it does not close; this session writes nothing more to it, and metrics.jsonl has every row"
    ]


def test_a_tracker_that_hangs_in_a_row_keeps_a_bounded_number_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launch.run.trackers._MOST_CALLS_WAITING", 3)
    monkeypatch.setattr("launch.run.trackers._CLOSE_SECONDS", 60.0)
    let, messages = threading.Event(), list[str]()
    tracker: Any = SimpleNamespace(write=lambda _row: let.wait(), close=lambda: None)
    trackers = Trackers({"slow": lambda: tracker}, messages.append)
    for number in range(10):
        trackers.write(Progress(frames=number))
    assert len(messages) == 1
    assert "slow: it does not take its rows" in messages[0]
    let.set()
    trackers.close()
    assert len(messages) == 1


def test_rays_counters_grow_by_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, float, dict[str, str]]] = []

    class Metric:
        def __init__(self, name: str, _text: str, tag_keys: tuple[str, ...]) -> None:
            self.name = name
            assert "run" in tag_keys

        def set_default_tags(self, tags: dict[str, str]) -> None:
            assert tags == {"run": "pong"}

        def inc(self, value: float, tags: dict[str, str] | None = None) -> None:
            seen.append((self.name, value, tags or {}))

        set = inc

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
