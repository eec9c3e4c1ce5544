"""TensorBoard and W&B get the rows of metrics.jsonl; a run ends and is saved in spite of their errors."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
from sessions import messages_of, session
from tensorboard.backend.event_processing.event_accumulator import TENSORS, EventAccumulator

from launch.run.events import Progress
from launch.run.tensorboard import TensorBoard, check_trackers, evaluation_scalars, scalars
from shared.config import RunConfig
from shared.errors import ConfigurationError

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
    own={"angle": -0.5},
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


def test_scalars_have_their_groups() -> None:
    values = dict(scalars(ROW))
    assert values["return/training_mean_100"] == 12.5
    assert values["learning/entropy"] == 1.5
    assert values["info/success"] == 0.25
    assert values["own/angle"] == -0.5
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


def test_tensorboard_has_evaluations_at_their_frames(tmp_path: Path) -> None:
    tracker = TensorBoard(tmp_path, RunConfig(), print)
    tracker.write(EVALUATED)
    tracker.close()
    events = EventAccumulator(str(tmp_path), size_guidance={TENSORS: 0}).Reload()
    (training,), (evaluation,) = (events.Tensors(f"return/{n}") for n in ("training_mean_100", "evaluation_mean"))
    assert (training.step, evaluation.step) == (400, 320)
    assert float(tf.make_ndarray(evaluation.tensor_proto)) == 11.0


def test_a_resume_shows_one_course(tmp_path: Path) -> None:
    name = "return/training_mean_100"
    tracker = TensorBoard(tmp_path, RunConfig(), print)
    for frames in (400, 800, 1200):
        tracker.write(replace(ROW, frames=frames, mean_return_100=1.0))
    tracker.close()
    (first,) = tmp_path.glob("events*")
    with first.open("ab") as file:
        file.write(b"half an event of a killed process")
    tracker = TensorBoard(tmp_path, RunConfig(), print, resumed_at=800)
    for frames in (900, 1200, 1600):
        tracker.write(replace(ROW, frames=frames, mean_return_100=2.0))
    tracker.close()
    points = EventAccumulator(str(tmp_path), size_guidance={TENSORS: 0}).Reload().Tensors(name)
    course = [(point.step, float(tf.make_ndarray(point.tensor_proto))) for point in points]
    assert course == [(400, 1.0), (800, 1.0), (900, 2.0), (1200, 2.0), (1600, 2.0)]


class FakeWandb:
    """Stands for the package `wandb`."""

    def __init__(self) -> None:
        self.started: list[dict[str, Any]] = []
        self.finished = 0
        self.fails_at = ""
        self.Settings = dict

    def init(self, **options: Any) -> SimpleNamespace:
        self.started.append(options)
        self._fail("init")
        return SimpleNamespace(finish=self.finish)

    def finish(self) -> None:
        self.finished += 1
        self._fail("finish")

    def _fail(self, place: str) -> None:
        if self.fails_at == place:
            raise KeyError("the server is away\nand why")


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


WANDB = RunConfig(trackers=("wandb",))


def test_wandb_synchronises_tensorboard(tmp_path: Path, wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "games")
    folder = tmp_path / "ours" / "seed-1"
    folder.mkdir(parents=True)
    tracker = TensorBoard(folder, WANDB, print)
    tracker.write(EVALUATED)
    tracker.close()
    (started,) = wandb.started
    assert started["sync_tensorboard"]
    assert Path(started["dir"]) == folder.parent, "its own copies would be read again"
    assert (started["project"], started["group"], started["name"]) == ("games", "ours", "ours/seed-1")
    assert started["config"]["optimizer.learning_rate"] == RunConfig().optimizer.learning_rate
    assert wandb.finished == 1


@pytest.mark.parametrize("kept", ["", "{"])
def test_a_resumed_run_goes_on_under_its_id(kept: str, tmp_path: Path, wandb: FakeWandb) -> None:
    if kept:
        (tmp_path / "trackers.json").write_text(kept)
    for _ in range(2):
        TensorBoard(tmp_path, WANDB, print).close()
    first, second = wandb.started
    assert first["id"] == second["id"]
    assert {first["resume"], second["resume"]} == {"allow"}
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"wandb": first["id"]}


def test_wandb_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match="--trackers wandb: is not installed"):
        check_trackers(WANDB)


@pytest.mark.parametrize("place", ["init", "finish"])
def test_a_wandb_that_fails_is_one_warning(place: str, cartpole: RunConfig, tmp_path: Path, wandb: FakeWandb) -> None:
    wandb.fails_at = place
    run = session(replace(cartpole, total_frames=300, log_every_seconds=1e-6, trackers=("wandb",)), tmp_path)
    summary = run.run()
    assert summary["status"] == "frames_reached"
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    (warning,) = [message for message in messages_of(run) if "wandb" in message]
    assert warning.startswith("warning: wandb: 'the server is away")
    assert EventAccumulator(str(tmp_path), size_guidance={TENSORS: 0}).Reload().Tensors("return/episodes")
